"""
The one way that text from a node or a user enters a terminal, a log or an XML file.

Such text is data. It may hold terminal escapes, characters that XML 1.0 forbids, and the command syntaxes of CI
systems: `[[ATTACHMENT|path]]` makes a Jenkins publish any file that it can read, `::set-env` and `##vso[` steer the
runner. It may also hold a secret that the training printed (`chaoskit.model.secrets`). Every report passes every foreign
string through here, once, as the last thing before it is written.
"""

import re

from chaoskit.model.secrets import redacted

CAP = 64 * 1024
"""Bytes (UTF-8) of one text; longer ones keep their first and last half, and say what was cut."""

LINE_CAP = 1000
"""Characters of one line of a table or of one XML attribute."""

# CSI (colours, cursor), then OSC, DCS, SOS, PM and APC up to their end (title, clipboard, hyperlinks), then two-byte escapes.
ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]"
)

# What XML 1.0 forbids, the C1 controls (a terminal obeys them), and the controls that turn the direction of writing.
FORBIDDEN = re.compile("[^\t\n\x20-\x7e\xa0-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# CI commands. GitHub's runner ignores white space before `::`; Azure's and TeamCity's may stand anywhere in a line.
ATTACHMENT = re.compile(r"\[(?=\[ATTACHMENT\|)", re.IGNORECASE)
WORKFLOW = re.compile(r"^(\s*):(?=:)", re.MULTILINE)
SERVICE = re.compile(r"##(?=(?:vso|teamcity)?\[)", re.IGNORECASE)

BLANKS = re.compile(r"\s+")


def text(raw: str) -> str:
    """Return the text made harmless, its lines kept, at most `CAP` bytes long."""
    plain = ESCAPES.sub("", redacted(raw)).replace("\r\n", "\n").replace("\r", "\n")
    plain = FORBIDDEN.sub("\ufffd", plain)
    return _capped(_without_commands(plain))


def line(raw: str) -> str:
    """Return the text made harmless on one line, at most `LINE_CAP` characters long."""
    # One line may be the end of another's, or stand in a log of its own: commands are broken after the joining.
    joined = _without_commands(BLANKS.sub(" ", text(raw)).strip())
    if len(joined) <= LINE_CAP:
        return joined
    return joined[: LINE_CAP - 3] + "..."


def _without_commands(plain: str) -> str:
    """Break the command syntaxes by a blank; a reader still sees what was written."""
    for pattern, broken in ((ATTACHMENT, "[ "), (WORKFLOW, r"\1: "), (SERVICE, "## ")):
        plain = pattern.sub(broken, plain)
    return plain


def _capped(plain: str) -> str:
    """Keep the first and the last half of what is longer than `CAP` bytes, and name the cut between them."""
    raw = plain.encode()
    if len(raw) <= CAP:
        return plain
    half = (CAP - 64) // 2  # 64 bytes are room for the note
    head, tail = raw[:half].decode(errors="ignore"), raw[-half:].decode(errors="ignore")
    # The note shares a line with both halves: a command at the start of the tail would otherwise start a line again.
    return f"{head} ... {len(raw) - 2 * half} bytes cut ... {tail}"
