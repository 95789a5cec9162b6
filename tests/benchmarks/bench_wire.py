"""
A warm request to a held agent, beside fabric's `run` in the same run: on the same connection, and on one of its own.

Our connection has a socket that waits for nothing (TCP_NODELAY, TCP_QUICKACK), which speeds fabric up about four times
too; on its own connection, to the same node, fabric is what its users get.

    python tests/benchmarks/bench_wire.py [--requests 5000] [--runs 100]

Aims: p50 of a request below 0.5 ms, and at least 50 times faster than fabric. Nothing is asserted: a busy machine is
slower, and both suffer alike.
"""

import argparse
import time

import fabric
import paramiko
from bench_lab import NAME, lab_fleet, percentile

from chaoskit.lab.plan import STATE_ROOT


def timed(count, action):
    """Return how long each of `count` calls took, in ms."""
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        action()
        times.append((time.perf_counter() - begun) * 1e3)
    return times


def show(name, times):
    print(f"{name:<32}{len(times):>7} x   p50 {percentile(times, 50):8.3f} ms   p99 {percentile(times, 99):8.3f} ms")


def fabric_of_its_own(node):
    """Return fabric's own warm connection to a node of the lab; only its trust in any host key is taken from it."""
    state = STATE_ROOT / NAME
    at = paramiko.SSHConfig.from_path(state / "ssh_config").lookup(node)
    keys = {"key_filename": str(state / "id_ed25519"), "look_for_keys": False, "allow_agent": False}
    own = fabric.Connection(at["hostname"], user="chaos", connect_kwargs=keys)
    own.client.load_host_keys(str(state / "known_hosts"))
    own.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    own.open()
    return own


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=100)
    args = parser.parse_args()
    with lab_fleet() as (fleet, names):
        agent = fleet.connect(names[:1])[names[0]]
        connection, own = fleet.reached(names[0]).connection, fabric_of_its_own(names[0])
        timed(200, lambda: agent.tick().result())
        requests, runs, alone = [], [], []
        for _ in range(10):  # in turns, so that whatever else the machine does hits both
            requests += timed(args.requests // 10, lambda: agent.tick().result())
            runs += timed(args.runs // 10, lambda: connection.run("true", hide=True, in_stream=False))
            alone += timed(args.runs // 10, lambda: own.run("true", hide=True, in_stream=False))
        own.close()
    show("held agent, request", requests)
    show("fabric, same connection", runs)
    show("fabric, connection of its own", alone)
    p50 = percentile(requests, 50)
    same, other = (percentile(times, 50) / p50 for times in (runs, alone))
    print(
        f"ratio of the p50s: {same:.0f} on the same connection, {other:.0f} beside fabric's own (at least 50); p50 {p50:.3f} ms (below 0.5)"
    )


if __name__ == "__main__":
    main()
