"""
The loader: a constant program by which root takes over a pushed zipapp, and the only thing that is ever passed to `-c`.

    sudo -n python3 -I -S -c ONE_LINE PATH SHA256 VERB [--state DIR] ...

The pushed file lies in a user's folder, so it may change at any moment: what is hashed is the copy that root wrote, in a
folder that only root can enter, and that copy is what runs. Controller side; its text must parse on any Python.
"""

import binascii

LOADER = r"""
import sys
if sys.version_info < (3, 8):
    sys.exit("chaoskit: Python 3.8 or later is needed on the node, %s is %s" % (sys.executable, sys.version.split()[0]))
import hashlib, os, stat

def fail(what):
    sys.exit("chaoskit: " + what)

def folder(path):
    so_far = ""
    for part in path.split("/")[1:]:
        so_far += "/" + part
        try:
            os.mkdir(so_far, 0o700)
        except FileExistsError:
            pass
        found = os.lstat(so_far)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0:
            fail("%s is a link or not root's own folder" % so_far)
        if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
            fail("others may write in %s" % so_far)
    os.chmod(path, 0o700)

def read(path):
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            fail("%s is not a regular file" % path)
        return file.read(1 << 25)

def read_pushed(path):
    try:
        return read(path)
    except PermissionError:
        # A home on a file server that takes root for nobody: read it as sudo's caller, who wrote it.
        caller, group = int(os.environ.get("SUDO_UID", 0)), int(os.environ.get("SUDO_GID", 0))
    os.setegid(group)
    os.seteuid(caller)
    try:
        return read(path)
    finally:
        os.seteuid(0)
        os.setegid(0)

def take(pushed, wanted, copy):
    temporary = "%s.%d.%s" % (copy, os.getpid(), os.urandom(4).hex())
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "r+b") as file:
            file.write(read_pushed(pushed))
            file.flush()
            os.fsync(fd)
            file.seek(0)
            found = hashlib.sha256(file.read()).hexdigest()
        if found != wanted:
            fail("%s has hash %s, expected %s: push it again" % (pushed, found, wanted))
        os.rename(temporary, copy)
    except BaseException:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise
    parent = os.open(os.path.dirname(copy), os.O_RDONLY)
    os.fsync(parent)
    os.close(parent)

def main(pushed, wanted, *rest):
    if os.geteuid() != 0:
        fail("this must run as root")
    if len(wanted) != 64 or wanted.strip("0123456789abcdef"):
        fail("%r is not a sha256" % wanted)
    os.umask(0o077)
    state = os.path.abspath(rest[rest.index("--state") + 1]) if "--state" in rest else "/var/lib/chaoskit"
    folder(state + "/agent")
    copy = "%s/agent/%s.pyz" % (state, wanted)
    try:
        there = hashlib.sha256(read(copy)).hexdigest() == wanted
    except FileNotFoundError:
        there = False
    if not there:
        take(pushed, wanted, copy)
    python = sys.executable or "/proc/self/exe"
    os.execv(python, [python, "-I", "-S", copy] + list(rest))

try:
    main(*sys.argv[1:])
except (OSError, ValueError, TypeError, IndexError) as error:
    fail(str(error))
""".strip()
"""The program's text."""


def _one_line(program: str) -> str:
    """Return a program without spaces, newlines and whatever else means something in sudoers, so that a line there can name it whole."""
    padded = program.encode() + b"\n" * (-len(program.encode()) % 3)  # so that base64 ends without `=`
    return "exec(__import__('binascii').a2b_base64('{}'))".format(binascii.b2a_base64(padded, newline=False).decode())


ONE_LINE = _one_line(LOADER)
"""The program as it is passed to `-c`."""
