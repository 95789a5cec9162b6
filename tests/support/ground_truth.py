"""
What really happened in the lab's training: each rank's own stamps, and the exact offsets of the nodes' clocks.

Only tests read this. The offsets come from the kernel (`/proc/PID/timens_offsets` of the node's processes), not from
chaoskit's clock mapping, so that the mapping is judged too.
"""

import json
from dataclasses import dataclass

FOLDER = "/var/log/chaoskit-training/truth"


def clock_offset(lab, node: str) -> float:
    """Return the seconds to subtract from the node's monotonic clock to get this machine's."""
    listing = lab.ssh(node, "cat /proc/self/timens_offsets").stdout
    kind, seconds, nanoseconds = next(line.split() for line in listing.splitlines() if line.startswith("monotonic"))
    assert kind == "monotonic"
    return int(seconds) + int(nanoseconds) / 1e9


@dataclass(frozen=True)
class Note:
    """One stamp of one rank, on this machine's monotonic clock."""

    t: float
    event: str
    step: int
    rank: int
    node: str


def notes(lab, nodes, run: str) -> list[Note]:
    """Return every rank's stamps of a run, by time. A node's clock offset changes at a reboot: use it before one."""
    found = []
    for node in nodes:
        offset = clock_offset(lab, node)
        listing = lab.ssh(node, f"cd {FOLDER}/{run} && for f in *.jsonl; do sed s/^/$f:/ $f; done").stdout
        for line in listing.splitlines():
            name, _, text = line.partition(":")
            note = json.loads(text)
            found.append(Note(note["t"] - offset, note["event"], note["step"], int(name.removeprefix("rank").split(".")[0]), node))
    return sorted(found, key=lambda note: note.t)


def lost_steps(found: list[Note]) -> int:
    """Return the steps done twice: rank 0's highest step before each reload, minus the step loaded."""
    lost, highest, loads = 0, 0, 0
    for note in found:
        if note.rank != 0:
            continue
        if note.event == "loaded":
            loads += 1
            lost += max(highest - note.step, 0) if loads > 1 else 0
            highest = note.step
        if note.event == "step":
            highest = max(highest, note.step)
    return lost


def t0_stamps(lab, node: str, run: str) -> tuple[float, float]:
    """Return the stamps around the harming call, from the node's own ledger, on this machine's clock."""
    text = lab.ssh(node, f"sudo -n sh -c 'cat /var/lib/chaoskit/ledger/*{run}*'").stdout
    records = [json.loads(line) for line in text.splitlines() if line.strip()]
    before, after = next(record["t0"] for record in records if record["state"] == "injected")
    offset = clock_offset(lab, node)
    return before - offset, after - offset
