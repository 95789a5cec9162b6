"""How well-known trainers log, as regular expressions; `format: auto` tries them all, a name picks one."""

import re
from collections.abc import Mapping

from chaoskit.training.events import EventKind

Patterns = tuple[tuple[EventKind, re.Pattern[str]], ...]

STAMP = r"(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"


def _patterns(**regex: str) -> Patterns:
    return tuple((EventKind(name.rstrip("0123456789")), re.compile(text)) for name, text in regex.items())


KNOWN: Mapping[str, Patterns] = {
    "chaoskit": _patterns(
        step=r"^step (?P<step>\d+) loss \S+ batch (?P<batch>\d+)$",
        born=r"^chaoskit-trainer start rank (?P<rank>\d+) ",
        group_up=r"^group up rank 0 world (?P<world>\d+)$",
        loaded=r"^(?:loaded step (?P<step>\d+)|no checkpoint)$",
    ),
    "megatron": _patterns(
        step=r"^\s*(?:\[" + STAMP + r"\] )?iteration\s+(?P<step>\d+)/\s*\d+ \|(?:.{0,600}?global batch size:\s+(?P<batch>\d+))?",
        loaded=r"successfully loaded checkpoint from .{0,600} at iteration\s+(?P<step>\d+)",
    ),
    "nemo": _patterns(
        step=r"^Training epoch \d+, iteration \d+/\d+ \|(?:.{0,200}?global_batch_size: (?P<batch>\d+))?.{0,200}?global_step: (?P<step>\d+)",
        loaded=r"Restored all states from the checkpoint at .{0,600}[-/]step=(?P<step>\d+)",
    ),
    "torchtitan": _patterns(
        step=r"^\[titan\] " + STAMP + r" - root - INFO - step:\s*(?P<step>\d+)\s+loss:",
        loaded=r"^\[titan\] .{0,60} Loading the checkpoint from .{0,600}step-(?P<step>\d+)",
    ),
    "deepspeed": _patterns(
        step1=r"\[Rank 0\] step=(?P<step>\d+), skipped=",
        step2=r"\bsteps: (?P<step>\d+) loss: \S+ iter time",
    ),
    "maxtext": _patterns(
        step=r"^\s*completed step: (?P<step>\d+), seconds:",
        loaded=r"restoring from this run's directory step (?P<step>\d+)",
    ),
    "composer": _patterns(step=r"^\[(?:epoch=\d+\]\[)?batch=(?P<step>\d+)/\d+\]:"),
    "nanogpt": _patterns(
        step1=r"^iter (?P<step>\d+): loss ",
        step2=r"^step:(?P<step>\d+)/\d+ train_loss:",
    ),
}
"""Format name -> what its lines tell. A step's group `step` is the step as the trainer counts it."""
