"""The handbook's questions and the recorded table: whole, of one making, and as they are said to be."""

import hashlib
import json
from collections import Counter

import pytest

from ragbandit.examples.handbook.command import ARMS, HERE, TABLE, read_questions
from ragbandit.examples.handbook.held_out import asked_for, split
from ragbandit.examples.handbook.report import _always, _verdict
from ragbandit.router.learning.reward import containment
from ragbandit.router.offline.logs.tables import read_table
from ragbandit.strategies.retrievers.bm25 import Bm25Retriever, build_index
from ragbandit.strategies.retrievers.corpus import read_corpus
from tests.support.cases import every_case

QUESTIONS = read_questions()
KINDS = ("none", "one", "two")
PASSAGES = {passage.id: passage for passage in read_corpus(HERE / "corpus.jsonl")}


@pytest.fixture(scope="module")
def first_three(tmp_path_factory):
    """Texts of the three passages that BM25 finds first for a question."""
    folder = tmp_path_factory.mktemp("index")
    build_index(list(PASSAGES.values()), folder)
    retriever = Bm25Retriever(folder)
    return lambda question: [f"{hit.passage.title}: {hit.passage.text}" for hit in retriever._search(question, k=3)]


def of_kind(kind):
    return [row for row in QUESTIONS if row["kind"] == kind]


def sha256(name):
    return hashlib.sha256((HERE / name).read_bytes()).hexdigest()


def test_one_search_finds_the_answer_to_a_question_of_one_passage(first_three):
    """The answer to every `one` question stands in a passage that BM25 finds among its first three."""
    lost = [
        row["id"]
        for row in of_kind("one")
        if not any(containment(t, gold=row["answers"]) for t in first_three(row["question"]))
    ]
    assert lost == []


# ----------------------------------------------------------------------------------------------------------- the table


def test_the_table_is_of_these_questions_and_this_book():
    """The recorded table has every question once, and its facts name the files as they are now."""
    facts = json.loads((HERE / "table.json").read_text("utf-8"))
    rows = read_table(TABLE).rows
    assert [(row.id, row.question) for row in rows] == [(row["id"], row["question"]) for row in QUESTIONS]
    assert (facts["questions_sha256"], facts["corpus_sha256"]) == (sha256("questions.jsonl"), sha256("corpus.jsonl"))
    assert facts["made_by"] == "make handbook-table"
    assert len(facts["weights_sha256"]) == 64


def test_the_arms_of_the_table_took_the_steps_that_they_take():
    """No search is no step, one search one, and multi_step two at most; right is 0 or 1."""
    table = read_table(TABLE)
    assert table.arms == ARMS
    assert {tuple(steps) for steps in table.steps[:, :2]} == {(0.0, 1.0)}
    assert set(table.steps[:, 2]) <= {1.0, 2.0}
    assert set(table.correct.ravel()) == {0.0, 1.0}


# -------------------------------------------------------------------------------------------------------- the live run


@pytest.mark.parametrize(("limit", "seed"), [(100, 0), (100, 1), (20, 0)])
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


def live_row(*, ahead):
    """A judged question on which the run is so far ahead of always each arm."""
    recorded = {arm: {"reward": 0.5 - ahead, "quality": 1.0, "steps": 1.0} for arm in ARMS}
    return {"reward": 0.5, "recorded": recorded}


def test_the_lead_over_an_arm_is_paired():
    """Equal leads leave no doubt; leads that differ leave two standard errors of their mean."""
    with every_case() as case:
        with case("the same everywhere"):
            lead = _always("multi_step", rows=[live_row(ahead=0.25)] * 40)
            assert [lead[key] for key in ("reward", "ahead", "low", "high")] == pytest.approx([0.25] * 4)
        with case("one in two"):
            lead = _always("multi_step", rows=[live_row(ahead=0.2)] * 50 + [live_row(ahead=-0.1)] * 50)
            assert lead["ahead"] == pytest.approx(0.05)
            assert (lead["low"], lead["high"]) == pytest.approx((0.05 - 1.96 * 0.015, 0.05 + 1.96 * 0.015), abs=0.002)
        with case("too few"):
            assert _always("multi_step", rows=[live_row(ahead=0.5)] * 19)["ahead"] is None
        with case("no question judged"):
            assert _always("multi_step", rows=[])["reward"] is None


def report_of(*leads):
    """A run with these differences (estimate, low, high) from always each arm."""
    always = {
        arm: {"reward": number / 10, "ahead": ahead, "low": low, "high": high}
        for number, (arm, (ahead, low, high)) in enumerate(zip(ARMS, leads, strict=True))
    }
    live = {"reward": 0.5, "quality": 0.6, "steps": 1.2, "n": 97}
    warm = {"rows": 1449, "questions": 483}
    return {"logged": live, "always": always, "warm": warm, "properties": 25, "as_recorded": 0.94}


def test_the_report_claims_no_more_than_its_figures_carry():
    """Only a lead whose interval is above 0 counts, and the sum is drawn from the least of them."""
    clear, doubtful, behind = (0.2, 0.1, 0.3), (0.1, -0.1, 0.3), (-0.2, -0.3, -0.1)
    shown = "so the router earns more than each fixed arm"
    with every_case() as case:
        with case("ahead of all"):
            words = _verdict(report_of(clear, clear, clear))
            assert "483 other questions" in words
            assert shown in words
            assert "chance could" not in words
        with case("one could be chance"):
            words = _verdict(report_of(clear, clear, doubtful))
            assert "always multi_step +0.100 (-0.100 to +0.300), chance could explain that" in words
            assert shown not in words
            assert "does not show" in words
        with case("behind one"):
            words = _verdict(report_of(clear, behind, clear))
            assert "always single_step -0.200 (-0.300 to -0.100), more than chance explains" in words
            assert shown not in words
        with case("nothing known"):
            words = _verdict(report_of(clear, clear, clear) | {"warm": {"rows": 0, "questions": 0}})
            assert "had learned nothing" in words
        with case("too few"):
            words = _verdict(report_of(clear, clear, (None, None, None)))
            assert words.endswith("Too few questions to say what it earns.")
