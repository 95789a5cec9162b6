"""Whose servers a capped storage shares, over a mount table of ours."""

from dataclasses import replace

import pytest

from chaoskit.agent import control_path, mounts, storage_checks
from chaoskit.agent.contract import CONTROL_PATH, Site
from chaoskit.agent.mounts import Mount
from chaoskit.agent.slowing import InTheWayError

HOME = Mount(1, "0:50", "/", "/", "nfs4", "files:/home", "rw,proto=rdma,addr=10.1.0.2")
CHECKPOINTS = Mount(2, "0:51", "/", "/ckpt", "nfs4", "10.1.0.2:/ckpt", "rw,proto=tcp,addr=10.1.0.2")


def test_a_home_whose_servers_are_not_all_known_shares_the_one_that_is(monkeypatch):
    monkeypatch.setattr(mounts, "table", lambda: [HOME])

    with pytest.raises(InTheWayError, match=r"lies on the same servers \(files:/home\)"):
        storage_checks.refuse_homes(Site("n"), {0}, CHECKPOINTS, ["10.1.0.2"])

    storage_checks.refuse_homes(Site("n"), {0}, CHECKPOINTS, ["10.1.0.3"])


def test_an_experiment_may_allow_to_slow_what_serves_the_homes_as_well(monkeypatch):
    monkeypatch.setattr(mounts, "table", lambda: [HOME])

    storage_checks.refuse_homes(Site("n", allow=(CONTROL_PATH,)), {0}, CHECKPOINTS, ["10.1.0.2"])


@pytest.mark.parametrize(
    ("site", "words"),
    [
        (Site("n", controller_addresses=("10.1.0.2",)), "10.1.0.2 is also where the SSH connection comes from"),
        (Site("n", control_addresses=("10.1.0.2",)), "10.1.0.2 is also this node itself"),
        (Site("n"), "10.1.0.3 is also a name server of this node"),
        (Site("n"), "10.1.0.4 is also its scheduler 10.1.0.4"),
    ],
)
def test_storage_that_is_also_what_the_node_hangs_by_is_not_slowed(site, words, tmp_path, monkeypatch):
    """A cap toward it would slow more than saves; only what this node itself is can never be allowed."""
    (tmp_path / "resolv.conf").write_text("nameserver 10.1.0.3\n")
    (tmp_path / "slurm.conf").write_text("SlurmctldHost=ctl(10.1.0.4)\n")
    monkeypatch.setattr(control_path, "RESOLVERS", [tmp_path / "resolv.conf"])
    monkeypatch.setattr(control_path, "SLURM", [tmp_path / "slurm.conf"])
    server = words.split()[0]

    with pytest.raises(InTheWayError, match=words) as refused:
        storage_checks.refuse_lifelines(site, [server])
    assert "allow: [control_path]" in refused.value.hint

    allowing = replace(site, allow=(CONTROL_PATH,))
    if site.control_addresses:
        with pytest.raises(InTheWayError, match=words):
            storage_checks.refuse_lifelines(allowing, [server])
    else:
        storage_checks.refuse_lifelines(allowing, [server])
    storage_checks.refuse_lifelines(site, ["10.1.0.9"])
