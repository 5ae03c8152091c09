"""Typed facts of decisions: stored values, and what a damaged or foreign row gives."""

from dataclasses import replace

import pytest

from ragbandit.shared.types import (
    CandidateNote,
    CandidateNotes,
    ColdStartFloors,
    LabelRequest,
    Rebuilding,
    SafeStart,
    StickyTurn,
    UntriedArms,
    candidate_notes,
)

NOTE = CandidateNote(version="v1", snapshot=None, pmf=(0.5, 0.5), fault=None)
FACTS = (
    StickyTurn(first="d1", turn=2, turns=3),
    LabelRequest(asked=True, draw=0.01, q=0.5, share=0.1, uniform=False),
    SafeStart(arm="a", share=0.5, slack=None, reason=None, floor=0.01),
    UntriedArms(arms=("a", "b")),
    ColdStartFloors(floors={"a": 0.2}),
    Rebuilding(),
    CandidateNotes(notes=(NOTE, replace(NOTE, version="v2", unseen=0.1))),
)


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.key)
def test_a_stored_fact_is_read_again(fact):
    """A fact equals the one that is read from its stored value."""
    assert type(fact).of({fact.key: fact.stored}) == fact


@pytest.mark.parametrize(
    ("fact", "stored"),
    [
        (StickyTurn, {"first": "d1", "turn": "two", "turns": 3}),
        (StickyTurn, {"first": None, "turn": 2, "turns": 3}),
        (LabelRequest, {"asked": True}),
        (LabelRequest, "asked"),
        (SafeStart, {"arm": "a", "share": True}),
        (UntriedArms, {"a": 1}),
        (ColdStartFloors, {"a": "much"}),
        (CandidateNotes, "v1"),
    ],
)
def test_a_damaged_fact_is_none(fact, stored):
    """A fact without a required field, or with a value of another type, is None."""
    assert fact.of({fact.key: stored}) is None


def test_optional_fields_may_be_damaged():
    """A damaged optional field becomes None or its default."""
    assert SafeStart.of({"incumbent": {"share": 0.25, "arm": 3}}) == SafeStart(
        arm=None, share=0.25, slack=None, reason=None, floor=None
    )
    (note,) = candidate_notes({"candidate": [{"version": "v1", "pmf": "torn", "unseen": "x"}, "v2"]})
    assert (note.version, note.pmf, note.unseen) == ("v1", None, None)
