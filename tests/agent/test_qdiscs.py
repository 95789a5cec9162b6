"""A cap that is ours alone, in a network namespace; what it caps is tried by `storage_slow`'s tests."""

import subprocess
import sys

import pytest

SCRIPT = """
import socket, subprocess
from chaoskit.agent import qdiscs
from chaoskit.agent.netlink import Netlink, NetlinkError
run = lambda text: subprocess.run(text.split(), check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
run("ip link add va type veth peer name vb")
with Netlink() as kernel:
    index = socket.if_nametoindex("va")
    before = run("tc qdisc show dev va")
    standing = qdiscs.standing(kernel, index)
    qdiscs.uncap(kernel, index)
    {}
"""


def inside(body):
    """Run this in a network namespace with a cable, and return what it printed."""
    code = SCRIPT.format(body.replace("\n", "\n    "))
    done = subprocess.run(["unshare", "--net", sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.row("L11")
@pytest.mark.parametrize(("rate", "shown"), [(1 << 20, "rate 8388Kbit"), (5 << 30, "rate 42949Mbit"), (12_500_000_000, "rate 100Gbit")])
def test_a_cap_stands_as_asked_and_leaves_nothing(rate, shown):
    """Also beyond what 32 bits hold; `tc` reads it as we meant it, and the default is back after it."""
    said = inside(
        "qdiscs.cap(kernel, index, ['10.0.0.1', 'fd00::1'], {})\n"
        "print(qdiscs.capped(kernel, index), run('tc class show dev va'), run('tc filter show dev va'))\n"
        "qdiscs.uncap(kernel, index)\n"
        "print(before == run('tc qdisc show dev va'), standing == qdiscs.standing(kernel, index), qdiscs.capped(kernel, index))".format(
            rate
        )
    )

    assert said.startswith("True class htb c4a0:1 root")
    assert [part in said for part in (shown, "match 0a000001/ffffffff at 16", "match 00000001/ffffffff at 36")] == [True] * 3
    assert said.endswith("True True False\n")


@pytest.mark.row("L11", "L18")
def test_somebody_else_s_discipline_is_never_ours():
    """Not by its kind, and not by its handle."""
    said = inside(
        "for made in ('htb', 'tbf rate 1gbit burst 1m latency 1s'):\n"
        "    handle = '5:' if made == 'htb' else 'c4a0:'\n"
        "    run('tc qdisc replace dev va root handle {} {}'.format(handle, made))\n"
        "    qdiscs.uncap(kernel, index)\n"
        "    print(qdiscs.capped(kernel, index), str(qdiscs.standing(kernel, index)[0]))\n"
        "    run('tc qdisc del dev va root')"
    )

    assert said == "False htb 5:\nFalse tbf c4a0:\n"


def test_the_lab_s_own_limits_are_nobody_s_stray():
    """Known by kind and handle together; every other discipline that somebody asked for is told."""
    said = inside(
        "from chaoskit.agent import slowing\n"
        "for made in ('1ab0: tbf rate 1gbit burst 1m latency 1s', '1: tbf rate 1gbit burst 1m latency 1s', '1ab0: htb'):\n"
        "    run('tc qdisc replace dev va root handle {}'.format(made))\n"
        "    print([stray.says for stray in slowing.strays() if stray.resource == 'nic:va'])\n"
        "    run('tc qdisc del dev va root')"
    )

    told = "['a queueing discipline that is not ours ({}) stands on va']\n"
    assert said == f"[]\n{told.format('tbf 1:')}{told.format('htb 1ab0:')}"


def test_a_cap_is_tried_where_it_harms_nobody():
    """In a namespace of the child's own: nothing of it is seen here, and a kernel that refuses is quoted."""
    said = inside(
        "from chaoskit.agent import savetime\n"
        "print(savetime.trial(['10.0.0.1'], 1e6, 20), before == run('tc qdisc show dev va'))\n"
        "error = NetlinkError(2, 'Specified qdisc kind is unknown.')\n"
        "print(qdiscs.words(error))"
    )

    assert said == "None True\nSpecified qdisc kind is unknown. (sch_htb and cls_u32)\n"
