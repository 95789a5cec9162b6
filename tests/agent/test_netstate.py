"""The parts of the capture that this machine's kernel cannot show; the rest is shown on real links in tests/faults."""

import json
import subprocess
import sys

import pytest

from chaoskit.agent.netstate import QDISC, Item, UnrestorableError, refuse_offloaded


def test_an_item_survives_json():
    item = Item("route", "route default table 254", "route 00", "00ff", owed=True, after=2)

    assert Item.from_json(json.loads(json.dumps(item.to_json()))) == item


@pytest.mark.parametrize("name", ["mqprio", "taprio", "cbs", "etf"])
def test_a_qdisc_that_lives_in_the_nic_is_refused(name):
    """Its driver may drop it when the link goes down, and only the driver could put it back."""
    with pytest.raises(UnrestorableError, match="its qdisc {} 8001: lives in the NIC".format(name)):
        refuse_offloaded([Item(QDISC, "qdisc {} 8001:".format(name), "", "", owed=True)])


def test_a_qdisc_of_the_kernel_s_own_is_kept():
    refuse_offloaded([Item(QDISC, "qdisc {} 1:".format(name), "", "", owed=True) for name in ("tbf", "htb", "fq")])


def test_what_nobody_touched_is_not_missing():
    """Two reads of the same thing have the same keys, also in a namespace with every kind of thing."""
    code = (
        "import subprocess, time\nfrom chaoskit.agent import netstate\nfrom chaoskit.agent.netlink import Netlink\n"
        "for command in ('link set lo up', '-6 addr add fd00::1/64 dev lo', 'route add 10.0.0.0/8 dev lo',\n"
        "                'neigh add 10.0.0.1 lladdr 02:00:00:00:00:01 dev lo'):\n"
        "    subprocess.run(['ip', *command.split()], check=True)\n"
        "with Netlink() as kernel:\n"
        "    found = netstate.capture(kernel, [1])\n"
        "    time.sleep(0.2)\n"
        "    print(sorted({item.kind for item in found}), netstate.missing(kernel, found, [1]))\n"
    )
    done = subprocess.run(["unshare", "--net", sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30)

    assert done.stdout == "['address', 'neighbour', 'route'] []\n"
