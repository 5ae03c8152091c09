"""Another `reward.weight` on a running label: no new ledger, nothing learned again, every arm at the new weight."""

from dataclasses import replace

import pytest
from sqlalchemy import select

from ragbandit.router.policies import untrained_policy
from ragbandit.router.policies.base import apply_update, pmf_of_one
from ragbandit.router.storage.sql.tables import policies

LEDGERS = select(policies.c["label", "algorithm", "params", "encoder_hash", "made_at"])


def rate(world, count=1):
    """Questions, answered and rated."""
    decisions = [world.route() for _ in range(count)]
    for number, decision in enumerate(decisions):
        world.outcome(decision)
        world.feedback(decision, rating=float(number % 3 == 0))
    return decisions


@pytest.mark.parametrize("name", ["mba", "linucb"])
def test_weight_changes_within_the_ledger(make_world, name):
    """The snapshot goes on; from the first label on the policy is the one that had this weight from the beginning."""
    before = make_world(policy={"name": name})
    rate(before, 12)
    before.learn()
    with before.database.read() as connection:
        ledgers = connection.execute(LEDGERS).mappings().all()
    version = before.route().version
    before.close()
    after = make_world(policy={"name": name}, reward={"weight": 0.4})
    (first,) = rate(after)
    assert (first.version, first.facts["weight"]) == (version, 0.05), "nothing was learned again"
    assert after.learn() == 1
    later = after.route()
    quality, cost = (later.facts[key] for key in ("quality", "cost"))
    assert later.facts["weight"] == 0.4
    assert list(later.scores) == [q - 0.4 * c for q, c in zip(quality, cost, strict=True)]
    with after.database.read() as connection:
        assert connection.execute(LEDGERS).mappings().all() == ledgers
    assert [row["weight"] for row in after.updates()] == [0.05] * 12 + [0.4]
    always = untrained_policy(after.settings.policy_definition)
    for update in after.ledger.read(after=0):
        apply_update(always, replace(update, reward=update.reward.at(0.4)))
    asked = {"features": later.features, "arms": later.arms}
    mixed, whole = (pmf_of_one(one, later.query, **asked) for one in (after.learner().policy, always))
    assert (mixed.pmf, mixed.scores, mixed.facts) == (whole.pmf, whole.scores, whole.facts)
    assert (mixed.scores, mixed.facts["quality"]) == (later.scores, quality)
    assert after.router.verify(deep=True).ok
