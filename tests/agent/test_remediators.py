"""Who else acts on a node: recognised by real processes and by files, and what each would do about a sign."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from chaoskit.agent.contract import Sign, Site
from chaoskit.agent.host import Host
from chaoskit.agent.remediators import (
    DOES,
    DRAINS,
    MARKS,
    NOTHING,
    PROCESSES,
    REBOOTS,
    REPLACES,
    REQUEUES,
    TABLE,
    Remediator,
    found,
    reactions,
    slurm_settings,
)

pytestmark = pytest.mark.row("L42")

HOST = Host(Site("n1"))
CONF = """\
# a comment: SlurmdTimeout=1
SlurmdTimeout = 120  # seconds
HealthCheckProgram=/usr/sbin/nhc
healthcheckinterval=300
UnkillableStepTimeout=180
ReturnToService=1
"""
SHOWN = """\
Configuration data as of 2026-12-01T03:00:00
HealthCheckInterval     = 300 sec
HealthCheckProgram      = (null)
ResumeProgram           = /opt/slurm/resume.sh
SlurmdTimeout           = 300 sec
"""


@pytest.fixture
def machine(tmp_path):
    """Return a function that makes a machine's /proc of command lines, and files of other paths."""

    def make(commands=(), **files):
        for pid, command in enumerate(commands, 100):
            folder = tmp_path / "proc" / str(pid)
            folder.mkdir(parents=True)
            (folder / "cmdline").write_bytes("\0".join(command).encode() + b"\0")
        (tmp_path / "proc").mkdir(exist_ok=True)
        for path, text in files.items():
            file = tmp_path / path.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return str(tmp_path)

    return make


def test_a_real_process_is_recognised_by_its_program(tmp_path):
    """Not by its arguments, nor by another's that only names it."""
    program = tmp_path / "gpud"
    shutil.copy(shutil.which("sleep"), program)
    before = {one.name for one in found(HOST)}
    process = subprocess.Popen([program, "60"])
    try:
        until = time.monotonic() + 10.0
        while not (here := [each for each in found(HOST) if each.name == "gpud"]) and time.monotonic() < until:
            time.sleep(0.05)  # the kernel shows the new program's arguments a moment later
        (one,) = here
    finally:
        process.kill()
        process.wait()

    assert "gpud" not in before
    assert f"gpud (process {process.pid})" == one.seen


def test_every_known_program_is_found_and_a_script_by_its_own_name(machine):
    commands = [[f"/usr/sbin/{programs[0]}", "-D"] for programs in PROCESSES.values()]
    root = machine([*commands, ["/usr/bin/grep", "slurmd"], ["/usr/bin/python3", "/opt/x/other"]])

    assert [one.name for one in found(HOST, root)] == list(PROCESSES)
    root = str(Path(machine([]), "two"))
    Path(root, "proc", "7").mkdir(parents=True)
    Path(root, "proc", "7", "cmdline").write_bytes(b"/usr/bin/python3.11\0/opt/healthagent/bin/healthagent\0")
    assert [one.name for one in found(HOST, root)] == ["healthagent"]


def test_slurm_tells_its_timeouts_and_its_health_check(machine):
    root = machine([["/usr/sbin/slurmd", "-D"]], **{"etc__slurm__slurm.conf": CONF})
    here = {one.name: one for one in found(HOST, root)}

    assert {"slurm", "nhc"} == set(here)
    settings = here["slurm"].settings
    assert ("120", "180", "1") == tuple(settings[name] for name in ("SlurmdTimeout", "UnkillableStepTimeout", "ReturnToService"))
    assert ("/usr/sbin/nhc" in here["nhc"].seen, "300") == (True, here["nhc"].settings["interval"])
    [lost, stuck] = reactions([Sign.NODE_LOST], [here["slurm"]]) + reactions([Sign.STORAGE_SLOW], [here["slurm"]])
    assert (REQUEUES, True, True) == (lost.does, "SlurmdTimeout (120 s)" in lost.says, "ReturnToService=1" in lost.says)
    assert (DRAINS, True) == (stuck.does, "180 s" in stuck.says)
    assert "every 300 s" in reactions([Sign.LINK_DOWN], [here["nhc"]])[0].says


def test_what_scontrol_shows_is_read_like_the_file():
    settings = slurm_settings(SHOWN)

    assert ("300", "300", "", "/opt/slurm/resume.sh") == tuple(
        settings[name] for name in ("SlurmdTimeout", "HealthCheckInterval", "HealthCheckProgram", "ResumeProgram")
    )
    assert "60" == settings["UnkillableStepTimeout"], "what is not shown is Slurm's own default"
    (lost,) = reactions([Sign.NODE_LOST], [Remediator("slurm", "", settings)])
    assert REPLACES == lost.does, "ResumeProgram may give it another machine"


def test_nvsentinel_replaces_for_a_port_and_not_where_there_is_none(machine):
    """It looks at RDMA devices only: a link that is none of those means nothing to it."""
    root = machine([["/usr/local/bin/nic-health-monitor"]])
    (without,) = found(HOST, root)
    Path(root, "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    (with_,) = found(HOST, root)

    assert [] == reactions([Sign.LINK_DOWN], [without])
    assert [REPLACES] == [one.does for one in reactions([Sign.LINK_DOWN], [with_])]
    assert [MARKS] == [one.does for one in reactions([Sign.GPU_SLOW], [with_])]


def test_watchdogs_are_found_by_their_settings(machine):
    files = {"etc__watchdog.conf": "interface = eth2\n", "etc__systemd__system.conf.d__a.conf": "[Manager]\nRuntimeWatchdogSec=30s\n"}
    root = machine([["/usr/sbin/watchdog"]], **files)
    here = found(HOST, root)

    assert ["watchdog", "systemd watchdog"] == [one.name for one in here]
    assert [REBOOTS] == [one.does for one in reactions([Sign.LINK_DOWN], here)]
    assert [] == reactions([Sign.GPU_SLOW], here)


def test_the_worst_comes_first_and_nobody_is_unknown():
    """Every remediator has a row, and each row gives a word that there is."""
    settings = {**slurm_settings(""), "rdma": "mlx5_0", "interval": "60", "watches": "ping = 10.0.0.1"}
    here = [Remediator(name, "", settings) for name in TABLE]
    for sign in Sign:
        does = [DOES.index(one.does) for one in reactions([sign], here)]
        assert does == sorted(does, reverse=True)
        assert NOTHING not in [one.does for one in reactions([sign], here)]
    assert set(PROCESSES) <= set(TABLE)


def test_a_machine_that_cannot_be_read_has_nobody(tmp_path):
    (tmp_path / "proc").mkdir()
    assert [] == found(HOST, str(tmp_path))
