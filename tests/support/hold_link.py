"""
A controller that takes a link down and keeps its lease alive until somebody kills it. Run as a script by the crash tests.

    hold_link.py INVENTORY NODE RUN_DIR LEASE
"""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from chaoskit.engine.clock import SystemClock
from chaoskit.engine.injector import Injector
from chaoskit.engine.journal import Journal
from chaoskit.engine.keeper import Keeper
from chaoskit.engine.plan import Plan, PlannedInjection
from chaoskit.engine.recorder import Recorder
from chaoskit.engine.replay import head_of
from chaoskit.engine.result import RunInfo
from chaoskit.faults.link_flap import LinkFlap
from chaoskit.fleet.fleet import SshFleet
from chaoskit.judge.timeline import Spec
from chaoskit.model.experiment import Abort, Budgets
from chaoskit.model.inventory import TrainingSpec
from chaoskit.model.load import load_inventory


def main(inventory_file: str, node: str, run_dir: str, lease: float) -> None:
    inventory = load_inventory(Path(inventory_file))
    fault = LinkFlap(rail=1, down=120.0)
    held = PlannedInjection(1, "link_flap", "link_flap rail 1", {"rail": 1, "down": 120.0}, fault, (node,), 0.0, False, False, 120.0)
    plan = Plan("hold", 0, "none", TrainingSpec("attach"), (held,), (node,), Spec(Budgets()), Abort(), 1.0, 1.0, lease)
    run = Path(run_dir).name
    info = RunInfo(run, "hold", "", "", "hold.yaml", inventory.name, inventory_file, 0, 0, 0, datetime.now(UTC), time.monotonic())
    recorder = Recorder(Journal(Path(run_dir)), SystemClock(), lambda event: print(event.kind, event.says, flush=True))
    recorder.record("run", head_of(info, plan))
    fleet = SshFleet(inventory)
    injector = Injector(run, lease, fleet, dict(fleet.connect([node])), recorder, SystemClock())
    injector.begin(held)
    keeper = Keeper(injector, None)
    print("holding", flush=True)
    while True:
        time.sleep(0.05)
        keeper.tick(time.monotonic())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
