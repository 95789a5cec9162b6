"""
A controller that injects one fault and renews its lease until somebody kills it. Run as a script by the tests.

    hold.py INVENTORY NODE LEASE FAULT PARAMS
"""

import json
import sys
import time
from pathlib import Path

from chaoskit.errors import NodeError
from chaoskit.fleet.fleet import SshFleet
from chaoskit.model.load import load_inventory

TOYS = {path.stem: path for path in (Path(__file__).parents[1] / "agent" / "toys").glob("toy_*.py")}


def main(inventory: str, node: str, lease: float, fault: str, params: str) -> None:
    fleet = SshFleet(load_inventory(Path(inventory)), TOYS)
    agent = fleet.connect([node])[node]
    run = f"hold-{time.time_ns()}"
    entry = f"{run}/1/{node}"
    agent.prepare(run, entry, fault, json.loads(params), fleet.site(node)).result()
    agent.arm(entry, lease).result()
    agent.inject(entry, None).result()
    print("holding", flush=True)
    while True:
        time.sleep(1.0)
        try:
            if agent.connected:
                agent.renew(run, lease).result()
            else:
                agent = fleet.reconnect(node).result()
                print("reconnected", flush=True)
        except NodeError as error:
            print(f"lost: {error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4], sys.argv[5])
