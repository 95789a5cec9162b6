"""
The pytest plugin: experiment files as test items, and fixtures for experiments in Python.

`pytest experiments --chaos-inventory lab.yaml` runs every experiment below `experiments/`, and every test that uses the
fixtures `cluster`, `training` and `inject`; without an inventory they are skipped, with that reason. A missed budget and
an assertion that does not hold are failures; inconclusive, aborted and leaked are errors, in pytest's own JUnit too. Exit
codes stay pytest's: its 5 means that nothing was collected, and CI scripts swallow it.

Loaded at the start of every pytest: nothing heavy is imported before an experiment is collected.
"""

import signal
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from chaoskit.pytest_plugin.items import SUFFIXES, ExperimentFile, is_experiment
from chaoskit.pytest_plugin.keys import FIXTURE, NO_INVENTORY, PENDING, PLANNED, REACH, REFUSED, REPETITION, RESULTS, RUNNING, repetition_id

if TYPE_CHECKING:
    from chaoskit.scripting import Figure

MARKERS = (
    "chaos(blast_radius=1, training='default', seed=0, ...): how a Python test is an experiment; takes every key of an experiment file",
    "volatile: injects faults that a reboot clears (experiment files are marked by their faults)",
    "persistent: injects faults that survive a reboot (a Python test with one of these marks may inject no others)",
    "irreversible: injects faults that cannot be undone",
)
SITE_HELP = (
    "run the collected experiments at this site: a file, or NAME for inventories/NAME.yaml; they are skipped without it, "
    "since the environment alone must not turn a test run into harm"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options."""
    group = parser.getgroup("chaoskit", "fault injection into a live training run")
    group.addoption("--chaos-inventory", metavar="FILE|NAME", help=SITE_HELP)
    group.addoption("--chaos-out", metavar="DIR", default="runs", help="where the runs' artefacts lie (default: runs)")
    group.addoption("--chaos-seed", metavar="N", type=int, help="seed of every choice, instead of each experiment's own")
    group.addoption(
        "--chaos-lose-at-most", metavar="N", type=int, help="begin nothing more once N nodes are lost, instead of limits.nodes_lost"
    )
    group.addoption("--chaos-plan", action="store_true", help="show what the experiments would do at this site, and touch nothing")
    group.addoption(
        "--chaos-repeat", metavar="N", type=int, default=1, help="run each experiment N times; the summary has min, median and max"
    )


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, Any, Any]:
    """Let `--repeat` be short for `--chaos-repeat`, unless this project has an option of that name already."""
    answer = yield
    short = "--repeat"
    groups = [parser._anonymous, *parser._groups]  # noqa: SLF001 - pytest has no other way to ask
    if not any(short in option.names() for group in groups for option in group.options):
        parser.getgroup("chaoskit").addoption(short, dest="chaos_repeat", metavar="N", type=int, default=1, help="the same, in short")
    return answer


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what would make experiments lie, and let SIGTERM unwind instead of killing us in the middle of a run."""
    from chaoskit.pytest_plugin import fixtures

    config.stash[RESULTS] = []
    config.stash[PENDING] = set()
    config.stash[REFUSED] = []
    config.stash[PLANNED] = 0
    config.pluginmanager.register(fixtures, "chaoskit-fixtures")
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    _check_options(config)
    if not config.getoption("chaos_inventory"):
        return
    before = signal.signal(signal.SIGTERM, _interrupt)

    def give_back() -> None:
        signal.signal(signal.SIGTERM, before)

    config.add_cleanup(give_back)


def _check_options(config: pytest.Config) -> None:
    site = config.getoption("chaos_inventory")
    if config.getoption("chaos_repeat") < 1:
        raise pytest.UsageError("--chaos-repeat: give a number from 1")
    most = config.getoption("chaos_lose_at_most")
    if most is not None and most < 1:
        raise pytest.UsageError("--chaos-lose-at-most: give a number from 1")
    if not site:
        if config.getoption("chaos_plan"):
            raise pytest.UsageError("--chaos-plan needs a site to plan for: give --chaos-inventory FILE")
        return
    config.option.chaos_inventory = str(_path_of(site))  # what is wrong with it is said once, and not by every experiment
    if config.getoption("setuponly", False) or config.getoption("setupplan", False):
        raise pytest.UsageError("--setup-only and --setup-plan would run the experiments and not judge them: --chaos-plan shows them")
    if hasattr(config, "workerinput") or config.getoption("numprocesses", None) or config.getoption("tx", None):
        raise pytest.UsageError(
            "--chaos-inventory cannot be used with pytest-xdist (-n): experiments at one site must run one after another"
        )
    if _reruns(config):
        raise pytest.UsageError("--chaos-inventory cannot be used with --reruns: a failed recovery must not be rerun into a green one")


def _path_of(site: str) -> Path:
    """Return the inventory's path. Raises UsageError."""
    from chaoskit.errors import InputError
    from chaoskit.sites import path_of

    try:
        return path_of(site, "--chaos-inventory")
    except InputError as error:
        raise pytest.UsageError(str(error)) from None


def _reruns(config: pytest.Config) -> bool:
    """Say whether pytest-rerunfailures is told to rerun, by an option or, where there is none, by the ini file."""
    given = config.getoption("reruns", None)
    if given is None and config.pluginmanager.hasplugin("rerunfailures"):
        try:
            given = config.getini("reruns")
        except ValueError:  # before its version 14 it has no such setting
            given = None
    return bool(int(given or 0) or config.getoption("force_reruns", None))


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt("SIGTERM")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> ExperimentFile | None:
    """Collect experiment files below a folder `experiments`, and those named on the command line."""
    if file_path.suffix not in SUFFIXES or not is_experiment(file_path, named=parent.session.isinitpath(file_path)):
        return None
    file: ExperimentFile = ExperimentFile.from_parent(parent, path=file_path)
    return file


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat every test that is an experiment."""
    count: int = metafunc.config.getoption("chaos_repeat")
    if count > 1 and FIXTURE in metafunc.fixturenames:
        ids = [repetition_id(number, count) for number in range(1, count + 1)]
        metafunc.parametrize(REPETITION, range(1, count + 1), ids=ids, indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test that is an experiment as one, so that `-m` finds it, and refuse to rerun it into a green one."""
    if FIXTURE not in getattr(item, "fixturenames", ()):
        return
    if (
        item.config.getoption("chaos_inventory")
        and item.get_closest_marker("flaky")
        and item.config.pluginmanager.hasplugin("rerunfailures")
    ):
        raise pytest.UsageError(f"{item.nodeid} is marked `flaky`: a failed recovery must not be rerun into a green one")
    if item.get_closest_marker("chaos") is None:
        item.add_marker("chaos")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """With `--chaos-plan`, show the plans instead of running anything."""
    if not session.config.getoption("chaos_plan"):
        return None
    from chaoskit.pytest_plugin.plans import show_plans

    return show_plans(session)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """End the run when pytest ends while a fixture is set up."""
    return (yield from _interruptible(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """End the run when pytest ends while a fixture is torn down."""
    return (yield from _interruptible(item))


def _interruptible(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        return (yield)
    except (KeyboardInterrupt, pytest.exit.Exception):
        if (running := item.stash.get(RUNNING, None)) is not None:
            running.interrupt()
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Let the end of a Python test be the end of its experiment: what it proved is known before pytest reports on it."""
    running = item.stash.get(RUNNING, None)
    if running is None:
        return (yield)
    return (yield from running.around())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show on failure what happened when, and let the experiment know of a subtest's."""
    report = yield
    if report.failed and report.when == "call" and call.excinfo is not None and (running := item.stash.get(RUNNING, None)) is not None:
        running.take_in(call.excinfo.value)
    if report.failed and (result := getattr(item.stash.get(RUNNING, item), "result", None)) is not None:
        from chaoskit.pytest_plugin.told import timeline

        report.sections.append(("chaoskit: what happened", timeline(result, told_already=report.longreprtext)))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> tuple[str, str, str] | None:
    """Call no test passed whose experiment proved nothing: its error is reported at teardown."""
    return ("", "", "") if report.when == "call" and report.passed and report.nodeid in config.stash[PENDING] else None


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Say what was measured, and what it was held against."""
    for figure, limit, sense in ((left, right, op), (right, left, {"<=": ">=", ">=": "<=", "<": ">", ">": "<"}.get(op, op))):
        if type(figure).__module__ == "chaoskit.scripting.figures":
            return [_said(figure, sense, limit)]
    return None


def _said(figure: "Figure | object", sense: str, limit: object) -> str:
    words = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than", "==": "exactly", "!=": "other than"}
    return f"{figure}, and not {words.get(sense, sense)} {limit}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print each verdict; what leaked comes last, where it cannot be overlooked."""
    if not config.getoption("chaos_inventory") and (skipped := _without_site(terminalreporter)):
        terminalreporter.section("chaoskit")
        terminalreporter.line(f"{skipped} experiment{'' if skipped == 1 else 's'} skipped: {NO_INVENTORY}")
    if config.stash[REFUSED]:
        terminalreporter.section("chaoskit")
        refused, planned = config.stash[REFUSED], config.stash[PLANNED]
        terminalreporter.line(f"{len(refused)} of {planned} plans refused: {', '.join(refused)}")
    if config.stash[RESULTS]:
        from chaoskit.pytest_plugin.told import summary

        terminalreporter.section("chaoskit")
        for line in summary(config.stash[RESULTS]):
            terminalreporter.line(line)


def _without_site(reporter: pytest.TerminalReporter) -> int:
    """Return how many experiments were skipped because nobody said where to run them."""
    skipped = [report for report in reporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple)]
    return sum(NO_INVENTORY in report.longrepr[2] for report in skipped)


__all__ = ["NO_INVENTORY", "REACH"]
