"""The JSON of a conversation: its parts are encoded once, and what is changed is encoded again."""

import copy
import json
import pickle

import pytest
from hypothesis import given, strategies as st

from ragbandit.shared.texts.json_values import json_bytes
from ragbandit.shared.types import encodings
from ragbandit.shared.types.encodings import DigestCache, Encoding

FIELDS = {
    "messages": [{"role": "user", "content": "Hé"}, {"role": "user", "content": "b"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "stop": ["a", "b"],
    "temperature": 0.5,
    "metadata": {"a": "b"},
    "user": None,
    "empty": [],
    "mixed": [{"a": 1}, 2],
}


def encoded(fields):
    return Encoding.joined(map(Encoding.of, fields.values()))


_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def counted(monkeypatch):
    """Numbers of bytes that were encoded."""
    sizes = []

    def counting(encode):
        def count(value):
            data = encode(value)
            sizes.append(len(data))
            return data

        return count

    for name in ("json_bytes", "fast_json_bytes"):
        monkeypatch.setattr(encodings, name, counting(getattr(encodings, name)))
    return sizes


def test_a_body_has_the_bytes_of_one_encoding():
    """A body that is joined of parts has the bytes of the whole, with known and with unknown parts."""
    assert encoded(FIELDS).body(FIELDS) == Encoding().body(FIELDS) == json_bytes(FIELDS)
    fitted = {"model": "m", "n": 1, **FIELDS, "messages": [*FIELDS["messages"][:1], {"role": "user", "content": "c"}]}
    assert encoded(FIELDS).body(fitted) == json_bytes(fitted)


@given(st.dictionaries(st.text(max_size=5), st.tuples(_VALUE, st.booleans()), max_size=6))
def test_any_body_has_the_bytes_of_one_encoding(sent):
    """A body has the bytes and the order of the whole, whichever of its fields were encoded before."""
    fields = {name: value for name, (value, _) in sent.items()}
    known = Encoding.joined([Encoding.of(value) for value, is_known in sent.values() if is_known])
    assert known.body(fields) == json_bytes(fields)


def test_fields_in_a_row_without_parts_are_one_encoding(counted):
    """Fields that nobody has encoded are encoded together with their neighbours."""
    few = {"messages": FIELDS["messages"]}
    encoding = encoded(few)
    counted.clear()
    made = encoding.body({"model": "m", "stream": True, **few, "temperature": 0.5, "user": None})
    assert made == json_bytes({"model": "m", "stream": True, **few, "temperature": 0.5, "user": None})
    assert len(counted) == 3  # the fields before the messages, their name, and the fields after them


def test_known_parts_are_not_encoded_again(counted):
    """Messages and tools that stay as they are go out as the bytes that were made once."""
    long = {"messages": [{"role": "user", "content": "x" * 10_000}], "tools": [{"name": "y" * 10_000}]}
    encoding = encoded(long)
    assert sum(counted) > 20_000
    counted.clear()
    assert len(encoding.body({"model": "m", **long, "messages": [*long["messages"], {"role": "tool"}]})) > 20_000
    assert sum(counted) < 100


@pytest.mark.parametrize("rare", [1e-05, 1e16, 10**30, [0.1, 1e-07]])
def test_rare_numbers_have_the_bytes_of_the_standard_library(rare):
    """A part with a number that the encoders write differently is written by Python's, also when it is known."""
    for _ in range(2):
        value = [{"a": rare}, {"a": 1}]
        assert Encoding.of(value).json(value) == json.dumps(value, separators=(",", ":")).encode()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copy_of_an_encoding_is_right(copied):
    """What is copied together with its encoding has other identities, and is encoded again with its new content."""
    fields, encoding = copied((FIELDS, encoded(FIELDS)))
    fields["messages"][0]["content"] = "changed"
    assert encoding.body(fields) == json_bytes(fields)
    assert encoding.digest(fields["messages"][0]) is None


def test_digests_tell_parts_apart():
    """Parts of the same JSON have the same digest, others have another, and an unknown part has none."""
    one, same, other = ({"role": "user", "content": text} for text in ("a", "a", "b"))
    encoding = Encoding.of([one, same, other])
    assert encoding.digest(one) == encoding.digest(same) != encoding.digest(other)
    assert encoding.digest({"role": "user", "content": "a"}) is None
    assert encoding.digest_of([[one], 1]) == Encoding().digest_of([[same], 1]) != encoding.digest_of([[one, 1]])


def test_what_is_known_is_bounded():
    """The latest entries stay, and never more than twice as many."""
    known = DigestCache[int](most=10)
    for number in range(1_000):
        known.put(number, number)
        assert known.get(0) == 0 or number > 0
        known.get(0)
    assert known.get(0) == 0
    assert known.get(999) == 999
    assert known.get(500) is None
    assert len(known._new) + len(known._old) <= 20


def test_what_is_made_of_a_part_is_made_once_and_encoded_when_it_is_needed(counted):
    """A part is converted once for each form; the conversion has a digest by its part, and its JSON when it is sent."""
    sent, again = ({"role": "user", "content": [{"text": "x" * 10_000}]} for _ in range(2))
    encoding, other = Encoding.of([sent]), Encoding.of([again])
    counted.clear()

    def make(message):
        return [{"role": "user", "content": message["content"][0]["text"]}]

    made, *anew = (encoding.converted(sent, make, form=form) for form in ("chat", "chat", "joined"))
    assert anew[0] is made
    assert counted == []
    digests = {encoding.digest(one) for one in (made[0], anew[1][0], sent)}
    assert len(digests) == 3
    assert encoding.digest(made[0]) == other.digest(other.converted(again, make, form="chat")[0])
    assert encoding.body({"messages": made}) == json_bytes({"messages": made})
    assert sum(counted) < 20_200
    assert encoding.size < 10_100


@pytest.mark.parametrize("rare", [1e-05, 10**30])
def test_rare_numbers_in_what_was_made_have_the_bytes_of_the_standard_library(rare):
    """The conversion of a part with a number that the encoders write differently is written by Python's encoder."""
    for _ in range(2):
        sent = {"input_schema": {"minimum": rare}}
        encoding = Encoding.of([sent])
        made = encoding.converted(sent, lambda tool: [{"parameters": tool["input_schema"]}], form="chat")
        assert encoding.json(made) == json.dumps(made, separators=(",", ":")).encode()
