"""Rows of a table as rows of a log."""

from dataclasses import replace

import pytest

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.offline.logs.tables import arm_rows, charged_costs
from ragbandit.router.policies.draw import checked_pmf
from ragbandit.shared.types import IMPORTED, TableRow

ARMS = ("a", "b", "c")
ROW = TableRow(id="secret", question="Who?", correct={"a": 0.0, "b": 1.0, "c": 0.5}, steps={"a": 0, "b": 2, "c": 5})


def rows_of(row=ROW, *, occurrence=0, **more):
    return arm_rows(
        row,
        arms=ARMS,
        features=None,
        encoder_hash="",
        reward=RewardSettings(weight=0.1, **more),
        label="main",
        now=7.0,
        occurrence=occurrence,
    )


def test_every_arm_once_with_the_uniform_propensity():
    """K rows, an arm each, whose pmf is uniform and whose propensity is that of their arm."""
    found = [row.decision for row in rows_of()]
    assert [decision.arm for decision in found] == list(ARMS)
    for decision in found:
        assert decision.arms == ARMS
        assert decision.pmf == pytest.approx((1 / 3,) * 3)
        assert decision.propensity == decision.pmf[0]
        assert decision.facts == {IMPORTED: "table"}


def test_ids_follow_from_what_is_asked():
    """The same question has the same ids whatever the row is called; asked once more in a table it has others."""
    ids = [row.decision.id for row in rows_of()]
    assert len(set(ids)) == 3
    assert [row.decision.id for row in rows_of(replace(ROW, id="other"))] == ids
    assert not set(ids) & {row.decision.id for row in rows_of(occurrence=1)}
    assert not any("secret" in repr(row) for row in rows_of())
    assert checked_pmf(rows_of()[0].decision, arms=ARMS)


@pytest.mark.parametrize(
    ("prices", "charged"),
    [
        ({"steps": 1.0}, {"steps": 2}),
        ({"dollars": 1.0, "steps": 0.0}, {"dollars": 0.5}),
        ({"dollars": 1.0, "seconds_total": 0.1}, {"dollars": 0.5, "seconds_total": 9.0}),
        ({"prompt_tokens": 1.0}, {"prompt_tokens": 3.0}),
        ({"passages": 1.0, "llm_calls": 1.0}, {}),
    ],
)
def test_costs_that_the_reward_charges(prices, charged):
    """Steps, seconds and named costs count if they have a price; `cost` has the unit of the only price, or dollars."""
    costs = {"cost": {"b": 3.0}, "dollars": {"b": 0.5}}
    row = replace(ROW, seconds={"b": 9.0}, costs=costs)
    assert {term: amounts["b"] for term, amounts in charged_costs(row, prices=prices).items()} == charged
    unnamed = replace(row, steps={}, costs={"cost": {"b": 3.0}})
    assert charged_costs(unnamed, prices={"steps": 1.0}) == {"steps": {"b": 3.0}}
