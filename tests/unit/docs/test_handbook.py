"""The handbook's questions and the recorded table: whole, of one making, and as they are said to be."""

import hashlib
import json
from collections import Counter

import pytest

from ragbandit.examples.handbook.command import HERE, TABLE, read_questions
from ragbandit.examples.handbook.held_out import asked_for, split
from ragbandit.examples.handbook.report import headline
from ragbandit.router.offline.logs.tables import read_table
from tests.support.cases import every_case

QUESTIONS = read_questions()
KINDS = ("none", "one", "two")


def of_kind(kind):
    return [row for row in QUESTIONS if row["kind"] == kind]


def sha256(name):
    return hashlib.sha256((HERE / name).read_bytes()).hexdigest()


def test_the_table_is_of_these_questions_and_this_book():
    """The recorded table has every question once, and its facts name the files as they are now."""
    facts = json.loads((HERE / "table.json").read_text("utf-8"))
    rows = read_table(TABLE).rows
    assert [(row.id, row.question) for row in rows] == [(row["id"], row["question"]) for row in QUESTIONS]
    assert (facts["questions_sha256"], facts["corpus_sha256"]) == (sha256("questions.jsonl"), sha256("corpus.jsonl"))
    assert facts["made_by"] == "make handbook-table"
    assert len(facts["weights_sha256"]) == 64


@pytest.mark.parametrize(("limit", "seed"), [(100, 0), (20, 0)])
def test_what_is_asked_live_was_not_learned_before(limit, seed):
    """No question learned before asks for what a live one does, nor begins with its words; the kinds keep their mix."""
    live, others = split(QUESTIONS, limit=limit, seed=seed)

    def beginnings(rows):
        return {tuple(row["question"].lower().split()[:4]) for row in rows}

    kinds, quota = Counter(row["kind"] for row in live), {kind: len(of_kind(kind)) / len(QUESTIONS) for kind in KINDS}
    assert {asked_for(row["question"]) for row in live}.isdisjoint(asked_for(row["question"]) for row in others)
    assert beginnings(live).isdisjoint(beginnings(others))
    assert sorted(row["id"] for row in [*live, *others]) == [row["id"] for row in QUESTIONS]
    assert 0.6 * limit <= len(live) <= limit
    assert all(kinds[kind] <= limit * share for kind, share in quota.items())


def test_the_headline_claims_no_more_than_its_intervals():
    """A lead is learned if its interval, made wider by a half, excludes 0; all others are "not shown yet"."""
    clear, near, unclear, behind = (0.2, 0.1, 0.3), (0.1, 0.02, 0.18), (0.1, -0.1, 0.3), (-0.2, -0.3, -0.1)

    def shown(*learned, learning=()):
        gains = {arm: dict(zip(("value", "low", "high"), gain, strict=True)) for arm, gain in learned}
        return headline(
            {"logged": {"n": 13}, "warm": {"gains": gains}, "learning": {"free": {"leads": dict(learning)}}}
        )

    live = "on the 13 live questions, which are too few."
    with every_case() as case:
        for learned, expected in (
            (
                [("a", clear), ("b", (0.4, 0.3, 0.5))],
                "+0.200 a question over always a (+0.100 to +0.300).",
            ),
            ([("a", near)], "nothing beyond doubt"),  # an interval that nearly touches 0 is no proof among six
            (
                [("a", behind), ("b", clear)],
                "b (+0.100 to +0.300); -0.200 a question over always a (-0.300 to -0.100).",
            ),
            ([("a", (None, None, None))], "nothing beyond doubt"),
        ):
            with case(expected):
                assert expected in shown(*learned).partition(" While learning: ")[0]
        with case("what is not shown"):
            words = shown(("a", clear), learning=[("a", unclear), ("b", near), ("c", clear)])
            assert words.endswith(f" Not shown yet: a lead over always a or b while learning, or {live}")
        with case("another policy, without curve and warm start"):
            words = headline({"logged": {"n": 13}, "warm": {"rows": 0}, "learning": None})
            assert words.endswith(f"nothing beyond doubt. Not shown yet: a lead {live}")
