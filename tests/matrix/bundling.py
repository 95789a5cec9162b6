"""The matrix's own build of the agent, which reports its transitions, and an inventory of one node."""

import hashlib
import io
import re
import zipfile
from pathlib import Path

from chaoskit.agent.bundle import Bundle, contents
from chaoskit.lab.plan import STATE_ROOT

MAIN = """import sys

from chaoskit.agent.command import main

if sys.argv[1:2] in (["serve"], ["fuse"]):
    import chaoskit_points

    chaoskit_points.install({"serve": "server", "fuse": "fuse"}[sys.argv[1]])
sys.exit(main(sys.argv[1:], sys.argv[0]))
"""


def with_points(folder):
    """Build the agent as it is, with one more module, and another first page that installs it."""
    extra = {"__main__.py": MAIN.encode(), "chaoskit_points.py": Path(__file__).with_name("points.py").read_bytes()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(contents({}))) as before, zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as after:
        texts = {name: before.read(name) for name in before.namelist()}
        for name, text in sorted({**texts, **extra}.items()):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.external_attr = 0o100600 << 16
            after.writestr(info, text)
    data = buffer.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    path = Path(folder) / f"{digest}.pyz"
    if not path.exists():
        fresh = path.with_suffix(f".{id(data)}")
        fresh.write_bytes(data)
        fresh.rename(path)
    return Bundle(path, digest)


def site_of(lab, node, folder):
    """Write the lab's inventory with this node alone; returns its path."""
    text = (STATE_ROOT / lab / "inventory.yaml").read_text()
    head, _, rest = text.partition("nodes:\n")
    names, _, _ = rest.partition("protected:")
    own = re.search(rf"^  {node}:\n(?:    .*\n)+", names, re.MULTILINE)
    path = Path(folder) / f"{node}.yaml"
    path.write_text(f"{head}nodes:\n{own[0]}trainings:{rest.partition('trainings:')[2]}")
    return path
