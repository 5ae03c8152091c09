"""Arms side by side: the sample, and the tables of the demo."""

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from ragbandit.examples.handbook.command import read_questions
from ragbandit.examples.handbook.side_by_side import KINDS, by_kind, main_table, print_wide, sampled
from ragbandit.router.config.learning import RewardSettings
from tests.support.examples import made_table

QUESTIONS = read_questions()


def table_of(*rows):
    """A table of two arms with the given qualities per question; the steps are 0 and 2."""
    return made_table(rows, [(0, 2)] * len(rows), arms=("cheap", "dear"))


@given(each=st.integers(1, 45))
def test_every_kind_is_drawn_alike(each):
    """The sample has the requested number of questions of every kind, or all of them, and no question twice."""
    rows = sampled(QUESTIONS, each=each, by="kind")
    for kind in KINDS:
        there = sum(row["kind"] == kind for row in QUESTIONS)
        assert sum(row["kind"] == kind for row in rows) == min(each, there)
    assert len({row["id"] for row in rows}) == len(rows)


def test_shares_and_rewards_are_those_of_the_table():
    """Shares right, steps and rewards are means over the questions of a kind or of all, with standard errors."""
    table = table_of((1, 1), (0, 1), (0, 1), (0, 0))
    kinds = {"q0": "none", "q1": "one", "q2": "two", "q3": "two"}
    cheap, dear, oracle = by_kind(table, kinds=kinds, reward=RewardSettings(weight=0.1, cost={"steps": 2.0}))
    assert [row["strategy"] for row in (cheap, dear, oracle)] == ["cheap", "dear", "oracle"]
    assert [cheap[key] for key in (*KINDS, "right", "steps")] == [1.0, 0.0, 0.0, 0.25, 0.0]
    assert [dear[key] for key in (*KINDS, "right", "steps")] == [1.0, 1.0, 0.5, 0.75, 2.0]
    assert dear["reward"] == pytest.approx(0.75 - 0.1 * 2.0 * 2.0)
    assert (dear["two_se"], dear["one_se"], cheap["right_se"]) == (pytest.approx(0.5), None, pytest.approx(0.25))


def test_the_oracle_earns_most():
    """The oracle chooses the cheap arm if it is as good, and the expensive one if its answer is worth the steps."""
    table = table_of((1, 1), (0, 1), (0, 0))
    kinds = dict.fromkeys(("q0", "q1", "q2"), "one")
    *arms, oracle = by_kind(table, kinds=kinds | {"q0": "none", "q2": "two"}, reward=RewardSettings())
    assert oracle["right"] == pytest.approx(2 / 3)
    assert oracle["steps"] == pytest.approx(2 / 3)
    assert oracle["reward"] == pytest.approx((1 + 0.9 + 0) / 3)
    assert all(oracle["reward"] >= row["reward"] for row in arms)


def test_tables_are_whole_in_a_narrow_pipe(capsys):
    """Every number stands in the table with its standard error, whatever the terminal's width."""
    row = {"strategy": "react", "failed": 2, "exhausted": 1}
    for place, name in enumerate(("exact_match", "f1", "accuracy", "steps", "time", "prompt_tokens")):
        row |= {name: 0.25 + place, f"{name}_se": 0.125}
    row |= {"completion_tokens": 7.0, "completion_tokens_se": None}
    print_wide(main_table([row], title="one"), console=Console(width=40))
    printed = capsys.readouterr().out
    for number in ("25.0 ± 12.5", "225.0 ± 12.5", "3.25 ± 0.12", "5 ± 0", " 7 "):
        assert number in printed
