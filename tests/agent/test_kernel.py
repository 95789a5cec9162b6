"""Which features a kernel has, on roots of files as distributions lay them out: what is there, what is not, what nobody knows."""

import gzip
from pathlib import Path

import pytest

from chaoskit.agent.kernel import FEATURES, Kernel

pytestmark = pytest.mark.row("L48")
REL = "6.1.0-test"
MODULES = f"lib/modules/{REL}"
V1 = "30 20 0:30 / /sys/fs/cgroup/{0} rw,relatime shared:9 - cgroup cgroup rw,{0}\n"
V2 = "30 20 0:30 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.fixture
def kernel(tmp_path):
    """Return a function that lays out files, and then the kernel that they tell of."""

    def make(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").format(rel=REL)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return Kernel(str(tmp_path), REL)

    return make


def lay(kernel, files):
    return kernel(**{name.replace("/", "__"): text for name, text in files.items()})


CONFIG = gzip.compress(b"# CONFIG_NET_SCH_NETEM is not set\nCONFIG_NET_SCH_HTB=y\nCONFIG_NET_CLS_U32=m\n")
LISTS = {f"{MODULES}/modules.builtin": "kernel/net/sched/sch_htb.ko\n", f"{MODULES}/modules.dep": "kernel/net/sched/sch-netem.ko.zst: \n"}


@pytest.mark.parametrize(
    ("files", "feature", "state", "why"),
    [
        ({}, "sch_netem", "unknown", "neither its modules nor its configuration can be read"),
        ({"proc/modules": "sch_netem 20480 0 - Live 0x0\n"}, "sch_netem", "there", ""),
        ({"sys/module/sch_netem/refcnt": "0"}, "sch_netem", "there", ""),
        (LISTS, "sch_htb", "there", ""),
        (LISTS, "sch_netem", "there", "as a module"),
        (LISTS, "cls_u32", "missing", f"kernel {REL} has no module of that name"),
        ({f"{MODULES}/modules.dep": "a.ko:\n"}, "cls_u32", "unknown", "neither its modules nor its configuration can be read"),
        ({**LISTS, "proc/sys/kernel/modules_disabled": "1\n"}, "sch_netem", "missing", "none may be loaded any more"),
        ({**LISTS, "proc/sys/kernel/modules_disabled": "0\n"}, "sch_netem", "there", "as a module"),
        (
            {**LISTS, "etc/modprobe.d/netem.conf": "# no\nblacklist sch_netem\n"},
            "sch_netem",
            "missing",
            "/etc/modprobe.d/netem.conf keeps it from",
        ),
        ({**LISTS, "etc/modprobe.d/x.conf": "install sch-netem /bin/true\n"}, "sch_netem", "missing", "x.conf keeps it from being loaded"),
        ({**LISTS, "etc/modprobe.d/x.conf": "blacklist sch_netem2\n#blacklist sch_netem\n"}, "sch_netem", "there", "as a module"),
        ({"proc/config.gz": CONFIG}, "sch_netem", "missing", "built without CONFIG_NET_SCH_NETEM"),
        ({"proc/config.gz": CONFIG}, "sch_htb", "there", ""),
        ({"proc/config.gz": CONFIG}, "cls_u32", "missing", "CONFIG_NET_CLS_U32=m, and the module is not installed"),
        ({f"boot/config-{REL}": "CONFIG_DM_DELAY=y\n"}, "dm_delay", "there", ""),
        ({"boot/config-5.0.0-other": "CONFIG_DM_DELAY=y\n"}, "dm_delay", "unknown", "neither"),
        ({"proc/config.gz": b"torn"}, "sch_netem", "unknown", "neither"),
        ({"proc/sysrq-trigger": ""}, "sysrq", "there", ""),
        ({}, "sysrq", "missing", "it has no /proc/sysrq-trigger"),
        ({}, "some_module_of_a_third_party", "unknown", "neither"),
    ],
)
def test_a_module_or_an_option(kernel, files, feature, state, why):
    """Nothing is guessed: what no file tells of is unknown, and a list of another release tells nothing of this one."""
    found = lay(kernel, files).find(feature)

    assert (found.state, why in found.why) == (state, True), found
    assert bool(found.do) == (state != "there")


QUOTA = {"proc/sys/kernel/sched_cfs_bandwidth_slice_us": "5000\n"}


@pytest.mark.parametrize(
    ("files", "feature", "state", "why"),
    [
        ({**QUOTA, "proc/self/mountinfo": V1.format("cpu")}, "cpu_quota", "there", ""),
        ({"proc/self/mountinfo": V1.format("cpu")}, "cpu_quota", "missing", "it has no /proc/sys/kernel/sched_cfs"),
        (
            {**QUOTA, "proc/self/mountinfo": V1.format("cpuset")},
            "cpu_quota",
            "missing",
            "no mounted hierarchy of control groups has the cpu",
        ),
        (QUOTA, "cpu_quota", "unknown", "its control groups cannot be read"),
        ({**QUOTA, "proc/self/mountinfo": V2, "sys/fs/cgroup/cgroup.controllers": "cpu io\n"}, "cpu_quota", "there", ""),
        (
            {**QUOTA, "proc/self/mountinfo": V2, "sys/fs/cgroup/cgroup.controllers": "io\n"},
            "cpu_quota",
            "missing",
            "has the cpu controller",
        ),
        (
            {"proc/self/mountinfo": V1.format("blkio"), "sys/fs/cgroup/blkio/blkio.throttle.write_bps_device": ""},
            "disk_throttle",
            "there",
            "",
        ),
        (
            {
                "proc/self/mountinfo": V2,
                "sys/fs/cgroup/cgroup.controllers": "io",
                "sys/fs/cgroup/a.slice/io.max": "",
            },
            "disk_throttle",
            "there",
            "",
        ),
        ({"proc/self/mountinfo": V2, "sys/fs/cgroup/cgroup.controllers": "io"}, "disk_throttle", "unknown", "neither"),
        (
            {"proc/self/mountinfo": V1.format("cpu"), "proc/cgroups": "blkio\t0\t1\t0\n"},
            "disk_throttle",
            "missing",
            "has the io controller",
        ),
    ],
)
def test_what_control_groups_can_do(kernel, files, feature, state, why):
    found = lay(kernel, files).find(feature)

    assert (found.state, why in found.why) == (state, True), found


def test_a_controller_that_is_switched_off_says_how_to_switch_it_on(kernel):
    found = lay(kernel, {"proc/self/mountinfo": V1.format("cpu"), "proc/cgroups": "blkio\t0\t1\t0\n"}).find("disk_throttle")

    assert "cgroup_disable=blkio" in found.do


def loaded():
    path = Path("/proc/modules")
    return path.read_text(encoding="ascii") if path.exists() else ""


def test_of_this_very_machine_each_feature_is_known_and_nothing_is_loaded_for_it():
    before = loaded()
    states = {name: Kernel().find(name).state for name in FEATURES}

    assert set(states.values()) <= {"there", "missing"}, states
    assert before == loaded()


@pytest.mark.parametrize(
    ("files", "dormant"),
    [
        ({f"{MODULES}/modules.dep": "kernel/net/netfilter/nf_tables.ko.zst: \n"}, True),
        ({f"{MODULES}/modules.dep": "kernel/net/netfilter/nf_tables.ko.zst: \n", "sys/module/nf_tables/refcnt": "1\n"}, False),
        ({f"{MODULES}/modules.dep": "kernel/net/netfilter/nf_tables.ko: \n", "proc/modules": "nf_tables 1 0 - Live 0x0\n"}, False),
        ({f"{MODULES}/modules.dep": "\n", f"{MODULES}/modules.builtin": "kernel/net/netfilter/nf_tables.ko\n"}, False),
        ({}, False),
    ],
    ids=["not loaded", "loaded", "listed as loaded", "built in", "nobody knows"],
)
def test_what_is_a_module_that_is_not_loaded_is_not_asked_for(kernel, files, dormant):
    """A look for what was left behind loads nothing; where nobody knows, it is made."""
    assert kernel(**files).dormant("nf_tables") is dormant
