"""Counts of what a call brings: each count passes at its cap, and fails above it."""

import pytest

from ragbandit.shared.reading.input_counts import BODY, REPLY, InputCounts


class TooMuch(Exception):
    pass


@pytest.mark.parametrize(("caps", "kind"), [*((REPLY, kind) for kind in REPLY), *((BODY, kind) for kind in BODY)])
def test_a_count_passes_at_its_cap(caps, kind):
    """Counts add up over the call, and the error names the cap."""
    counts, most = InputCounts(caps, refused=TooMuch), caps[kind].most
    counts.add(kind, most - 1)
    counts.add(kind)
    counts.check(kind, most)
    with pytest.raises(TooMuch, match=f"more than {most:,} {caps[kind].of}"):
        counts.add(kind)
    assert not counts.fits(kind)
    with pytest.raises(TooMuch):
        counts.check(kind, most + 1)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (b"[" + b"{}," * (REPLY["objects"].most - 2) + b"{}]", True),
        (b"[" + b"{}," * (REPLY["objects"].most - 1) + b"{}]", False),
        (b"[" + b"1," * (REPLY["items"].most - 1) + b"1]", True),
        (b"[" + b"1," * REPLY["items"].most + b"1]", False),
        (b'"' + b"[{," * REPLY["items"].most + b'"', True),
        (b'["\\"' + b"[{," * REPLY["items"].most + b'"]', True),
        (b'"' + b"[{," * REPLY["items"].most, False),
    ],
    ids=["objects", "too many", "items", "too many items", "in a text", "in an escaped text", "in no text"],
)
def test_a_json_text_is_counted_before_it_is_parsed(text, fits):
    """Brackets and commas count outside of texts."""
    counts = InputCounts(REPLY, refused=TooMuch)
    try:
        counts.count_event(text)
    except TooMuch:
        assert not fits
    else:
        assert fits


def test_values_add_up_over_the_call():
    """Many small events are counted together."""
    counts = InputCounts(REPLY, refused=TooMuch)
    event = b"[" + b"1," * 100_000 + b"1]"
    with pytest.raises(TooMuch, match="values"):  # noqa: PT012 - the event that fails is not the point
        for _ in range(201):
            counts.count_event(event)
    assert counts.totals["events"] in range(195, 201)
