"""
The disk, kernel and first steps of a virtual machine, from Debian packages alone: nothing is downloaded but those.

What is built is kept, by a key made of everything that goes into it, below the user's cache folder; so a second run
starts at once. The kernel boots uncompressed by PVH, which an emulated processor is seconds faster with.
"""

import hashlib
import lzma
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SETUP, INIT = (Path(__file__).with_name(name) for name in ("setup.sh", "init.sh"))
SUITE = "bookworm"
TOOLS = ("mmdebstrap", "qemu-system-x86_64", "qemu-img", "mke2fs", "busybox", "cpio", "modprobe", "ssh-keygen")
PACKAGES = (
    *("linux-image-amd64", "systemd-sysv", "dbus", "libpam-systemd", "udev", "openssh-server", "sudo", "python3-minimal", "python3"),
    *("iproute2", "nftables", "nfs-common", "nfs-kernel-server", "procps", "kmod", "dmsetup", "e2fsprogs"),
)
MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic")
"""What the first steps need; everything else comes from the disk."""
XZ_MAGIC = b"\xfd7zXZ\x00"


@dataclass(frozen=True)
class Image:
    """What a machine boots from: `disk` is shared and never written to, `key` logs in as root."""

    disk: Path
    kernel: Path
    initrd: Path
    key: Path


def missing() -> list[str]:
    """Return the programs that this machine lacks for virtual machines."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def build() -> Image:
    """Return the image, built now or found in the cache. Raises subprocess.CalledProcessError with what failed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chaoskit-tests"
    packages = _kept(cache / f"packages-{_key(SUITE, *PACKAGES)}", _install)
    scripts = [path.read_text() for path in (SETUP, INIT)]
    folder = _kept(cache / f"vm-{_key(packages.name, *scripts, *MODULES)}", lambda part: _make(part, packages / "root.tar"))
    return Image(folder / "root.ext4", folder / "vmlinux", folder / "initrd", folder / "key")


def _key(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _kept(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, made first when it is not there; one that was half made is never seen."""
    if not folder.is_dir():
        part = folder.with_suffix(f".{os.getpid()}")
        part.mkdir(parents=True)
        try:
            make(part)
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def _install(folder: Path) -> None:
    listed = (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("debian.*")))
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, folder / "root.tar"]
    subprocess.run([*command, *(path for path in listed if path.is_file())], check=True)


def _make(folder: Path, packages: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "chaoskit-tests", "-f", folder / "key"], check=True)
    tree = folder / "tree"
    tree.mkdir()
    subprocess.run(["tar", "-C", tree, "-xf", packages], check=True)
    for path in (SETUP, folder / "key.pub"):
        shutil.copy2(path, tree / "root")
    subprocess.run(["chroot", tree, "/bin/sh", "/root/setup.sh"], check=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    [release] = os.listdir(tree / "usr/lib/modules")
    (folder / "vmlinux").write_bytes(_uncompressed((tree / f"boot/vmlinuz-{release}").read_bytes()))
    _make_initrd(folder, tree, release)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-L", "root", "-d", tree, folder / "root.ext4", "3G"], check=True)
    shutil.rmtree(tree)


def _uncompressed(kernel: bytes) -> bytes:
    """Return the ELF kernel inside a bzImage whose payload is xz."""
    return lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(kernel[kernel.index(XZ_MAGIC) :])


def _make_initrd(folder: Path, tree: Path, release: str) -> None:
    """Pack a busybox, the modules of the disk and a script that mounts it."""
    first = folder / "first"
    for name in ("bin", "dev", "proc", "sys", "root", "modules"):
        (first / name).mkdir(parents=True)
    shutil.copy2(shutil.which("busybox"), first / "bin/busybox")
    shutil.copy2(INIT, first / "init")
    (first / "init").chmod(0o755)
    modules: dict[str, None] = {}
    for name in MODULES:
        shown = ["modprobe", "--dirname", tree, "--set-version", release, "--show-depends", name]
        listed = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
        modules |= dict.fromkeys(line.split()[1] for line in listed.splitlines() if line.startswith("insmod"))
    for path in modules:
        shutil.copy2(path, first / "modules")
    (first / "modules/order").write_text("".join(f"{Path(path).name}\n" for path in modules))
    names = subprocess.run(["find", "."], cwd=first, capture_output=True, check=True).stdout
    packed = subprocess.run(["cpio", "--quiet", "-o", "-H", "newc"], cwd=first, input=names, capture_output=True, check=True)
    (folder / "initrd").write_bytes(packed.stdout)
    shutil.rmtree(first)
