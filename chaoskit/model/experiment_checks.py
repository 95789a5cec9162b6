"""What only several values of an experiment together make right or wrong."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from chaoskit.agent.contract import CONTROL_PATH, Fault, duration_of
from chaoskit.model.experiment import Budgets, Experiment, Injection
from chaoskit.model.hostlist import NAME, HostListError, expand
from chaoskit.model.source import Source, Where
from chaoskit.model.units import show_duration, show_share

RENDEZVOUS = "rendezvous"
"""In `avoid`: the node that hosts the training's rendezvous."""
TIME_BUDGETS = ("time_to_detect", "time_to_resume", "time_to_recover", "time_to_steady", "settle_time")
"""Budgets whose event must come while we watch."""
SHORTEST_EVERY = 1.0
LONGEST_WITHIN = 60.0
"""Seconds: how often what may end a run is asked at most, and how long an answer may take."""
HELD_ONLY = {"throughput_during": "throughput while the fault is held", "settle_time": "time from the fault's end"}
"""Budgets that mean something only for a fault with an end."""


def check_name(source: Source) -> None:
    """The file's stem names the run, its folder and its reports."""
    stem = Path(source.file).stem
    if not NAME.fullmatch(stem):
        hint = "rename the file: letters, digits, `_`, `-` and `.`, such as plane_loss.yaml"
        source.report((), f"the file's name names the run, and {stem!r} cannot", hint, at=(1, 1))


def check_experiment(source: Source, experiment: Experiment, faults: Sequence[Fault | None], *, growing: bool = False) -> None:
    """Report what does not fit together in the experiment; one that is `growing` gets its injections later, from a Python test."""
    if not experiment.title.strip():
        _report(source, ("title",), "the title says nothing", "one line: the claim under test")
    if not experiment.method and not growing:
        _report(source, ("method",), "nothing to inject", "list at least one fault")
    for index, injection in enumerate(experiment.method):
        _check_target(source, injection, ("method", index, "target"))
        fault = faults[index] if index < len(faults) else None
        _check_expect(source, injection, fault, ("method", index, "expect"))
        _check_allow(source, injection, fault, ("method", index, "allow"))
    check_quantity(source, experiment.blast_radius.nodes, ("blast_radius", "nodes"))
    for group, quantity in experiment.blast_radius.per_group.items():
        check_quantity(source, quantity, ("blast_radius", "per_group", group))
    _check_steady_state(source, experiment)
    _check_abort(source, experiment)
    _check_budgets(source, experiment.budgets, faults, growing=growing)
    _check_watch(source, experiment)


def watch_seconds(stated: float | None, budgets: Budgets) -> float:
    """Return how long recovery is watched after the last fault: as stated, or twice the largest time budget, at least 60 s."""
    return max(2 * largest_time_budget(budgets)[1], 60.0) if stated is None else stated


def largest_time_budget(budgets: Budgets) -> tuple[str, float]:
    """Return the name and the seconds of the longest time budget; an empty name and 0 when there is none."""
    stated = [(name, getattr(budgets, name)) for name in TIME_BUDGETS if getattr(budgets, name) is not None]
    return max(stated, key=lambda item: item[1], default=("", 0.0))


def _report(source: Source, path: Where, what: str, hint: str = "") -> None:
    if not source.is_broken(path):
        source.report(path, what, hint)


def _check_target(source: Source, injection: Injection, where: Where) -> None:
    target = injection.target
    if (target.group is None) == (target.nodes is None):
        both = "both `group` and `nodes`" if target.group is not None else "neither `group` nor `nodes`"
        _report(source, where, f"the target has {both}", "give exactly one of them")
    if target.nodes is not None:
        check_hostlist(source, target.nodes, (*where, "nodes"))
    for index, name in enumerate(target.avoid):
        check_hostlist(source, name, (*where, "avoid", index))
    check_quantity(source, target.pick, (*where, "pick"))


def _check_expect(source: Source, injection: Injection, fault: Fault | None, where: Where) -> None:
    if injection.expect is None:
        return
    if fault is not None and not fault.holds():
        what = f"step time moves while a fault is applied, and {injection.fault} is over at once"
        _report(source, where, what, "remove it: what a kill costs is judged by budgets such as time_to_recover")
    if not 0 < injection.expect.within < 1:
        _report(source, (*where, "within"), "the ratio must be allowed between 0% and 100% off", "such as 15%")


def check_hostlist(source: Source, text: str, where: Where) -> tuple[str, ...]:
    """Return the names of a host list; none after reporting why it cannot be read."""
    try:
        return expand(text)
    except HostListError as error:
        _report(source, where, error.what, error.hint)
        return ()


def _check_allow(source: Source, injection: Injection, fault: Fault | None, where: Where) -> None:
    """What cuts the control path must mend itself: nobody can be sure to reach the node."""
    if CONTROL_PATH in injection.allow and fault is not None and not fault.holds():
        what = f"{injection.fault} has no end of its own, so that nothing would mend the control path"
        _report(source, where, what, "remove it: only a fault that is held for a time may be allowed this")


def check_quantity(source: Source, quantity: float | str, where: Where) -> None:
    """Report a number or a share of nodes that means nobody, or more than there are."""
    if quantity == 0:
        _report(source, where, "0 nodes is nobody", "give a number from 1, a percentage, or all")
    elif isinstance(quantity, float) and quantity > 1:
        _report(source, where, f"{show_share(quantity)} of the nodes is more than there are", "give at most 100%")


def _check_steady_state(source: Source, experiment: Experiment) -> None:
    steady = experiment.steady_state
    where: Where = ("steady_state", "throughput")
    if not 0 < steady.throughput.within < 1:
        _report(source, (*where, "within"), "the band must lie between 0% and 100%", "such as 10%")
    if steady.throughput.for_ <= 0:
        _report(source, (*where, "for"), "a window of no length shows nothing", "such as 10s")
    if steady.within < 5 * steady.throughput.for_:
        hint = f"give at least {show_duration(5 * steady.throughput.for_)}"
        _report(source, ("steady_state", "within"), "the baseline needs 5 windows, more than this wait allows", hint)


def _check_abort(source: Source, experiment: Experiment) -> None:
    abort = experiment.abort
    if abort.no_progress == 0:
        _report(source, ("abort", "no_progress"), "no progress for 0 s is always so", "such as 2m")
    if abort.throughput is not None:
        if not 0 < abort.throughput.below < 1:
            _report(source, ("abort", "throughput", "below"), "this must lie between 0% and 100% of the baseline", "such as 20%")
        if abort.throughput.for_ == 0:
            _report(source, ("abort", "throughput", "for"), "a window of no length shows nothing", "such as 30s")
    for index, command in enumerate(abort.commands):
        where: Where = ("abort", "commands", index)
        if not command.argv or not command.argv[0]:
            _report(source, (*where, "argv"), "no program is named", "a list: [./healthy.sh, --quick]")
        _check_asking(source, command.every, command.within, where)
    for index, query in enumerate(abort.queries):
        where = ("abort", "queries", index)
        if not query.query.strip():
            _report(source, (*where, "query"), "nothing is asked", "PromQL, such as `sum(rate(errors_total[1m]))`")
        if query.url is not None:
            check_url(source, query.url, (*where, "url"))
        elif query.token_env is not None:
            _report(source, (*where, "token_env"), "the inventory's Prometheus has its own", "give `url` too, or remove it")
        _check_asking(source, query.every, query.within, where)


def _check_asking(source: Source, every: float, within: float, where: Where) -> None:
    if every < SHORTEST_EVERY:
        _report(source, (*where, "every"), "asked that often, it would be a load itself", f"at least {show_duration(SHORTEST_EVERY)}")
    if not 0 < within <= LONGEST_WITHIN:
        _report(
            source, (*where, "within"), "an answer needs time, and the run cannot wait for long", f"at most {show_duration(LONGEST_WITHIN)}"
        )


def check_url(source: Source, url: str, where: Where) -> None:
    """Report an address that is no plain http one, or has a secret in it."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment) and parts.port != 0
    except ValueError:
        _report(source, where, "this is no URL", "such as http://prometheus:9090")
        return
    if parts.username is not None or parts.password is not None:
        _report(source, where, "a secret does not belong into a file", "name an environment variable that holds a token: `token_env`")
    elif not good:
        _report(source, where, "expected the http address of a Prometheus", "such as http://prometheus:9090")


def _check_budgets(source: Source, budgets: Budgets, faults: Sequence[Fault | None], *, growing: bool) -> None:
    for name in ("throughput_during", "window_goodput"):
        value = getattr(budgets, name)
        if value is not None and value > 1:
            _report(source, ("budgets", name), f"{show_share(value)} is more than the baseline itself", "give at most 100%")
    known = [fault for fault in faults if fault is not None]
    if growing or len(known) < len(faults) or any(duration_of(fault) > 0 for fault in known):
        return
    for name, meaning in HELD_ONLY.items():
        if getattr(budgets, name) is not None:
            _report(source, ("budgets", name), f"this is the {meaning}, and no fault here is held", "remove it, or add a fault with an end")


def _check_watch(source: Source, experiment: Experiment) -> None:
    name, seconds = largest_time_budget(experiment.budgets)
    if experiment.watch is not None and experiment.watch < seconds:
        what = f"the watch would end before {name} {show_duration(seconds)} could be judged"
        _report(source, ("watch",), what, f"give at least {show_duration(seconds)}")
