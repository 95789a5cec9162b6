"""
The storage behind a path becomes slow for a while, as when a file server is overloaded or a disk is about to fail.

However it is attached. A local disk is throttled for the training's own control groups (on cgroup v1 only what the
training writes by O_DIRECT or syncs itself; what the page cache writes back later escapes it). Network storage is capped on
the way to all of its servers, and to nothing else: what this node *sends*, so that saves are slow, and reads hardly.

The blast radius of a capped network storage is every client of it on this node, and whatever else those servers serve the
node: files that other people have open there are a refusal, unless the inventory says that the node is shared. While the
cap stands, all that the device sends passes one queue; a NIC of hundreds of Gbit/s that carries training traffic too may
feel that lock.

The proof is a save: a small hidden file, written, synced and renamed as one and timed as one, by the training's user and
through its mounts. `prepare` times some before the fault (they come and go: nothing of them stays), the witness one while
it is applied, and `gone` one after it.
"""

import contextlib
import os
import statistics
import time
import uuid
from dataclasses import dataclass
from typing import ClassVar, List, Optional, Sequence, Tuple

from chaoskit.agent import holders, mounts, procs, savetime, slowing, storage, storage_checks, viewers
from chaoskit.agent.blkio import MissingError
from chaoskit.agent.checks import user_ids
from chaoskit.agent.contract import Evidence, Fault, Lifetime, Needs, Refusal, Sign, Stray, Undo, seconds, size
from chaoskit.agent.host import Host
from chaoskit.agent.mounts import Mount
from chaoskit.agent.procs import Process
from chaoskit.agent.qdiscs import words
from chaoskit.agent.savetime import HangsError, Viewer
from chaoskit.agent.slowing import InTheWayError, Means
from chaoskit.errors import NodeError

PROBE_TIME = 3.0
"""Seconds that a probe takes at `rate`: long against the noise of a save, short against any hold."""
SMALLEST, LARGEST = 256 << 10, 256 << 20
"""Bytes of a probe."""
FITS = 0.7
"""The share of what a probe should take at `rate` that it must take at least: a burst goes ahead of the cap."""
BACK = 3.0
"""How many times its earlier time a save may take and count as back to normal."""
PROBES = 3
LOOK_WITHIN, BEFORE_WITHIN, WITNESS_WITHIN = 5.0, 3.0, 9.0
"""An answer is awaited for fifteen seconds, and a child that hangs takes some of them to end."""
PREPARE_WITHIN = 9.0
"""Seconds after which `prepare` begins nothing more: an answer is awaited for twenty."""
SETTLE_WITHIN = 5.0
"""Seconds that `gone` waits for the save time to come back: what had queued up must first drain."""
WATCH = 10.0
"""Seconds that `exposed` waits for a save of the training's."""
FLUSH = 2.0
"""Seconds in which a save that has its full size by now has to reach the storage: until then it may be in memory alone."""
SWEEP_WITHIN = 1.0
SHORTEST = 8.0
NOISE = 64 << 10
"""Bytes that a node may send to a server without saving anything."""


@dataclass(frozen=True)
class StorageSlow(Fault):
    """Slow the storage behind a path: a disk by a throttle, network storage by a rate cap toward all its servers."""

    rate: float = size()
    """What may still be written in a second."""
    path: Optional[str] = None
    """A directory on the storage; left out, that of the training's checkpoints."""
    ratio: float = 5.0
    """How many times as long as before a save must take for the fault to count as present."""
    hold: float = seconds(20.0)
    """How long the storage stays slow."""

    lifetime: ClassVar[Lifetime] = Lifetime.VOLATILE
    needs: ClassVar[Needs] = Needs(
        capabilities=("NET_ADMIN", "SYS_CHROOT", "SYS_PTRACE"), features=(("sch_htb", "cls_u32", "tcp_diag"), ("disk_throttle",))
    )
    signs = (Sign.STORAGE_SLOW,)
    needs_training: ClassVar[bool] = True
    witness_lasts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse parameters that make no sense together. Raises ValueError."""
        if self.path is not None and not self.path.startswith("/"):
            raise ValueError("path must be absolute, not {!r}".format(self.path))
        if self.rate < 1024:
            raise ValueError("rate must be at least 1 KiB a second")
        if self.ratio < 2:
            raise ValueError("ratio must be at least 2: a smaller one drowns in the noise of saves")
        if self.hold < SHORTEST:
            raise ValueError("hold must be at least {:g} s, so that a probe fits into it".format(SHORTEST))

    def holds(self) -> Tuple[Tuple[float, float], ...]:
        """Return the one span."""
        return ((0.0, self.hold),)

    def resource(self, undo: Undo) -> Tuple[str, ...]:
        """Lock the mount, and the devices or the disk: a link must not flap under a cap."""
        return ("mount:{}".format(undo["point"]), *slowing.names(undo["means"]))

    def prepare(self, host: Host) -> Undo:
        """Find what is behind the path, refuse what must not or cannot be slowed, and time saves as they are."""
        for name in self.needs.capabilities:
            procs.require_capability(name, host.site.node)
        try:
            return self._prepare(host, host.monotonic() + PREPARE_WITHIN)
        except (storage.UnknownError, InTheWayError, MissingError) as error:
            raise _refusal(host, str(error), error.hint) from error
        except HangsError as error:
            raise _refusal(host, "the storage hangs: {}".format(error), "mend it first") from error

    def _prepare(self, host: Host, end: float) -> Undo:
        asked = self.path or host.site.training.checkpoints
        if not asked:
            raise _refusal(host, "no path is given, and the inventory names no checkpoints", "state `path`, or `checkpoints: {dir: ...}`")
        running = procs.of_training(host.site.training)
        viewer = viewers.of_training(host.site.training, running)
        mount, directory = _mount_at(host, viewer, asked)
        means = self._means(host, mount, viewer, running)
        undo = {
            "boot_id": host.boot_id(),
            "directory": directory,
            "point": mount.point,
            "device": mount.device,
            "storage": "{} ({} {})".format(mount.point, mount.type, mount.source),
            "viewer": viewers.captured(viewer),
            "tag": uuid.uuid4().hex[:12],
            "size": min(max(int(self.rate * PROBE_TIME), SMALLEST), LARGEST),
            "means": means,
            "clients": storage_checks.clients(mount.device)[:20],
        }
        try:
            return {**undo, "before": self._before(host, undo, viewer, end)}
        except Refusal:
            _sweep(undo, viewer)
            raise

    def _means(self, host: Host, mount: Mount, viewer: Viewer, running: Sequence[Process]) -> Means:
        """Capture by what it will be slowed. Raises Refusal, and what `prepare` makes one of."""
        ours = user_ids(host.site.training.user) | {viewer.uid}
        if not storage.network(mount):
            found = storage.disk(mount)
            if not running:
                raise _refusal(host, "no process of the training is on this node, so that there is no group to throttle", "start it first")
            means = slowing.capture_disk(found.device, found.name, [process.pid for process in running], self.rate)
            self._refuse_unless_shared(host, storage_checks.neighbours(ours, [one["group"] for one in means["throttles"]]))
            return means
        servers = storage.servers(mount, str(viewer.pid or "self"))
        storage_checks.refuse_lifelines(host.site, servers)
        storage_checks.refuse_homes(host.site, ours, mount, servers)
        self._refuse_unless_shared(host, storage_checks.strangers(ours, mount.device))
        means = slowing.capture_network(servers)
        told = savetime.trial(servers, self.rate, LOOK_WITHIN)
        if told is not None:
            hint = "load the kernel's modules sch_htb and cls_u32 (modprobe; some distributions keep them in kernel-modules-extra)"
            raise _refusal(host, "this kernel cannot cap a rate toward addresses: {}".format(told), hint)
        return means

    def _refuse_unless_shared(self, host: Host, others: Sequence[str]) -> None:
        if others and not host.site.shared:
            hint = "drain the node, or say `shared: accept` in the inventory"
            raise _refusal(host, "other users would wait too: {}".format("; ".join(others[:3])), hint)

    def _before(self, host: Host, undo: Undo, viewer: Viewer, end: float) -> float:
        """Return the seconds that a save takes as yet: the median of a few, as many as there is time for."""
        slowed = undo["size"] / self.rate
        took: List[float] = []
        while not took or (len(took) < PROBES and host.monotonic() < end):
            try:
                took.append(self._save(undo, viewer, BEFORE_WITHIN))
            except OSError as error:
                hint = "name a directory that the training's user may write to"
                raise _refusal(host, "no probe can be written to {}: {}".format(undo["directory"], error.strerror), hint) from error
            except HangsError:
                took.append(BEFORE_WITHIN)  # or longer
        before = statistics.median(took)
        if slowed < self.ratio * before:
            what = "a save of {:.1f} MB takes {:.2f} s as it is, and {:.2f} s at this rate: not {:g} times as long"
            hint = "state a smaller `rate` or `ratio`; or is the storage slow already?"
            raise _refusal(host, what.format(undo["size"] / 1e6, before, slowed, self.ratio), hint)
        return before

    def inject(self, host: Host, undo: Undo) -> None:
        """Set the throttle, or the cap."""
        try:
            slowing.apply(undo["means"], self.rate)
        except OSError as error:
            raise NodeError(words(error), node=host.site.node, fault="storage_slow", hint="it is taken away again") from error

    def witness(self, host: Host, undo: Undo) -> Evidence:
        """Our limit stands, and a save takes as long as it must at that rate, and `ratio` times as long as before."""
        absent = slowing.unslowed(undo["means"], self.rate)
        if absent:
            return Evidence(False, "our limit does not stand on {}".format(", ".join(absent)))
        took, note = WITNESS_WITHIN, ", or longer"
        try:
            took, note = self._save(undo, viewers.now(undo["viewer"], host.site.training), WITNESS_WITHIN), ""
        except HangsError:
            pass  # so it took that long at least
        except OSError as error:
            return Evidence(False, "no probe could be written to {}: {}".format(undo["directory"], error.strerror))
        # One that was given up has shown no more than that it takes longer, which denies nothing.
        fits, slower = bool(note) or took >= FITS * undo["size"] / self.rate, took >= self.ratio * undo["before"]
        readings = {
            "took": took,
            "before": undo["before"],
            "bytes": undo["size"],
            "rate": self.rate,
            "passed": slowing.passed(undo["means"]),
        }
        told = "a save of {:.1f} MB to {} took {:.2f} s{}, {:.1f} times its {:.3f} s before"
        says = told.format(undo["size"] / 1e6, undo["storage"], took, note, took / undo["before"], undo["before"])
        return Evidence(fits and slower, says if fits else says + ", less than this rate allows: something escapes it", readings)

    def gone(self, host: Host, undo: Undo) -> Evidence:
        """What was captured is back, and so is the time of a save."""
        found = self._gone(host, undo)
        if not found.holds or undo["boot_id"] != host.boot_id():  # else a probe came through, which took along what was left
            _sweep(undo, viewers.now(undo["viewer"], host.site.training))
        return found

    def _gone(self, host: Host, undo: Undo) -> Evidence:
        lacking = slowing.lacking(undo["means"], self.rate)
        if undo["boot_id"] != host.boot_id():
            ours = [what for what in lacking if what.startswith("our cap")]
            return Evidence(not ours, "; ".join(ours) or "the node booted since, which takes every cap and throttle away")
        if lacking:
            return Evidence(False, "; ".join(lacking), {"missing": lacking})
        return self._quick_again(host, undo)

    def _quick_again(self, host: Host, undo: Undo) -> Evidence:
        """Time saves until one is as quick as before, for a few seconds."""
        limit = max(BACK * undo["before"], undo["size"] / self.rate / self.ratio)
        viewer, end = viewers.now(undo["viewer"], host.site.training), host.monotonic() + SETTLE_WITHIN
        times: List[float] = []
        hung = False
        while not times or (times[-1] > limit and not hung and host.monotonic() < end):
            began = host.monotonic()
            try:
                times.append(self._save(undo, viewer, max(end - began, 1.0)))
            except HangsError:
                times.append(host.monotonic() - began)
                hung = True  # whatever the limit: nobody knows how long it would have taken
            except FileNotFoundError:
                return Evidence(
                    True, "nothing slows {} any more; {} is no longer there to time a save in".format(undo["storage"], undo["directory"])
                )
            except OSError as error:
                return Evidence(False, "no probe could be written to {}: {}".format(undo["directory"], error.strerror))
        back = times[-1] <= limit and not hung
        told = "a save of {:.1f} MB to {} takes {:.3f} s{}, and took {:.3f} s before{}"
        or_longer = ", or longer" if hung else ""
        says = told.format(undo["size"] / 1e6, undo["storage"], times[-1], or_longer, undo["before"], "" if back else ": not back")
        return Evidence(back, says, {"took": times, "before": undo["before"], "limit": limit})

    def revert(self, host: Host, undo: Undo) -> None:
        """Take our cap away, or put the throttle back that stood there."""
        del host
        slowing.take_away(undo["means"], self.rate)

    @classmethod
    def strays(cls, host: Host) -> Sequence[Stray]:
        """Every cap of ours, by its handle, and every probe of ours, by its name; queueing and throttles of others are only told."""
        return [*slowing.strays(), *_probes_left(host)]

    @classmethod
    def sweep(cls, host: Host, stray: Stray) -> None:
        """Take away the cap, or the probe."""
        if "device" in stray.tag:
            slowing.take_away({"devices": [{"name": stray.tag["device"]}]}, 0)
        else:
            with contextlib.suppress(FileNotFoundError):  # the folder is gone, and the probe with it
                savetime.sweep(viewers.ours(host.site.training.user), stray.tag["directory"], stray.tag["probe"], LOOK_WITHIN)

    def exposed(self, host: Host, undo: Undo) -> Evidence:
        """The training's processes here hold files open for writing on it, or this node is seen to write the training's save to it."""
        running = procs.of_training(host.site.training)
        if not running:
            return Evidence(False, "no process of the training is on this node")
        held = holders.writers(undo["device"], running)
        if held:
            return Evidence(True, "{} of the training has {} open for writing".format(held[0].process.pid, held[0].path))
        saves = host.site.training.checkpoints
        if saves is None:
            return Evidence(
                False, "the training has nothing open for writing on {}, and the inventory names no checkpoints".format(undo["storage"])
            )
        viewer = viewers.now(undo["viewer"], host.site.training)
        try:
            mount, directory = _mount_at(host, viewer, saves)
        except Refusal as error:  # as where another node saves to a disk of its own
            return Evidence(False, "the training does not save from this node: {}".format(error.what))
        if mount.device != undo["device"]:
            other = "{} ({} {})".format(mount.point, mount.type, mount.source)
            return Evidence(False, "the training saves to {} on {}, and not to {}".format(saves, other, undo["storage"]))
        return _watched(host, undo, viewer, directory, mount)

    def _save(self, undo: Undo, viewer: Viewer, within: float) -> float:
        return savetime.save(viewer, undo["directory"], undo["tag"], undo["size"], within, slowing.joins(undo["means"]))


def _sweep(undo: Undo, viewer: Viewer) -> None:
    """Remove what a probe left that had to be killed."""
    # Storage that hangs, or is gone or read-only by now, keeps it: a hidden file, and no reason to lose the verdict beside it.
    with contextlib.suppress(HangsError, OSError):
        savetime.sweep(viewer, undo["directory"], undo["tag"], SWEEP_WITHIN)


def _probes_left(host: Host) -> List[Stray]:
    """Return the probes that lie in the folder of checkpoints and are older than any that is just being written."""
    directory = host.site.training.checkpoints
    if directory is None:
        return []
    try:
        ident, probes = savetime.left(viewers.ours(host.site.training.user), directory, LOOK_WITHIN)
    except FileNotFoundError:
        return []
    except HangsError as error:
        raise NodeError("{}: {}".format(directory, error), node=host.site.node, fault="storage_slow") from error
    point = next((mount.point for mount in mounts.table() if mount.ident == ident), directory)
    return [
        Stray("mount:{}".format(point), "a probe of ours, {}, lies in {}".format(savetime.PROBE.format(tag), folder), ours=True,
              tag={"directory": folder, "probe": tag})
        for folder, tag in probes
    ]  # fmt: skip


def _watched(host: Host, undo: Undo, viewer: Viewer, directory: str, mount: Mount) -> Evidence:
    """
    Look whether a save comes, and whether the training sends it from here; where none comes, whether it has since it began.

    What this node sends may be another job's, and what the training writes may go elsewhere: it takes both. How much of a
    save is this node's nobody knows, since many nodes may each write a shard of it.
    """
    sent, wrote = slowing.sent(undo["means"]), holders.wrote(procs.of_training(host.site.training))
    try:
        seen = savetime.watch(viewer, directory, WATCH, WATCH + LOOK_WITHIN)
    except (OSError, HangsError) as error:
        return Evidence(False, "{} cannot be watched: {}".format(directory, error))
    if seen["saved"]:
        _await_flush(undo, sent)
    running = procs.of_training(host.site.training)
    sent_ever, wrote_ever = slowing.sent(undo["means"]), holders.wrote(running)
    # Kernels differ in whether they count what goes through FUSE as written to storage.
    uncounted = mount.type.startswith("fuse.") and not wrote_ever.storage
    now, was = (wrote_ever.calls, wrote.calls) if uncounted else (wrote_ever.storage, wrote.storage)
    readings = {**seen, "sent": sent_ever - sent, "sent_ever": sent_ever, "wrote": now - was, "wrote_ever": now}
    if seen["saved"]:
        ours = min(sent_ever - sent, now - was) >= NOISE
        told = "a save of {:.1f} MB came to {}, and this node sent {:.1f} MB to its storage meanwhile; the training here wrote {:.1f} MB"
        return Evidence(ours, told.format(seen["saved"] / 1e6, directory, (sent_ever - sent) / 1e6, (now - was) / 1e6), readings)
    began = time.time() - max((_age(process) for process in running), default=0.0)
    ours = seen["mtime"] >= began and min(sent_ever, now) >= max(seen["size"] / 2, NOISE)
    told = (
        "no save came to {} in {:g} s; its newest is of {:.1f} MB, {} this training began, and in all this node has sent {:.1f} MB"
        " and the training here written {:.1f} MB"
    )
    when = "since" if seen["mtime"] >= began else "from before"
    return Evidence(ours, told.format(directory, WATCH, seen["size"] / 1e6, when, sent_ever / 1e6, now / 1e6), readings)


def _await_flush(undo: Undo, sent: int) -> None:
    end = time.monotonic() + FLUSH
    while slowing.sent(undo["means"]) - sent < NOISE and time.monotonic() < end:
        time.sleep(0.05)


def _refusal(host: Host, what: str, hint: str) -> Refusal:
    return Refusal(what, where="{} storage_slow".format(host.site.node), hint=hint)


def _age(process: Process) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - process.start_time / os.sysconf("SC_CLK_TCK")


def _mount_at(host: Host, viewer: Viewer, path: str) -> Tuple[Mount, str]:
    """Return the mount that a directory lies on, and its path without links. Raises Refusal, HangsError."""
    try:
        ident, directory = savetime.look(viewer, path, LOOK_WITHIN)
    except OSError as error:
        hint = "name a directory that is there and that the training's user may open"
        raise _refusal(host, "{}: {}".format(path, error.strerror), hint) from error
    table = mounts.table(str(viewer.pid or "self"))
    found = next((mount for mount in table if mount.ident == ident), None)
    if found is None:
        raise _refusal(host, "{} lies on a mount that no table shows".format(path), "name a path below a mount point")
    return found, directory
