"""
Our own rules for YAML's plain scalars: what is a number, a boolean, nothing or text, and what is a trap.

YAML 1.1 reads `on` as true, `1:30` as 90 and `012` as 10; YAML 1.2 reads them as text, text and 12. Whoever wrote one of
these meant something, so each is an error that says what to write instead. Quoted scalars are always text.
"""

import re

LONGEST_NUMBER = 18
"""Digits; a longer number is a mistake, or an identifier that wants quotes."""

LONGEST_TRAP = 100
"""Characters; nobody means a longer text for a number or a date, and patterns that backtrack are not tried on it."""

Scalar = str | int | float | bool | None

_NULLS = {"", "~", "null"}
_BOOLS = {"true": True, "false": False}
_LOOSE_BOOLS = {"on", "yes", "y", "true"}, {"off", "no", "n", "false"}
_INT = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_OCTAL = re.compile(r"[-+]?(?:0[0-9_]+|0o[0-7_]+)")
_BASE = re.compile(r"[-+]?(?:0x[0-9a-fA-F_]+|0b[01_]+)")
_EXPONENT = re.compile(r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9]+)[eE][-+]?[0-9]+")
_LOOSE_NUMBER = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|nan)", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ].*)?")


class ScalarError(ValueError):
    """A plain scalar that readers of YAML disagree about; `hint` says what to write instead."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


def read_plain(text: str) -> Scalar:
    """Return the value of an unquoted scalar. Raises ScalarError for YAML's traps."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.fullmatch(text):
        return int(_bounded(text))
    if _FLOAT.fullmatch(text):
        return float(_bounded(text))
    if len(text) > LONGEST_TRAP:
        return text
    _refuse_words(text)
    _refuse_numbers(text)
    return text


def _bounded(text: str) -> str:
    if len(text) > LONGEST_NUMBER:
        raise ScalarError(f"a number of {len(text)} characters", f"write at most {LONGEST_NUMBER} digits, or quote it when it is text")
    return text


def _refuse_words(text: str) -> None:
    for value, words in zip(("true", "false"), _LOOSE_BOOLS, strict=True):
        if text.lower() in words:
            raise ScalarError(f"some YAML readers take {text} for {value}, others for text", f'write {value}, or "{text}" when it is text')
    if text.lower() == "null":
        raise ScalarError(f"{text} is not how nothing is written", f'write null, or "{text}" when it is text')
    if text in ("<<", "="):
        raise ScalarError(f"{text} is a merge key of YAML 1.1", "write everything out; anchors and merging are not read")
    if _DATE.fullmatch(text):
        raise ScalarError(f"some YAML readers take {_short(text)} for a date", f'write "{_short(text)}"')


def _refuse_numbers(text: str) -> None:
    short = _short(text)
    if _SEXAGESIMAL.fullmatch(text):
        raise ScalarError(f"some YAML readers take {short} for a number in base 60", f'{_base_60(text)}write "{short}" when it is text')
    if _OCTAL.fullmatch(text):
        decimal = text.lstrip("+-0o_") or "0"
        raise ScalarError(f"some YAML readers take {short} for an octal number", f'write {_short(decimal)}, or "{short}" when it is text')
    if _BASE.fullmatch(text):
        raise ScalarError(f"{short} is a number in another base", f'write it in base 10, or "{short}" when it is text')
    if _EXPONENT.fullmatch(text):
        raise ScalarError(
            f"some YAML readers take {short} for a number, others for text", f'{_plain_number(text)}write "{short}" when it is text'
        )
    if _LOOSE_NUMBER.fullmatch(text):
        raise ScalarError(
            f"{short} is a number to some YAML readers only", f'write digits, such as 5, -5 or 0.5, or "{short}" when it is text'
        )
    if _NOT_FINITE.fullmatch(text):
        raise ScalarError(f"{short} is not a finite number", "write a number, or leave the key out")


def _base_60(text: str) -> str:
    """Say what a time such as 1:30 would be as durations."""
    parts = text.replace("_", "").lstrip("+-").split(":")
    if len(parts) != 2 or not all(part.isdigit() and len(part) < 7 for part in parts):
        return ""
    return f"write {int(parts[0]) * 60 + int(parts[1])}s or {int(parts[0]) * 60 + int(parts[1])}m for a duration; "


def _plain_number(text: str) -> str:
    """Write a small number with an exponent without it, as a hint."""
    value = float(text.replace("_", ""))
    return f"write {value:.0f}, or " if value.is_integer() and abs(value) < 1e12 else "write it without an exponent, or "


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
