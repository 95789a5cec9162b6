"""`{run}`, `{job}` and `{node}` in what the inventory says: replaced as text, and nothing else is."""

from collections.abc import Sequence


def fill(text: str, **values: str) -> str:
    """Return the text with `{name}` replaced for each name given; other braces stay."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def fill_all(texts: Sequence[str], **values: str) -> list[str]:
    """Return each text with its placeholders replaced."""
    return [fill(text, **values) for text in texts]
