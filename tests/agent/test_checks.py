"""Nobody else's job is harmed: real processes of another user, in a job's cgroup."""

import os
import subprocess
import sys

import pytest

from chaoskit.agent import cgroups
from chaoskit.agent.checks import check_site, other_users, strangers, user_ids
from chaoskit.agent.contract import Refusal, Site
from chaoskit.agent.host import Host
from chaoskit.agent.paths import Paths

pytestmark = pytest.mark.alone

UID = 4242

JOB = """
import os, sys
for root in sys.argv[2:]:
    try:
        os.makedirs(root + "/slurm/job_" + sys.argv[1], exist_ok=True)
        open(root + "/slurm/job_" + sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
    except OSError:
        pass
os.setgid(4242); os.setuid(4242)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def job():
    """A process of another user in a Slurm job's cgroup."""
    name = str(os.getpid())
    roots = [root for root in cgroups.roots() if not os.path.exists(os.path.join(root, "cpuset.cpus"))]
    child = subprocess.Popen([sys.executable, "-c", JOB, name, *roots], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "up\n"
    yield child
    child.communicate()
    for root in roots:
        cgroups.remove_tree(os.path.join(root, "slurm"))


def test_another_users_job_refuses(job):
    """It is named; the owner's own account, and a site that says `shared`, do not refuse."""
    assert [one.pid for one in strangers(frozenset())] == [job.pid]
    assert "uid 4242" in other_users(frozenset())

    site, host, paths = Site("n1"), Host(Site("n1")), Paths()
    with pytest.raises(Refusal, match=f"pid {job.pid} of uid 4242 in ") as refusal:
        check_site(site, host, paths, frozenset(), "rank_kill")
    assert "shared: accept" in str(refusal.value)
    check_site(site, host, paths, frozenset([UID]), "rank_kill")
    check_site(Site("n1", shared=True), host, paths, frozenset(), "rank_kill")


def test_a_process_outside_any_job_refuses_nothing():
    """A login shell or a daemon of another user is mentioned, not refused."""
    child = subprocess.Popen([sys.executable, "-c", JOB, "unused"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "up\n"
    found = strangers(frozenset())
    names = other_users(frozenset())
    child.communicate()

    assert found == []
    assert "uid 4242" in names


def test_users_are_found_by_name():
    """No such user is no id, so that nobody is excused by a typo."""
    assert (user_ids("root"), user_ids("no-such-user"), user_ids(None)) == (frozenset([0]), frozenset(), frozenset())
