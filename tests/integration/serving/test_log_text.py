"""log.text: what the database keeps of texts, and what is refused where it keeps none."""

from dataclasses import replace

import pytest
from sqlalchemy import select

from ragbandit.router.policies.settings_check import check_policy
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.storage.sql.tables import decisions, feedback, outcomes
from ragbandit.shared.errors import ConfigError, Conflict, InvalidInput
from ragbandit.shared.types import CallFailed, DecisionId, Query

SECRET = "Zygmunt-Przybylski"
ARMS = {name: {"run_by": "caller"} for name in ("no_retrieval", "single_step")}


def texts(world) -> str:
    with world.database.read() as connection:
        return "\n".join(
            str(row) for table in (decisions, outcomes, feedback) for row in connection.execute(select(table))
        )


def test_no_text_is_kept(make_world):
    """Questions, contexts, answers, traces and errors are not in the database; repeated ids are told apart anyway."""
    world = make_world(log={"text": "none"}, arms=ARMS)
    query = Query(text=f"who is {SECRET}?", context={"user": SECRET}, id=DecisionId("d1"))
    decision = world.router.submit(query).result(30)
    outcome = make_outcome(decision_id=decision.id, now=1.0, status="answered", answer=SECRET, steps=1.0)
    outcome = replace(outcome, trace=(CallFailed(purpose="x", error=SECRET, seconds=1.0),), error=SECRET)
    assert world.store.add_outcome(outcome)
    world.feedback(decision, reward=0.5)
    assert SECRET not in texts(world)
    assert world.router.decision(decision.id).decision.query.text == ""
    assert world.router.submit(query).result(30).arm == decision.arm
    with pytest.raises(Conflict):
        world.router.submit(replace(query, text="another question")).result(30)
    assert not world.store.add_outcome(outcome)
    assert world.learn() == 1
    assert world.counters().learned == 1
    assert world.router.verify(deep=True).ok


def test_labels_are_refused(make_world):
    """A label has nothing to be compared with: the remedy is a rating or a reward."""
    world = make_world(log={"text": "none"}, arms=ARMS)
    with pytest.raises(InvalidInput, match=r"log\.text") as caught:
        world.feedback(world.route(), label=["Paris"])
    assert (caught.value.field, "rating" in caught.value.remedy) == ("label", True)


@pytest.mark.parametrize("given", [{"arms": {"single_step": {}}}, {"arms": ARMS, "policy": {"name": "mba_paper"}}])
def test_what_needs_texts_is_refused(settings, given):
    """Arms that workers run and policies that learn from questions are refused, naming the setting."""
    with pytest.raises(ConfigError) as caught:
        check_policy(settings(log={"text": "none"}, **given))
    assert caught.value.field == "log.text"
    assert "full" in caught.value.remedy
