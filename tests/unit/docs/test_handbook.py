"""The handbook's questions and the recorded table: whole, of one making, and as they are said to be."""

import hashlib
import json
from collections import Counter

import pytest

from examples.handbook.command import ARMS, HERE, TABLE, read_questions
from examples.handbook.report import _verdict
from ragbandit.router.learning.answer_metrics import containment
from ragbandit.router.offline.simulation.table import read_table
from ragbandit.strategies.retrievers.bm25 import Bm25Retriever, build_index
from ragbandit.strategies.retrievers.corpus import read_corpus

QUESTIONS = read_questions()
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


def test_there_are_hundreds_of_different_questions():
    """No question and no id is there twice, and every kind is asked often."""
    kinds = Counter(row["kind"] for row in QUESTIONS)

    assert len({" ".join(row["question"].lower().split()) for row in QUESTIONS}) == len(QUESTIONS) >= 300
    assert len({row["id"] for row in QUESTIONS}) == len(QUESTIONS)
    assert set(kinds) == {"none", "one", "two"}
    assert min(kinds.values()) >= len(QUESTIONS) / 4


def test_one_search_finds_the_answer_to_a_question_of_one_passage(first_three):
    """The answer to every `one` question stands in a passage that BM25 finds among its first three."""
    lost = [
        row["id"]
        for row in of_kind("one")
        if not any(containment(t, gold=row["answers"]) for t in first_three(row["question"]))
    ]

    assert lost == []


def test_the_answer_to_a_question_of_two_passages_is_in_the_book():
    """The answer to every `two` question stands in some passage."""
    texts = [passage.text for passage in PASSAGES.values()]

    assert [r["id"] for r in of_kind("two") if not any(containment(t, gold=r["answers"]) for t in texts)] == []


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


def test_each_arm_is_right_where_it_can_be():
    """Without passages the book's questions stay unanswered, and two passages are best searched for twice."""
    table = read_table(TABLE)
    right = {
        kind: table.correct[[row["kind"] == kind for row in QUESTIONS]].mean(axis=0) for kind in ("none", "one", "two")
    }

    assert right["none"].argmax() == 0
    assert max(right["one"][0], right["two"][0]) < 0.1
    assert right["two"].argmax() == 2


def test_the_report_compares_with_nothing_that_it_hardly_saw():
    """An arm of fewer than ten effective rows is no "best of the others", however good its few rows were."""
    part = {"reward": 0.4, "reward_error": 0.1}
    other = {"reward_low": 0.3, "reward_high": 0.5}
    counterfactual = {
        "always a": other | {"reward": 0.4, "effective_rows": 50.0},
        "always b": other | {"reward": 0.9, "effective_rows": 4.0},
        "always c": None,
    }
    found = _verdict({"first_third": part, "last_third": part, "counterfactual": counterfactual})
    assert "always a" in found
    assert "always b" not in found
