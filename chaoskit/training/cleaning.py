"""From raw log text to plain lines: no colours, no carriage returns, no prefix of whoever merged several writers."""

import re
from collections.abc import Iterator

LINE_CAP = 64 * 1024
"""Characters of a line that are looked at; the rest is cut, so that no line can hold us up."""

STACKED = 3
"""Most prefixes that are looked for, one before another: a scheduler's, a launcher's, a rank's."""

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
SOURCE = re.compile(
    r"\s{0,8}(?:"
    r"\[(?P<role>[a-z_]{1,32}\d+)\]:\s?"  # torchrun --tee
    r"|\[(?P<rank>rank\s?\d+)\]:\s?"  # torch's own logging
    r"|(?P<srun>\d{1,6}): (?!\d)"  # srun --label
    r"|\((?P<ray>[\w.-]{1,64}, (?:pid|ip)=[^)]{1,80})\)\s?"  # Ray
    r"|(?P<nemo>[\w.-]{1,40}/\d{1,5}) (?=\[|\S)"  # nemo-run, which cuts its name to the left
    r")"
)


def clean(raw: str) -> Iterator[tuple[str, str]]:
    """
    Split what was read as one line into (source, text) pairs.

    A progress bar rewrites its line with carriage returns: each rewriting is a line of its own. `source` names the writer
    when a prefix says it (`srun --label`, `torchrun --tee`, Ray, nemo-run), else it is empty.
    """
    for part in ANSI.sub("", raw[:LINE_CAP]).split("\r"):
        text, sources = part.rstrip(), []
        for _ in range(STACKED):
            match = SOURCE.match(text)
            if match is None:
                break
            sources.append(next(group for group in match.groups() if group))
            text = text[match.end() :]
        if text:
            yield " ".join(sources), text
