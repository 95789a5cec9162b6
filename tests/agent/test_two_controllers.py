"""Two controllers, one node, one resource, the same moment: exactly one wins, and the other is refused before anything is touched."""

import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.row("R10", "L8")


def contend(one, other, entries, path):
    """Let two channels prepare and arm on one resource at one instant; return what each was told, None for the winner."""
    said, ready = {}, threading.Barrier(2)

    def controller(channel, entry):
        run = entry.split("/", maxsplit=1)[0]
        try:
            channel.ask("prepare", run=run, entry=entry, fault="toy_file", params={"path": str(path)}, site={"node": "n1"})
            ready.wait(30)
            channel.ask("arm", entry=entry, lease=30.0, controller=f"user-of-{run}@host:1")
            said[entry] = None
        except RuntimeError as error:
            said[entry] = str(error)
            ready.abort()
        except threading.BrokenBarrierError:
            said[entry] = controller_refused(channel, entry)

    def controller_refused(channel, entry):
        try:
            channel.ask("arm", entry=entry, lease=30.0, controller="late")
        except RuntimeError as error:
            return str(error)
        return None

    threads = [threading.Thread(target=controller, args=pair) for pair in ((one, entries[0]), (other, entries[1]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return said


@pytest.mark.parametrize("versions", ["one version", "two versions"])
@pytest.mark.parametrize("seeds", [3, pytest.param(200, marks=pytest.mark.prove)])
def test_exactly_one_controller_wins_a_resource(agent, tmp_path, versions, seeds):
    """Also between agents of two versions, whose servers share nothing but the ledger; the loser is told whose it is."""
    other = agent
    if versions == "two versions":
        archive = tmp_path / ("0" * 64 + ".pyz")
        archive.write_bytes(Path(agent.archive).read_bytes() + b"\n")
        other = type(agent)(agent.python, archive, agent.root)
    channels = agent.connect(), other.connect()
    for seed in range(seeds):
        path = agent.file(f"file{seed}")
        entries = [f"a{seed}/1/n1", f"b{seed}/1/n1"]
        said = contend(*channels, entries, path)

        winners = [entry for entry in entries if said[entry] is None]
        assert len(winners) == 1, f"seed {seed}: {said}"
        (lost,) = (text for text in said.values() if text is not None)
        run = winners[0].split("/", maxsplit=1)[0]
        for part in (f"file:{path} is taken by run {run} of user-of-{run}@host:1 since 20", "UTC", "of its lease are left"):
            assert part in lost
        assert path.read_text() == "whole"
        winner = channels[entries.index(winners[0])]
        winner.ask("inject", entry=winners[0], at=None)
        assert path.read_text() == "harmed"
        winner.ask("revert", entry=winners[0])
        assert Path(f"{path}.log").read_text().count("harm") == 1
