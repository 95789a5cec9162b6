"""Plain scalars: the same value for every reader of YAML, or an error that says what to write."""

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chaoskit.model.scalars import ScalarError, read_plain


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("0", 0),
        ("-3", -3),
        ("1.5", 1.5),
        ("-0.25", -0.25),
        ("node[1-4]", "node[1-4]"),
    ],
)
def test_plain_values(text, value):
    assert read_plain(text) == value
    assert type(read_plain(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("on", "write true"),
        ("OFF", "write false"),
        ("Yes", "write true"),
        ("n", "write false"),
        ("TRUE", "write true"),
        ("1:30", "write 90s or 90m"),
        ("1:30:00", 'write "1:30:00"'),
        ("012", "write 12"),
        ("0o17", "write 17"),
        ("0x1f", "base 10"),
        ("1e3", "write 1000"),
        ("1.5e-3", "without an exponent"),
        ("1e400", "without an exponent"),
        ("+5", "write digits"),
        ("1_000", "write digits"),
        (".5", "write digits"),
        (".inf", "leave the key out"),
        ("-.NaN", "leave the key out"),
        ("2026-11-30", 'write "2026-11-30"'),
        ("<<", "write everything out"),
        ("9" * 19, "at most 18 digits"),
        ("NULL", "write null"),
    ],
)
def test_a_trap_says_what_to_write(text, hint):
    with pytest.raises(ScalarError) as caught:
        read_plain(text)

    assert hint in caught.value.hint


@settings(deadline=None)
@given(
    st.one_of(
        st.text(),
        st.from_regex(r"[-+]?[0-9._:exob]{1,12}", fullmatch=True),
        st.from_regex(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}", fullmatch=True),
    )
)
@example("0.0")
@example("1e999999")
def test_what_is_read_is_what_yaml_1_1_reads(text):
    """PyYAML's own resolver is YAML 1.1; where it makes something else of a text than we do, ours must have been an error."""
    try:
        ours = read_plain(text)
    except ScalarError:
        return
    tag = yaml.SafeLoader("").resolve(yaml.ScalarNode, text, (True, False))

    assert tag.rpartition(":")[2] == {str: "str", int: "int", float: "float", bool: "bool", type(None): "null"}[type(ours)]
