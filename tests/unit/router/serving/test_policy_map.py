"""The map of a policy: a policy that is a tree gives its own tree, and no leaf is due to chance."""

import json

import numpy as np

from ragbandit.router.config.context_schema import ContextKey
from ragbandit.router.serving.explanations import policy_map
from ragbandit.router.serving.explanations.policy_map import MOST_LEAVES, grow_tree, question_facts
from tests.support.cases import every_case

SCHEMA = {
    "plan": ContextKey(type="category", values=["free", "paid"]),
    "age": ContextKey(type="number"),
    "tags": ContextKey(type="words"),
    "vip": ContextKey(type="boolean"),
    "asked_by": ContextKey(type="tenant"),
}


#: facts of a question without a text
BARE = {"tenant": "acme", "price": "none"}


def facts(text, *, price=None, weight=None, **context):
    row = {"text": text, "tenant": "acme", "context": json.dumps(context), "price": price, "cost_weight": weight}
    return question_facts(row, schema=SCHEMA)


def test_facts_of_questions_in_any_language():
    """Kind, words, names and numbers; of a text that is not kept, or has none of these, what there is."""
    cases = {
        "Who wrote Dracula in 1897?": {"question": "who", "words": 5.0, "names": 1.0, "numbers": 1.0},
        "How many moons has Mars?": {"question": "how many", "words": 5.0, "names": 1.0, "numbers": 0.0},
        "how does it work": {"question": "how", "words": 4.0, "names": 0.0, "numbers": 0.0},
        "In which year?": {"question": "which", "words": 3.0, "names": 0.0, "numbers": 0.0},
        "Is it?": {"question": "yes or no", "words": 2.0, "names": 0.0, "numbers": 0.0},
        "¿Quién escribió Drácula?": {"question": "other", "words": 3.0, "names": 1.0, "numbers": 0.0},
        "谁写了这本书": {"question": "other", "words": 1.0, "names": 0.0, "numbers": 0.0},
        "\ud800 \u202e ?": {"question": "other", "words": 3.0, "names": 0.0, "numbers": 0.0},
        "in": {"question": "other", "words": 1.0, "names": 0.0, "numbers": 0.0},
        "   ": {},
        "0" * 64: {},
    }
    with every_case() as case:
        for text, told in cases.items():
            with case(text):
                assert facts(text) == BARE | told
        with case("context"):
            given = {"plan": "paid", "age": 40, "tags": ["a", "b"], "vip": True, "asked_by": "x", "other": "x"}
            assert facts("", **given) == BARE | {
                "plan": "paid", "age": 40.0, "tags a": "yes", "tags b": "yes", "vip": "true"
            }  # fmt: skip
        with case("of before it was declared"):
            assert facts("", plan=3, age="x", tags="a", vip=None) == BARE
        with case("price"):
            assert facts("", price="economy", weight=0.2) == BARE | {"price": "economy", "weight of cost": 0.2}


def questions(count, *, seed=0):
    rng = np.random.default_rng(seed)
    words = ("who", "when", "why", "how")
    return [facts(f"{words[rng.integers(4)]} {'x ' * rng.integers(1, 20)}") for _ in range(count)]


def mapped(rows, pmfs):
    """Returns (conditions of each leaf -> its questions, the share that the leaves explain)."""
    tests = policy_map._tests(rows)
    leaves = {frozenset(policy_map._conditions(path)): places for path, places in grow_tree(pmfs, tests=tests)}
    common = {"tests": tests, "arms": "abc"[: pmfs.shape[1]], "rewards": np.full(len(rows), np.nan)}
    return leaves, policy_map._mapped([""] * len(rows), pmfs=pmfs, **common).explained


def test_a_policy_that_is_a_tree_is_found_again():
    """Long questions get one arm, short questions with "who" a second arm; three leaves explain this policy."""
    rows = questions(600)
    long, who = (np.array([row["words"] > 9 for row in rows]), np.array([row["question"] == "who" for row in rows]))
    pmfs = np.where(long[:, None], [0.1, 0.1, 0.8], np.where(who[:, None], [0.2, 0.7, 0.1], [0.9, 0.05, 0.05]))
    said, explained = mapped(rows, pmfs)
    assert set(said) == {
        frozenset({"more than 9 words"}),
        frozenset({"at most 9 words", "question: who"}),
        frozenset({"at most 9 words", "question: other than who"}),
    }
    assert explained > 0.9
    again, _ = mapped(rows, pmfs)
    assert {leaf: here.tolist() for leaf, here in said.items()} == {leaf: here.tolist() for leaf, here in again.items()}


def test_chance_makes_no_leaves():
    """Random pmfs hardly ever give a second leaf; equal pmfs are explained by nothing."""
    rng, leaves = np.random.default_rng(1), 0
    for seed in range(20):
        said, explained = mapped(questions(200, seed=seed), rng.dirichlet([1.0, 1.0, 1.0], 200))
        leaves += len(said)
        assert explained < 0.2
    assert leaves <= 22
    said, explained = mapped(questions(200), np.full((200, 3), 1 / 3))
    assert (list(said), explained) == ([frozenset()], 0.0)


def test_leaves_are_few_and_not_small():
    """A policy that is another one for every length has eight leaves of a fiftieth of the questions or more."""
    rows, rng = questions(600), np.random.default_rng(2)
    of_length = rng.dirichlet([0.3, 0.3], 21)
    pmfs = np.array([of_length[int(row["words"])] for row in rows])
    said, explained = mapped(rows, pmfs)
    assert len(said) == MOST_LEAVES
    assert min(map(len, said.values())) >= 600 / 50
    assert 0.3 < explained < 1.0
    assert all(len(leaf) <= 2 for leaf in said)  # "at most 9" says "at most 15" too
