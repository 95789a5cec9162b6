"""`--chaos-plan`: what the collected experiments would do at this site. Touches nothing."""

import pytest

from chaoskit.engine.plan import plan
from chaoskit.errors import ChaosError
from chaoskit.model.load import load_inventory
from chaoskit.pytest_plugin.items import ExperimentItem
from chaoskit.pytest_plugin.keys import FIXTURE, PLANNED, REFUSED
from chaoskit.pytest_plugin.running import script_of, seed_of
from chaoskit.scripting.driver import Script

LATER = "injects what its code says when it runs; the plan then refuses whatever exceeds this"


def show_plans(session: pytest.Session) -> bool:
    """Show the plan of every item that is an experiment; one that would be refused makes pytest's exit code 1."""
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    for item in session.items:
        if not isinstance(item, ExperimentItem) and FIXTURE not in getattr(item, "fixturenames", ()):
            continue
        session.config.stash[PLANNED] += 1
        try:
            lines = _plan(item)
        except ChaosError as error:
            lines = [f"refused: {line}" for line in str(error).splitlines()]
            session.testsfailed += 1
            session.config.stash[REFUSED].append(item.nodeid)
        if reporter is not None:
            reporter.section(item.nodeid, sep="-")
            for line in lines:
                reporter.line(line)
    return True


def _plan(item: pytest.Item) -> list[str]:
    site = load_inventory(item.config.getoption("chaos_inventory"))
    if isinstance(item, ExperimentItem):
        loaded = item.load()
        return [loaded.experiment.title, *plan(loaded, site, item.seed(loaded)).describe()]
    script = script_of(item)
    loaded = script.loaded(site)
    made = plan(loaded, site, seed_of(item))
    radius = loaded.experiment.blast_radius.nodes
    limit = "every node of the site" if radius == "all" else f"{radius} node{'' if radius == 1 else 's'}"
    known = [line for line in made.describe() if not line.startswith(("touched:", "warning: no budgets"))]
    return [script.title, *known, f"touches {limit} at most; {_faults(script)}; {LATER}"]


def _faults(script: Script) -> str:
    return f"only {' and '.join(sorted(script.lifetimes))} faults" if script.lifetimes else "any fault that the site allows"
