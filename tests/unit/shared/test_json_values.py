"""JSON of the network: the fast parser and encoder and Python's give equal values and bytes."""

import enum
import json
import random
import struct

import pytest
from hypothesis import given, strategies as st

from ragbandit.shared.texts.json_values import json_bytes, json_value, sorted_json_bytes

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["\ud83d", "a\udc00b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(_JSON, st.booleans())
def test_values_are_those_of_the_standard_library(value, ascii_only):
    """Numbers of any size, NaN and half characters are read as Python reads them."""
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert repr(json_value(data, strict=False)) == repr(json.loads(data.decode("utf-8", "surrogatepass")))


@pytest.mark.parametrize("data", [b"", b"{", b"[1,]", b"{'a': 1}", b"nul", b'"a\x01"', b"\xff"])
def test_what_is_no_json_is_refused(data):
    """Both parsers refuse a broken text."""
    with pytest.raises(ValueError, match=r"."):
        json_value(data)


@pytest.mark.parametrize(("data", "value"), [(b'"a\x01b"', "a\x01b"), (b'\xef\xbb\xbf{"a": 1}', {"a": 1})])
def test_lenient_reading(data, value):
    """A server's text may have control characters, and a client's body a byte order mark."""
    assert json_value(data, strict=data[:1] != b'"') == value


class _Role(enum.StrEnum):
    USER = "user"


#: values that no parser makes, or that lie where the encoders part
_RARE = [
    *(10.0**power for power in range(-25, 25)),
    *(-(10.0**power) * 1.1 for power in range(-25, 25)),
    *(struct.unpack("<d", random.Random(seed).randbytes(8))[0] for seed in range(300)),
    *(random.Random(seed).uniform(-1e5, 1e5) for seed in range(300)),
    *(float("inf"), float("nan"), -0.0, 5e-324, 2.0**53, 10**400, -(2**64), 10**5000),
    *("\ud83d", "\udc00", "\x00", "\x7f\u2028", "".join(map(chr, range(32))), "\\u0000", "\U0010ffff"),
    *({"\ud83d": 1}, {1: 2}, {None: 1}, {1.5: 1}, {True: 0}, {(): 0}, (1, "a"), {1}, b"a", _Role.USER, object()),
    {_Role.USER: 1},
]


def _nested(levels, *, kind):
    value = None
    for _ in range(levels):
        value = [value] if kind is list else {"a": value}
    return value


def _python_sorted(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True).encode()


def _written(write, value):
    try:
        return write(value)
    except (ValueError, TypeError, RecursionError) as error:
        return type(error)


def _python(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


@given(_JSON)
def test_bytes_are_those_of_the_standard_library(value):
    """A value is written as Python's encoder writes it, and refused where that refuses it."""
    assert _written(json_bytes, value) == _written(_python, value)


def test_rare_values_are_written_as_the_standard_library_writes_them():
    """Numbers of every size, control characters, half characters and values of other types are written or refused
    alike, alone and in lists and objects.
    """
    for value in _RARE:
        for one in (value, [1, value], {"a": [value]}):
            assert _written(json_bytes, one) == _written(_python, one)
            assert sorted_json_bytes(one) in (None, _written(_python_sorted, one))


@pytest.mark.parametrize("kind", [list, dict])
@pytest.mark.parametrize("levels", [201, 254, 255, 256, 400, 100_000])
def test_deep_values_are_written_as_the_standard_library_writes_them(levels, kind):
    """Values of more levels than the fast encoder writes are written or refused by Python's."""
    value = _nested(levels, kind=kind)
    assert _written(json_bytes, value) == _written(_python, value)


@given(_JSON)
def test_sorted_bytes_are_those_of_the_standard_library(value):
    """What is written with sorted names is written as Python's encoder writes it."""
    assert sorted_json_bytes(value) in (None, _written(_python_sorted, value))


def test_a_conversation_is_written_with_sorted_names():
    """Objects in lists and objects get sorted names, as their hashes need it."""
    value = {"b": [{"d": 1, "c": [0.5, {"f": None, "e": "é"}]}], "a": True}
    assert sorted_json_bytes(value) == '{"a":true,"b":[{"c":[0.5,{"e":"é","f":null}],"d":1}]}'.encode()
