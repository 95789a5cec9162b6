"""
What is special about `storage_slow`, each case in namespaces of its own, on a real sshfs and a real disk.

    unshare --net --pid --mount --fork --kill-child --mount-proc PYTHON storage_cases.py CASE

Standard library only, Python 3.8, as bench.py, whose file system this uses.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "benches")]

from bench import RUN, ip, shown, tc, wait_until  # noqa: E402 - found by the path above
from storage_slow import MOUNTED, RATE, SERVED, SERVER, snapshot, sshfs  # noqa: E402 - found by the path above

from chaoskit.agent import procs, qdiscs, savetime, slowing  # noqa: E402 - beside what needs the path
from chaoskit.agent.contract import Refusal, Site, TrainingFacts  # noqa: E402 - beside what needs the path
from chaoskit.agent.host import Host  # noqa: E402 - beside what needs the path
from chaoskit.agent.netlink import Netlink  # noqa: E402 - beside what needs the path
from chaoskit.faults import load  # noqa: E402 - beside what needs the path
from chaoskit.testing import Bench, check_fault  # noqa: E402 - beside what needs the path

RANK = """
import os, sys, time
if sys.argv[1:]:
    os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
while True:
    exec(sys.stdin.readline())
"""

SAVE = "time.sleep(4); f = open({!r}, 'wb'); f.write(os.urandom(2000000)); f.flush(); os.fsync(f.fileno()); f.close()"
"""A save that comes while it is watched for, and not before, however loaded the machine is."""


def equal(expected, actual):
    """Compare."""
    if expected != actual:
        raise AssertionError("expected {!r}, and it is {!r}".format(expected, actual))


def contains(part, whole):
    """Look for a part."""
    if part not in whole:
        raise AssertionError("{!r} is not in {!r}".format(part, whole))


def fault(**more):
    """Return the fault on the mounted file system."""
    return load("storage_slow", {"path": MOUNTED, "rate": RATE, "ratio": 2.0, **more})


def host(**more):
    """Return a node; the training's facts are given by their names."""
    facts = {name: more.pop(name) for name in ("user", "checkpoints") if name in more}
    return Host(Site("bench", training=TrainingFacts(run_id=RUN, **facts), **more))


def refused(params, where):
    """Return what is said when this is refused, and see that nothing was changed by it."""
    before = snapshot()
    try:
        load("storage_slow", params).prepare(where)
    except Refusal as error:
        equal(before, snapshot())
        return str(error)
    raise AssertionError("not refused")


def rank(*arguments, inside=()):
    """Start a rank of the run that does what is written to it, line by line."""
    env = {"RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": RUN, "PATH": os.environ["PATH"]}
    return subprocess.Popen([*inside, sys.executable, "-c", RANK, *arguments], env=env, stdin=subprocess.PIPE)


def links(pid):
    """Return what a process has open."""
    return [os.readlink("/proc/{}/fd/{}".format(pid, name)) for name in os.listdir("/proc/{}/fd".format(pid))]


def tell(process, line):
    """Let a rank do something."""
    process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()


def datagrams(address, count=50):
    """Send a little to an address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(count):
            sender.sendto(bytes(1000), (address, 9))
            time.sleep(0.001)


def only_the_server_is_capped():
    """What goes elsewhere over the same device, to the very neighbour address too, does not pass our class."""
    sshfs()
    ip("route add 10.9.0.0/16 via 10.1.0.2")
    undo = fault().prepare(host())
    with Netlink() as kernel:
        fault().inject(host(), undo)
        before = slowing.passed(undo["means"])
        datagrams("10.1.0.3")
        datagrams("10.9.0.2")
        equal(True, slowing.passed(undo["means"]) - before < 20_000)
        datagrams(SERVER)
        wait_until(lambda: slowing.passed(undo["means"]) - before > 50_000, "nothing passed the cap")
        fault().revert(host(), undo)
        equal([], [one.kind for one in qdiscs.standing(kernel, undo["means"]["devices"][0]["ifindex"]) if not one.default])


def an_ipv6_server_is_capped():
    """Its address is four keys of a filter."""
    _, holder = sshfs()
    with open("/proc/sys/net/ipv6/conf/ra/disable_ipv6", "w") as setting:
        setting.write("0")
    ip("-6 addr add fd00:1::1/64 dev ra nodad")
    ip("-6 neigh add fd00:1::2 lladdr 02:00:00:00:00:02 dev ra nud permanent")
    ip("-6 neigh add fd00:1::3 lladdr 02:00:00:00:00:02 dev ra nud permanent")
    equal(None, holder.poll())
    means = slowing.capture_network(["fd00:1::2", SERVER])
    slowing.apply(means, RATE)
    for address, least, most in (("fd00:1::3", 0, 5_000), ("fd00:1::2", 50_000, 1_000_000)):
        before = slowing.passed(means)
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender:
            for _ in range(50):
                sender.sendto(bytes(1000), (address, 9))
        wait_until(lambda before=before, least=least: slowing.passed(means) - before >= least, "nothing passed the cap")
        equal(True, slowing.passed(means) - before <= most)
    slowing.take_away(means, RATE)
    equal([], slowing.lacking(means, RATE))


def a_server_that_hangs_hangs_nobody():
    """A child is given up; the next probe that gets through removes what it left."""
    server, _ = sshfs()
    where, mine = host(), savetime.viewer_of(os.getpid())._replace(pid=0)
    undo = fault().prepare(where)
    sessions = [int(pid) for pid in shown("pgrep sshd").split()]
    for pid in sessions:
        os.kill(pid, signal.SIGSTOP)
    try:
        savetime.save(mine, MOUNTED, undo["tag"], 1000, 1.0)
    except savetime.HangsError as error:
        contains("no answer within 1 s", str(error))
    else:
        raise AssertionError("a stopped server answered")
    contains("the storage hangs", refused_while_stopped(where))
    for pid in sessions:
        os.kill(pid, signal.SIGCONT)
    equal(None, server.poll())
    wait_until(lambda: fault().gone(where, undo).holds, "saves stayed slow")
    equal([], os.listdir(SERVED))


def refused_while_stopped(where):
    """Return the refusal of storage that hangs."""
    try:
        fault().prepare(where)
    except Refusal as error:
        return str(error)
    raise AssertionError("not refused")


def a_save_that_outlasts_the_witness_is_slow():
    """How long it would have taken is not known, and denies nothing."""
    sshfs()
    slow = fault(rate=8192)
    undo = slow.prepare(host())
    slow.inject(host(), undo)
    seen = slow.witness(host(), undo)
    equal(True, seen.holds)
    contains("s, or longer", seen.says)
    equal(True, undo["size"] / 8192 > seen.readings["took"])
    slow.revert(host(), undo)
    wait_until(lambda: slow.gone(host(), undo).holds, "saves stayed slow")


def a_viewer_that_waits_to_be_reaped_vouches_for_nothing():
    """Its view is gone with it, and the directory is not: a save is timed all the same."""
    sshfs()
    process = rank()
    wait_until(lambda: links(process.pid), "the rank does not show")
    undo = fault().prepare(host())
    equal(process.pid, undo["viewer"]["pid"])
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: procs.read(process.pid).dead, "the rank lives on")
    wait_until(lambda: fault().gone(host(), undo).holds, "saves stayed slow")
    contains("took", fault().gone(host(), undo).readings)


def what_a_killed_probe_left_is_swept():
    """Where no further probe comes through: our cap stands still, or the node booted since; files of others, and of the living, stay."""
    sshfs()
    undo = fault().prepare(host())
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = ["{}/.chaoskit-probe-{}.{}{}".format(SERVED, undo["tag"], ended.pid, end) for end in ("", ".part")]
    others = ["other.{}.part".format(ended.pid), "{}.{}".format(undo["tag"], os.getpid())]
    others = sorted(".chaoskit-probe-" + name for name in others)
    for place in (*left, *(SERVED + "/" + name for name in others)):
        open(place, "w").close()
    equal(True, fault().gone(host(), {**undo, "boot_id": "another"}).holds)
    equal(others, sorted(os.listdir(SERVED)))
    open(left[1], "w").close()
    fault().inject(host(), undo)
    equal(False, fault().gone(host(), undo).holds)
    equal(others, sorted(os.listdir(SERVED)))
    fault().revert(host(), undo)


def two_that_time_saves_at_once_leave_nothing():
    """What one removed while the other had it open would stay for ever, as libfuse renames it and may miss the last close."""
    sshfs()
    mine = savetime.viewer_of(os.getpid())._replace(pid=0)
    with ThreadPoolExecutor(4) as pool:
        took = list(pool.map(lambda _: savetime.save(mine, MOUNTED, "both", 262144, 60.0), range(40)))
    equal(40, len(took))
    wait_until(lambda: not os.listdir(SERVED), "something is left")


def a_save_of_this_node_is_exposed_and_one_of_another_is_not():
    """By what the node has sent while the save came; and an open file is proof at once."""
    sshfs()
    os.mkdir(MOUNTED + "/run1")
    where = host(checkpoints=MOUNTED + "/run1")
    process = rank()
    undo = fault(path=None).prepare(where)
    equal(MOUNTED + "/run1", undo["directory"])
    tell(process, SAVE.format(MOUNTED + "/run1/step-1.pt"))
    ours = fault().exposed(where, undo)
    equal((True, True), (ours.holds, ours.readings["saved"] == 2_000_000 <= ours.readings["sent"]))
    tell(process, SAVE.format(SERVED + "/run1/step-2.pt"))
    theirs = fault().exposed(where, undo)
    equal((False, 2_000_000), (theirs.holds, theirs.readings["saved"]))
    tell(process, "f = open({!r}, 'ab')".format(MOUNTED + "/run1/step-3.pt"))
    wait_until(lambda: os.path.exists(MOUNTED + "/run1/step-3.pt"), "the rank opened nothing")
    opened = fault().exposed(where, undo)
    equal(True, opened.holds)
    contains("{} of the training has {}/run1/step-3.pt open for writing".format(process.pid, MOUNTED), opened.says)


def what_another_job_of_this_node_saves_exposes_nothing():
    """Neither while it is watched for, nor since the training began; a shard of the training's own does both."""
    sshfs()
    where = host(checkpoints=MOUNTED)
    process, other = rank(), rank(inside=["env", "--unset=TORCHELASTIC_RUN_ID"])
    undo = fault().prepare(where)
    tell(other, SAVE.format(MOUNTED + "/theirs.pt"))
    seen = fault().exposed(where, undo)
    equal((False, 2_000_000, 0), (seen.holds, seen.readings["saved"], seen.readings["wrote"]))
    equal(True, seen.readings["sent"] >= 2_000_000)
    module = sys.modules["chaoskit.faults.storage_slow"]
    usual, module.WATCH = module.WATCH, 1.0
    seen = fault().exposed(where, undo)
    equal((False, 0), (seen.holds, seen.readings["saved"]))
    contains("since this training began", seen.says)
    module.WATCH = usual
    # Its own shard, and at once that of another node, which is larger.
    shards = (
        SAVE.format(MOUNTED + "/shard-0.pt"),
        SAVE.format(SERVED + "/shard-1.pt").replace("2000000", "9000000").replace("sleep(4)", "sleep(0)"),
    )
    tell(process, "; ".join(shards))
    equal(True, fault().exposed(where, undo).holds)


def storage_that_the_training_does_not_use_is_void():
    """Its checkpoints lie elsewhere, though it stands and reads there; or it is not here at all."""
    sshfs()
    subprocess.run(["mount", "-t", "tmpfs", "local", "/opt"], check=True)
    where = host(checkpoints="/opt")
    undo = fault().prepare(where)
    contains("no process of the training", fault().exposed(where, undo).says)
    process = rank()
    wait_until(lambda: "no process" not in fault().exposed(where, undo).says, "the rank does not show")
    with open(MOUNTED + "/data", "w") as file:
        file.write("to be read")
    tell(process, "os.chdir({0!r}); f = open({0!r} + '/data')".format(MOUNTED))
    wait_until(lambda: MOUNTED + "/data" in links(process.pid), "the rank opened nothing")
    seen = fault().exposed(where, undo)
    equal(False, seen.holds)
    contains("the training saves to /opt on /opt (tmpfs local), and not to {}".format(MOUNTED), seen.says)


def the_view_is_that_of_a_rank():
    """In its own mount namespace, through a link that is only there, as its user: and the probe is that user's."""
    sshfs("allow_other", "default_permissions")
    os.mkdir(MOUNTED + "/theirs")
    os.chown(MOUNTED + "/theirs", 4321, 4321)
    script = (
        'mount --make-rprivate /; mount -t tmpfs own /opt; mkdir /opt/in; mount --bind {}/theirs /opt/in; ln -s in /opt/link; exec "$@"'
    )
    process = rank("4321", inside=["unshare", "--mount", "sh", "-c", script.format(MOUNTED), "sh"])
    wait_until(lambda: os.path.exists("/proc/{}/root/opt/link".format(process.pid)), "the rank's mounts do not show")
    where = host()
    wait_until(lambda: savetime.viewer_of(process.pid).uid == 4321, "the rank is nobody yet")
    named = fault(path="/opt/link")
    undo = named.prepare(where)
    equal(("/opt/in", "/opt/in", 4321, process.pid), (undo["directory"], undo["point"], undo["viewer"]["uid"], undo["viewer"]["pid"]))
    os.chmod(MOUNTED + "/theirs", 0o500)
    seen = named.gone(where, undo)
    contains("no probe could be written to /opt/in: Permission denied", seen.says)


def what_the_node_hangs_by_is_refused():
    """The controller, the gateway, a home directory; protected storage is not."""
    sshfs("allow_other")
    params = {"path": MOUNTED, "rate": RATE}
    contains("{} is also where the SSH connection comes from".format(SERVER), refused(params, host(controller_addresses=(SERVER,))))
    ip("route add default via", SERVER)
    contains("default gateway", refused(params, host()))
    ip("route del default")
    fault().prepare(host(protected_addresses=(SERVER,)))
    os.mkdir(MOUNTED + "/home")
    subprocess.run(["mount", "-t", "tmpfs", "bench", "/opt"], check=True)
    os.mkdir("/opt/home")
    subprocess.run(["mount", "--bind", MOUNTED + "/home", "/opt/home"], check=True)
    with open("/opt/passwd", "w") as file:
        file.write("root:x:0:0::/root:/bin/sh\nengineer:x:4323:4323::/opt/home:/bin/sh\n")
    subprocess.run(["mount", "--bind", "/opt/passwd", "/etc/passwd"], check=True)
    fault().prepare(host())
    said = refused(params, host(user="engineer"))
    contains("the home directory /opt/home lies on the same servers (root@{}:{})".format(SERVER, SERVED), said)


def what_other_users_have_open_is_refused_unless_the_node_is_shared():
    """They would wait too."""
    sshfs("allow_other")
    stranger = subprocess.Popen(["setpriv", "--reuid=4322", "--clear-groups", "sleep", "1000"], cwd=MOUNTED)
    wait_until(lambda: savetime.viewer_of(stranger.pid).uid == 4322, "nobody is there")
    said = refused({"path": MOUNTED, "rate": RATE}, host())
    contains("pid {} of uid 4322 has {} open".format(stranger.pid, MOUNTED), said)
    contains("shared: accept", said)
    equal(1, len(fault().prepare(host(shared=True))["clients"]))


def what_cannot_be_slowed_or_proven_is_refused():
    """No path, none that is there, none that is storage, a rate that nobody would feel, storage that the user may not write to."""
    sshfs("allow_other", "default_permissions")
    contains("names no checkpoints", refused({"rate": RATE}, host()))
    contains("/mnt/none: No such file", refused({"path": "/mnt/none", "rate": RATE}, host()))
    contains("a tmpfs (tmpfs) has no one disk", refused({"path": "/dev/shm", "rate": RATE}, host()).replace("(shm)", "(tmpfs)"))
    contains("not 9 times as long", refused({"path": MOUNTED, "ratio": 9.0, "rate": 1 << 34}, host()))
    contains("no probe can be written to /mnt: Permission denied", refused({"path": MOUNTED, "rate": RATE}, host(user="nobody")))


def a_cap_of_an_earlier_run_is_named():
    """It is ours, and heal takes it away."""
    sshfs()
    undo = fault().prepare(host())
    fault().inject(host(), undo)
    contains("ra carries a cap of an earlier run (run chaoskit heal", refused({"path": MOUNTED, "rate": RATE}, host()))
    fault().revert(host(), undo)


def a_foreign_qdisc_that_came_meanwhile_stays():
    """We remove only what is ours, and say that what we found is not back."""
    sshfs()
    undo = fault().prepare(host())
    fault().inject(host(), undo)
    tc("qdisc replace dev ra root handle 7: tbf rate 1gbit burst 1m latency 50ms")
    fault().revert(host(), undo)
    contains("tbf 7:", shown("tc qdisc show dev ra"))
    seen = fault().gone(host(), undo)
    equal((False, "ra has tbf, and had noqueue"), (seen.holds, seen.says))


def a_device_that_went_away_took_the_cap_along():
    """As a driver that is loaded again does."""
    sshfs()
    undo = fault().prepare(host())
    fault().inject(host(), undo)
    ip("link del ra")
    fault().revert(host(), undo)
    equal(([], ["ra"]), (slowing.lacking(undo["means"], RATE), slowing.unslowed(undo["means"], RATE)))


@contextlib.contextmanager
def group(name):
    """A control group of the blkio hierarchy, gone at the end with whoever stands in it."""
    place = "/sys/fs/cgroup/blkio/chaoskit-bench-{}-{}".format(name, os.stat("/proc/self/ns/pid").st_ino)
    os.mkdir(place)
    try:
        yield place
    finally:
        with open(place + "/cgroup.procs") as file:
            for pid in file.read().split():
                os.kill(int(pid), signal.SIGKILL)
        wait_until(lambda: removed(place), "the control group stays")


def removed(place):
    """Remove an empty group."""
    with contextlib.suppress(OSError):
        os.rmdir(place)
    return not os.path.exists(place)


def disk():
    """Mount a real ext4 on a loop device, which goes with this mount namespace; return its major:minor."""
    subprocess.run(["mount", "-t", "tmpfs", "bench", "/srv"], check=True)
    subprocess.run(["truncate", "-s", "200M", "/srv/image"], check=True)
    subprocess.run(["mkfs.ext4", "-q", "/srv/image"], check=True)
    subprocess.run(["mount", "-o", "loop", "/srv/image", MOUNTED], check=True)
    found = os.stat(MOUNTED).st_dev
    return "{}:{}".format(os.major(found), os.minor(found))


def throttled_rank(place):
    """Start a rank that stands in a group."""
    return rank(inside=["sh", "-c", 'echo $$ > {}/cgroup.procs; exec "$@"'.format(place), "sh"])


def limits(place):
    """Return a group's throttles for writes."""
    with open(place + "/blkio.throttle.write_bps_device") as file:
        return file.read().split()


def a_disk_keeps_every_duty_under_cgroup_v1():
    """With a throttle of the operator's in place, which is put back exactly."""
    device = disk()
    with group("duty") as place:
        throttled_rank(place)
        with open(place + "/blkio.throttle.write_bps_device", "w") as file:
            file.write("{} 400000000".format(device))
        wait_until(lambda: shown("cat {}/cgroup.procs".format(place)), "the rank stands elsewhere")
        files = Bench(host(), lambda: (limits(place), sorted(os.listdir(MOUNTED))))
        check_fault(fault(), files)
        equal([device, "400000000"], limits(place))


def a_throttle_that_somebody_else_set_meanwhile_stays():
    """It is not ours to put back, and leaves no debt."""
    device = disk()
    with group("theirs") as place:
        throttled_rank(place)
        wait_until(lambda: shown("cat {}/cgroup.procs".format(place)), "the rank stands elsewhere")
        undo = fault().prepare(host())
        fault().inject(host(), undo)
        equal([device, str(RATE)], limits(place))
        contains("and had no limit", fault().gone(host(), undo).says)
        with open(place + "/blkio.throttle.write_bps_device", "w") as file:
            file.write("{} 300000000".format(device))
        fault().revert(host(), undo)
        equal([device, "300000000"], limits(place))
        equal(True, fault().gone(host(), undo).holds)


def a_save_to_a_disk_is_exposed_by_its_group():
    """By the group's own count of what it wrote, which comes after the file has its size: until then it lies in memory."""
    disk()
    with group("exposed") as place:
        process = throttled_rank(place)
        wait_until(lambda: shown("cat {}/cgroup.procs".format(place)), "the rank stands elsewhere")
        where = host(checkpoints=MOUNTED)
        undo = fault().prepare(where)
        equal(True, undo["means"]["kind"] == "disk" and fault().resource(undo)[1].startswith("disk:loop"))
        tell(process, SAVE.format(MOUNTED + "/step-1.pt").replace("os.fsync", "time.sleep(1); os.fsync"))
        seen = fault().exposed(where, undo)
        equal((True, 2_000_000), (seen.holds, seen.readings["saved"]))


def a_disk_that_is_throttled_already_is_refused():
    """A tighter throttle than ours hides it; a training outside of any group cannot be throttled alone."""
    device = disk()
    with group("tight") as place:
        throttled_rank(place)
        wait_until(lambda: shown("cat {}/cgroup.procs".format(place)), "the rank stands elsewhere")
        with open(place + "/blkio.throttle.write_bps_device", "w") as file:
            file.write("{} 400000".format(device))
        contains("may write 400000 bytes a second to loop", disk_refusal())
    contains("no process of the training is on this node", disk_refusal())
    rank()
    wait_until(lambda: "topmost group" in disk_refusal(), "nobody stands in the topmost group")


def disk_refusal():
    """Return what is said of the disk."""
    try:
        fault().prepare(host())
    except Refusal as error:
        return str(error)
    raise AssertionError("not refused")


CASES = {name: case for name, case in vars().items() if callable(case) and getattr(case, "__module__", "") == __name__}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
    print("as promised")
