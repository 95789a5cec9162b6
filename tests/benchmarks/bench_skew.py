"""
How far apart one T0 strikes on eight nodes, beside fabric's ThreadingGroup over the same connections in the same run.

    python tests/benchmarks/bench_skew.py [--rounds 40]

The nodes' monotonic clocks differ, as on real machines, but the lab's nodes share one wall clock: what the fault itself
reads there is the truth, and what the mapped stamps say can be held against it. Aim: 95 % of the spreads below 2 ms.
"""

import argparse
import time
from pathlib import Path

import fabric
from bench_lab import lab_fleet, percentile

LEAD = 0.3
"""Seconds from the request to T0."""


def strike(fleet, agents, number):
    """Inject once on all nodes at one T0; return the true moments (wall clock) and the mapped ones (controller's)."""
    entries = {name: f"bench/{number}/{name}" for name in agents}
    prepared = [agent.prepare("bench", entries[name], "bench_stamp", {}, fleet.site(name)) for name, agent in agents.items()]
    [future.result() for future in prepared]
    [future.result() for future in [agent.arm(entries[name], 30.0) for name, agent in agents.items()]]
    at = time.monotonic() + LEAD
    mapped = [future.result() for future in [agent.inject(entries[name], at) for name, agent in agents.items()]]
    ended = [agent.finish(entries[name]) for name, agent in agents.items()]
    seen = [agent.witness(entries[name]).result().readings["wall"] for name, agent in agents.items()]
    [future.result() for future in ended]
    return seen, [interval.mid for interval in mapped], at + time.time() - time.monotonic()


def fan_out(group):
    """Return the moments at which fabric ran a command on all nodes."""
    return [float(result.stdout) for result in group.run("date +%s.%N", hide=True, in_stream=False).values()]


def show(name, spreads):
    low, middle, high = (percentile(spreads, share) * 1e3 for share in (5, 50, 95))
    print(f"{name:<44}{len(spreads):>4} x   spread p5 {low:8.3f}   p50 {middle:8.3f}   p95 {high:8.3f} ms")


def spread(moments):
    return max(moments) - min(moments)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    with lab_fleet({"bench_stamp": Path(__file__).with_name("bench_stamp.py")}) as (fleet, names):
        agents = fleet.connect(names)
        group = fabric.ThreadingGroup.from_connections([fleet.reached(name).connection for name in names])
        fan_out(group)
        struck, fanned = [], []
        for number in range(args.rounds):
            struck.append(strike(fleet, agents, number))
            fanned.append(fan_out(group))
    show("held agents, one T0 (true moments)", [spread(seen) for seen, _, _ in struck])
    show("held agents, one T0 (as the stamps tell it)", [spread(mapped) for _, mapped, _ in struck])
    show("fabric, ThreadingGroup.run", [spread(moments) for moments in fanned])
    late = [moment - at for seen, _, at in struck for moment in seen]
    print(f"late against the T0 that was asked for: p50 {percentile(late, 50) * 1e3:.3f} ms, p95 {percentile(late, 95) * 1e3:.3f} ms")


if __name__ == "__main__":
    main()
