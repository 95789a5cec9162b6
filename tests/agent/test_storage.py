"""What stands behind a mount: lines as kernels write them, and trees as kernels show them."""

import os

import pytest

from chaoskit.agent import mounts, storage

NFS = "40 30 0:52 / /ckpt rw,relatime shared:20 - nfs4 filer:/ckpt rw,vers=4.2,proto={},nconnect=8,clientaddr=10.0.0.9,addr=10.0.0.2"
NFS3 = "41 30 0:53 /a\\040b /ckpt3 rw - nfs filer:/a\\040b rw,vers=3,proto=tcp,mountaddr=10.0.0.3,mountproto=udp,addr=10.0.0.2"


def servers(line):
    return storage.servers(mounts.parsed(line))


def refusal(line):
    with pytest.raises(storage.UnknownError) as caught:
        servers(line)
    assert caught.value.hint
    return str(caught.value)


def test_a_line_of_mountinfo_is_read_with_its_escapes_and_options():
    mount = mounts.parsed(NFS3)

    assert (mount.ident, mount.device, mount.root, mount.point, mount.source) == (41, "0:53", "/a b", "/ckpt3", "filer:/a b")
    assert (mount.option("addr"), mount.option("rw"), mount.has("rw"), mount.has("add")) == ("10.0.0.2", "", True, False)


def test_the_mount_of_a_path_is_the_longest_and_the_last_of_equals():
    lines = ("1 0 8:1 / / rw - ext4 /dev/sda1 rw", "2 1 0:1 / /a rw - tmpfs one rw", "3 1 0:2 / /a rw - tmpfs two rw")
    table = [mounts.parsed(line) for line in lines]

    assert [mounts.holding(path, table).device for path in ("/a", "/a/b", "/ab", "/")] == ["0:2", "0:2", "8:1", "8:1"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (NFS.format("tcp"), ["10.0.0.2"]),
        (NFS.format("tcp6").replace("10.0.0.2", "fe80::1%eth0"), ["fe80::1"]),
        (NFS3, ["10.0.0.2", "10.0.0.3"]),
        ("42 30 0:54 / /s rw - cifs //filer/share rw,vers=3.1.1,addr=10.0.0.4", ["10.0.0.4"]),
        ("43 30 0:55 / /f rw - fuse.sshfs chaos@10.0.0.5:/srv/x rw,user_id=0", ["10.0.0.5"]),
        ("43 30 0:55 / /f rw - fuse.sshfs chaos@[fd00::5]:/srv rw,user_id=0", ["fd00::5"]),
        ("43 30 0:55 / /f rw - fuse.sshfs localhost: rw,user_id=0", None),
        ("44 30 0:56 / /9 rw - 9p 10.0.0.6 rw,trans=tcp", ["10.0.0.6"]),
    ],
)
def test_the_servers_of_each_kind_are_found(line, expected):
    assert servers(line) == (expected or sorted(storage.resolved("localhost")))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (NFS.format("rdma"), "NFS over RDMA"),
        ("42 30 0:54 / /s rw - cifs //filer/share rw,rdma,addr=10.0.0.4", "SMB Direct"),
        ("42 30 0:54 / /s rw - cifs //filer/share rw,multichannel,max_channels=4,addr=10.0.0.4", "multichannel"),
        ("43 30 0:55 / /f rw - fuse.sshfs nowhere.invalid:/srv rw", "'nowhere.invalid' cannot be resolved"),
        ("43 30 0:55 / /f rw - fuse.sshfs strange rw", "'strange' and its options name no server"),
        ("44 30 0:56 / /9 rw - 9p share rw,trans=virtio", "9p over virtio"),
        ("45 30 0:57 / /c rw - ceph 10.0.0.1,10.0.0.2:/ rw", "the servers of ceph"),
        ("46 30 0:58 / /l rw - lustre 10.0.0.1@tcp:/scratch rw", "its object and metadata servers"),
    ],
)
def test_servers_that_cannot_all_be_found_or_capped_are_refused(line, words):
    assert words in refusal(line)


def test_parallel_nfs_is_refused_by_the_mount_s_own_statistics():
    """Of the very mount that is asked about, and only where a layout is in use."""
    shown = (
        "device filer:/x mounted on /x with fstype nfs4 statvers=1.1\n\tnfsv4:\tbm0=0x1,pnfs=not configured\n"
        "device filer:/ckpt mounted on /ckpt with fstype nfs4 statvers=1.1\n\tnfsv4:\tbm0=0x1,sessions,pnfs=LAYOUT_FLEX_FILES\n"
    )

    assert [storage.layout(shown, point) for point in ("/x", "/ckpt", "/c")] == ["", "LAYOUT_FLEX_FILES", ""]


def test_further_addresses_of_an_nfs_server_are_found_where_the_kernel_lists_them(tmp_path, monkeypatch):
    """Those of the switch that holds the known one (`nconnect` and trunks), and of no other switch."""
    monkeypatch.setattr(storage, "XPRT_SWITCHES", str(tmp_path))
    for name, address in (("switch-0/xprt-0-tcp", "10.0.0.2"), ("switch-0/xprt-1-tcp", "10.0.1.2"), ("switch-1/xprt-2-tcp", "10.0.0.8")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "dstaddr").write_text(address + "\n")

    assert servers(NFS.format("tcp")) == ["10.0.0.2", "10.0.1.2"]
    (tmp_path / "switch-0/xprt-1-tcp").rename(tmp_path / "switch-0/xprt-1-rdma")
    assert "NFS over RDMA" in refusal(NFS.format("tcp"))


def test_lustre_s_servers_are_those_of_its_clients(tmp_path, monkeypatch):
    """Management, metadata and object servers; another file system's are not among them; InfiniBand is refused."""
    monkeypatch.setattr(storage, "LUSTRE", (str(tmp_path),))
    line = "46 30 0:58 / /l rw - lustre 10.0.0.1@tcp:10.0.0.2@tcp:/scratch rw"
    for name, text in (
        ("osc/scratch-OST0000-osc-ffff/ost_conn_uuid", "10.0.0.3@tcp"),
        ("mdc/scratch-MDT0000-mdc-ffff/mds_conn_uuid", "10.0.0.4@tcp1"),
        ("osc/home-OST0000-osc-ffff/ost_conn_uuid", "10.0.0.9@tcp"),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text + "\n")

    assert servers(line) == ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
    (tmp_path / "osc/scratch-OST0000-osc-ffff/ost_conn_uuid").write_text("10.0.0.3@o2ib\n")
    assert "Lustre over o2ib" in refusal(line)


def test_the_disk_of_a_partition_is_the_whole_disk_and_stacks_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "BLOCK", str(tmp_path / "block"))
    for name, device, inside in (
        ("sda", "8:0", ()),
        ("sda/sda1", "8:1", ("partition",)),
        ("dm-0", "253:0", ("dm/name",)),
        ("md0", "9:0", ("md/level",)),
    ):
        place = tmp_path / "devices" / name
        place.mkdir(parents=True)
        (place / "dev").write_text(device + "\n")
        for file in inside:
            (place / file).parent.mkdir(exist_ok=True)
            (place / file).write_text("1\n")
        (tmp_path / "block").mkdir(exist_ok=True)
        os.symlink(place, tmp_path / "block" / device)

    def disk(device):
        return storage.disk(mounts.parsed("1 0 {} / /x rw - ext4 /dev/x rw".format(device)))

    assert disk("8:1") == disk("8:0") == ("8:0", "sda")
    for device, words in (("253:0", "dm-0 is a device-mapper device"), ("9:0", "md0 is a RAID"), ("0:44", "has no one disk below it")):
        with pytest.raises(storage.UnknownError, match=words):
            disk(device)
