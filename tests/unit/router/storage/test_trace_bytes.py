"""Packed traces: what goes in comes out, smaller; what is damaged is refused."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from ragbandit.router.serving.checks.reports import made_outcome
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.rows.outcome_rows import outcome_row, outcome_value, packed, trace_json, unpacked
from ragbandit.shared.types import Generated, Retrieved, Round

OUTCOME = replace(
    made_outcome(decision_id="d", now=1.0, status="answered", answer="Bram Stoker", steps=1.0),
    trace=(
        Round(number=1),
        Retrieved(query="who wrote Dracula?", ids=("wiki-1", "wiki-22"), scores=(2.5, 0.1 + 0.2), seconds=0.5),
        Generated(purpose="answer", text="Bram \U0001f9db Stoker", prompt_tokens=9, completion_tokens=2, seconds=1e-9),
    ),
)
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]))


@given(text=TEXTS, answer=TEXTS)
def test_round_trip(text, answer):
    """Any text comes back as it was."""
    assert unpacked(packed(text, answer=answer), answer=answer) == text


def test_an_outcome_comes_back_and_is_smaller():
    """An outcome is the same after its row, and its trace takes less than half of its JSON."""
    row = outcome_row(OUTCOME)
    assert outcome_value(row) == OUTCOME
    assert 2 * len(row["trace"]) < len(canonical(trace_json(OUTCOME.trace)))


@pytest.mark.parametrize("data", [b"", b"\x63abc", packed("abc" * 99, answer="")[:-3], b"\x01\xff\xff\xff"])
def test_damage_is_a_value_error(data):
    """Data that was not packed, is cut off or is of a newer version is refused: its decision is quarantined."""
    with pytest.raises(ValueError, match=r"unpacked|newer"):
        unpacked(data, answer="")
