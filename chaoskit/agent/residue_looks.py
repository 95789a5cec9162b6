"""
Two looks that no fault needs and every run takes: who else acts on this node, and what it shows before and after.

Standard library only, Python 3.8.
"""

from typing import Iterator

from chaoskit.agent.contract import Sign
from chaoskit.agent.remediators import found, reactions
from chaoskit.agent.residue import Since, snapshot
from chaoskit.agent.seen import NOTE, OK, Args, Ask, Seen


def remediators(ask: Ask, args: Args) -> Iterator[Seen]:
    """Say who else acts on this node, and what each of `faults` (name -> its signs) would make them do."""
    here = found(ask.host)
    for one in here:
        settings = ", ".join("{}={}".format(name, value) for name, value in sorted(one.settings.items()) if value)
        told = "{} acts on this node: {}{}".format(one.name, one.seen, "; {}".format(settings) if settings else "")
        yield Seen(NOTE, told, readings={"remediator": one.name})
    for fault, signs in sorted(args["faults"].items()):
        for reaction in reactions([Sign(sign) for sign in signs], here):
            says = "for {}, {} {}: {}".format(fault, reaction.remediator, reaction.does, reaction.says)
            clear = "afterwards: {}".format(reaction.clear.replace("NODE", ask.host.site.node)) if reaction.clear else ""
            yield Seen(NOTE, says, clear, {"fault": fault, "remediator": reaction.remediator, "does": reaction.does})
    if not here:
        yield Seen(OK, "nobody that is known acts on this node by himself")


def residue(ask: Ask, args: Args) -> Iterator[Seen]:
    """Take a snapshot: `since` is where the first look ended ({boot_id, seq}), null for the first look itself."""
    since = args.get("since")
    first = None if since is None else Since(str(since["boot_id"]), int(since["seq"]))
    yield Seen(OK, "", readings=snapshot(ask.host, first))
