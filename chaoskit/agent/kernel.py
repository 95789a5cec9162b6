"""
Which features this node's kernel has, found without loading or trying anything.

A kernel without `sch_netem` refuses a delay at best; a tool that does not look reports one that never was. So each fault
states its features (`Needs.features`), and a feature is there, or comes by itself when it is asked for, or is missing, or
nobody can say: read from what the kernel shows in /proc and /sys, the lists of modules that belong to this very release,
and its configuration. Standard library only, Python 3.8.
"""

import glob
import gzip
import os
import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from chaoskit.agent import mounts
from chaoskit.agent.mounts import Mount

THERE, MISSING, UNKNOWN = "there", "missing", "unknown"

MODPROBE = ("etc/modprobe.d", "run/modprobe.d", "usr/local/lib/modprobe.d", "usr/lib/modprobe.d", "lib/modprobe.d")
PACKAGES = "kernel-modules-extra or linux-modules-extra"
"""In which packages distributions keep the modules that few people need."""


class Feature(NamedTuple):
    """
    How a feature is known: its module (empty when it can only be built in), its option, and a file that proves it.

    `controller` is a cgroup controller that must be there, and `file` one that its groups have then.
    """

    module: str = ""
    option: str = ""
    proof: str = ""
    controller: str = ""
    file: str = ""


FEATURES: Dict[str, Feature] = {
    "nf_tables": Feature("nf_tables", "CONFIG_NF_TABLES"),
    "sch_netem": Feature("sch_netem", "CONFIG_NET_SCH_NETEM"),
    "sch_htb": Feature("sch_htb", "CONFIG_NET_SCH_HTB"),
    "sch_tbf": Feature("sch_tbf", "CONFIG_NET_SCH_TBF"),
    "cls_u32": Feature("cls_u32", "CONFIG_NET_CLS_U32"),
    "tcp_diag": Feature("tcp_diag", "CONFIG_INET_TCP_DIAG"),
    "dm_delay": Feature("dm_delay", "CONFIG_DM_DELAY"),
    "dm_flakey": Feature("dm_flakey", "CONFIG_DM_FLAKEY"),
    "sysrq": Feature("", "CONFIG_MAGIC_SYSRQ", proof="proc/sysrq-trigger"),
    "cpu_quota": Feature("", "CONFIG_CFS_BANDWIDTH", "proc/sys/kernel/sched_cfs_bandwidth_slice_us", "cpu"),
    "disk_throttle": Feature("", "CONFIG_BLK_DEV_THROTTLING", "", "blkio", "blkio.throttle.write_bps_device"),
}
"""Those that need more than the name of their module; any other name is taken for a module's."""

V2_NAMES = {"blkio": "io"}
"""What v2 calls the controllers of v1 that it has under another name."""


class Found(NamedTuple):
    """What is known of a feature: whether it is there, why it is not or why nobody knows, and what to do."""

    state: str
    why: str = ""
    do: str = ""


class Kernel:
    """
    The kernel of this node.

    Args:
        root: Where its files are looked for.
        release: Its release, as `uname -r` says it.
    """

    def __init__(self, root: str = "/", release: str = "") -> None:
        self.root = root
        self.release = release or os.uname().release
        self._options: Optional[Dict[str, str]] = None

    def find(self, name: str) -> Found:
        """Say whether a feature is there."""
        feature = FEATURES.get(name, Feature(name))
        if feature.controller and (lack := self._lacks_controller(feature)):
            return lack
        for look in (self._shown, self._module, self._configured):
            found = look(feature)
            if found is not None:
                return found
        return Found(
            UNKNOWN, "neither its modules nor its configuration can be read", "see `zcat /proc/config.gz` and `modinfo " + name + "`"
        )

    def dormant(self, module: str) -> bool:
        """Whether something is a module that is not loaded, so that nothing can stand there and asking the kernel for it would load it."""
        shown = os.path.isdir(self._path("sys/module", module)) or module in self._loaded()
        folder = "lib/modules/{}".format(self.release)
        if shown or module in map(_module_name, self._lines(folder + "/modules.builtin")):
            return False
        return module in map(_module_name, self._lines(folder + "/modules.dep"))

    # -- what the kernel shows -------------------------------------------------------------------------------------

    def _shown(self, feature: Feature) -> Optional[Found]:
        if feature.proof:
            there = os.path.exists(self._path(feature.proof))
            return Found(THERE) if there else Found(MISSING, "it has no /{}".format(feature.proof), _rebuild(feature))
        if feature.file and self._group_files(feature):
            return Found(THERE)
        if feature.module and (os.path.isdir(self._path("sys/module", feature.module)) or feature.module in self._loaded()):
            return Found(THERE)
        return None

    def _loaded(self) -> List[str]:
        return [line.split(" ", 1)[0] for line in self._lines("proc/modules")]

    # -- modules ---------------------------------------------------------------------------------------------------

    def _module(self, feature: Feature) -> Optional[Found]:
        if not feature.module:
            return None
        folder = "lib/modules/{}".format(self.release)
        builtin, listed = self._lines(folder + "/modules.builtin"), self._lines(folder + "/modules.dep")
        if feature.module in map(_module_name, builtin):
            return Found(THERE)
        if feature.module in map(_module_name, listed):
            return self._loadable(feature.module)
        if builtin and listed:
            do = "install the modules of {}, such as {}, or choose a fault that does not need it".format(self.release, PACKAGES)
            return Found(MISSING, "kernel {} has no module of that name".format(self.release), do)
        return None

    def _loadable(self, module: str) -> Found:
        if self._lines("proc/sys/kernel/modules_disabled") == ["1"]:
            return Found(
                MISSING, "it is a module, and none may be loaded any more", "load it at boot, before kernel.modules_disabled is set"
            )
        blocked = self._blocked(module)
        if blocked:
            return Found(MISSING, "it is a module, and {} keeps it from being loaded".format(blocked), "as root: modprobe " + module)
        return Found(THERE, "as a module")

    def _blocked(self, module: str) -> Optional[str]:
        """Return the file that lists a module as not to be loaded; None when there is none."""
        words = re.compile(r"\s*(blacklist\s+{0}\s*(#|$)|install\s+{0}\s+\S*/(true|false)\b)".format(module.replace("_", "[-_]")))
        for folder in MODPROBE:
            for path in sorted(glob.glob(self._path(folder, "*.conf"))):
                if any(words.match(line) for line in _lines_of(path)):
                    return "/" + os.path.relpath(path, self.root)
        return None

    # -- configuration ---------------------------------------------------------------------------------------------

    def _configured(self, feature: Feature) -> Optional[Found]:
        options = self._config()
        if not options or not feature.option:
            return None
        value = options.get(feature.option, "n")
        if value == "y":
            return Found(THERE)
        if value == "m":
            do = "install the modules of {}, such as {}".format(self.release, PACKAGES)
            return Found(MISSING, "{}=m, and the module is not installed".format(feature.option), do)
        return Found(MISSING, "it was built without {}".format(feature.option), _rebuild(feature))

    def _config(self) -> Dict[str, str]:
        if self._options is None:
            places = ("proc/config.gz", "boot/config-" + self.release, "lib/modules/{}/config".format(self.release))
            lines = next((found for place in places if (found := self._lines(place))), [])
            pairs = (line.partition("=") for line in lines if line.startswith("CONFIG_"))
            self._options = {name: value for name, _, value in pairs}
        return self._options

    # -- control groups --------------------------------------------------------------------------------------------

    def _lacks_controller(self, feature: Feature) -> Optional[Found]:
        name = V2_NAMES.get(feature.controller, feature.controller)
        if self._tops(feature.controller):
            return None
        listed = self._lines("proc/cgroups")
        if not listed and not self._mounts():
            return Found(UNKNOWN, "its control groups cannot be read", "see /proc/cgroups")
        off = [line for line in listed if line.split("\t")[0] == feature.controller and line.split("\t")[-1] == "0"]
        do = "take cgroup_disable={} from the kernel's command line".format(feature.controller)
        if not off:
            do = "mount it: `mount -t cgroup2 none /sys/fs/cgroup`, or in v1 `mount -t cgroup -o {0} {0} /sys/fs/cgroup/{0}`".format(name)
        return Found(MISSING, "no mounted hierarchy of control groups has the {} controller".format(name), do)

    def _tops(self, controller: str) -> List[Tuple[str, int]]:
        """Return where a controller is mounted, and as which version."""
        found = []
        for mount in self._mounts():
            if mount.type == "cgroup" and mount.has(controller):
                found.append((mount.point, 1))
            elif mount.type == "cgroup2":
                words = " ".join(self._lines(mount.point.lstrip("/") + "/cgroup.controllers")).split()
                found += [(mount.point, 2)] if V2_NAMES.get(controller, controller) in words else []
        return found

    def _group_files(self, feature: Feature) -> bool:
        """Whether the groups of a controller have the file that the feature gives them; in v2 only those below the top have it."""
        for point, version in self._tops(feature.controller):
            pattern = feature.file if version == 1 else "*/io.max"
            if glob.glob(self._path(point.lstrip("/"), pattern)):
                return True
        return False

    def _mounts(self) -> List[Mount]:
        return [mount for mount in map(mounts.parsed, self._lines("proc/self/mountinfo")) if mount.type in ("cgroup", "cgroup2")]

    # -- files -----------------------------------------------------------------------------------------------------

    def _path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    def _lines(self, path: str) -> List[str]:
        return _lines_of(self._path(path))


def _lines_of(path: str) -> List[str]:
    """Return a file's lines, none when it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        text = gzip.decompress(data) if path.endswith(".gz") else data
    except (OSError, EOFError):
        return []
    return text.decode("utf-8", "replace").splitlines()


def _module_name(line: str) -> str:
    """Return the module of a line of modules.builtin or modules.dep, such as `kernel/net/sched/sch_netem.ko.zst: `."""
    return os.path.basename(line.split(":", 1)[0]).split(".ko", 1)[0].replace("-", "_")


def _rebuild(feature: Feature) -> str:
    return "choose a fault that does not need it, or boot a kernel with {}".format(feature.option or feature.module)
