"""What a sweep may take: what bears our own name, and nothing that only looks like it."""

import subprocess
import sys

import pytest

SWEEP = """
import sys
sys.path[:] = {path!r}
from chaoskit.agent import nftables, strays
from chaoskit.agent.contract import Site
from chaoskit.agent.host import Host
from chaoskit.agent.ledger import Ledger

class Registry:
    def kinds(self):
        return {{}}

for name in ("filter", "chaoskit", "chaoskit_lab", "not_chaoskit_x", "chaoskit_x-y", "chaoskit_canary_0a"):
    nftables.make(nftables.Table("inet", name))
nftables.make(nftables.Table("ip", "nat"))
swept, unread = strays.sweep(Registry(), Host(Site("n1")), Ledger({ledger!r}), list)
print(*((one.found.stray.tag["name"], one.gone) for one in swept), unread)
print(*sorted(table.name for table in nftables.tables()))
"""


@pytest.mark.row("L18", "L20")
def test_of_all_tables_only_those_of_our_faults_are_swept(tmp_path):
    """An operator's tables, those of other tools and the lab's own stand as before; ours alone is gone, by its whole name."""
    code = SWEEP.format(path=sys.path, ledger=str(tmp_path / "ledger"))
    done = subprocess.run(["unshare", "--net", sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout.splitlines() == [
        "('chaoskit_canary_0a', True) []",
        "chaoskit chaoskit_lab chaoskit_x-y filter nat not_chaoskit_x",
    ], done.stderr
