"""JSON of the network: the fast parser and Python's give equal values."""

import json

import pytest
from hypothesis import given, strategies as st

from ragbandit.shared.texts.json_values import json_value

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
