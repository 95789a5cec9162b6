"""What a training's own log said, as a line of ours quotes it: without the prefix of whoever logged it, and short."""

import re

from chaoskit.report.sanitise import line as clean

LONGEST = 90
"""Characters of one quotation; the journal has more."""

# What stands before the words: glog's and torch's `I1130 20:49:52.123 42 torch/.../api.py:715] [default] `, the stamp, logger
# and level of Python's logging, and the place in the source that gloo and NCCL name.
PREFIXES = (
    re.compile(r"^[IWEFV]\d{4} [\d:.]{5,20} {1,8}\d+ \S+:\d+\] (?:\[[\w.-]{1,40}\] )?"),
    re.compile(r"^\[?\d{4}-\d\d-\d\d[T ][\d:.,]{5,20}(?:Z|[+-]\d\d:?\d\d)?\]? (?:- )?"),
    re.compile(r"^\[?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\]?:? (?:- )?"),
)
PLACE = re.compile(r"\[/?(?:[\w.+-]+/)+[\w.+-]+:\d+\] ")


def quote(says: str, longest: int = LONGEST) -> str:
    """Return a log's line on one harmless line, its prefixes taken off, at most `longest` characters long."""
    text = clean(says)
    for prefix in PREFIXES:
        text = prefix.sub("", text, count=1)
    text = PLACE.sub("", text).strip()
    return text if len(text) <= longest else f"{text[: longest - 3].rstrip()}..."
