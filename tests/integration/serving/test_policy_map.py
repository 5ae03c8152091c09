"""The map of a policy, read from a store, by the command line and by the page."""

import json

from ragbandit.router.serving.explanations.policy_map import policy_map
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.types import Query

HOSTILE = "Who \x1b[2J <script>alert(1)</script>"


def filled(make_world, **given):
    """Ninety questions of two kinds, each kind with probabilities of its own; two that had no choice."""
    world = make_world(policy={"name": "uniform"}, **given)
    arms = world.router.service.arms
    for number in range(90):
        world.now += 1.0
        text = f"Who is number {number}?" if number % 3 else f"How many are {number}?"
        decision = world.route(HOSTILE if number == 89 else text, tenant="b" if number < 15 else "a")
        pmf = [0.0] * len(arms)
        pmf[0 if number % 3 else 1] = 1.0
        world.write(decisions.update().where(decisions.c.id == decision.id).values(pmf=json.dumps(pmf)))
        if number % 3 and number % 2:
            world.outcome(decision)
            world.feedback(decision, rating=1.0)
    world.router.submit(Query(text="Why this arm?", arms=(arms[0],))).result(30)
    world.learn()
    return world, arms


def test_the_map_is_read_from_the_store(make_world):
    """Each kind has its share, its arm, its mean reward where it was rated, and its newest questions."""
    world, arms = filled(make_world)
    mapped = policy_map(world.database, label="main", schema={}, weight=0.05)
    assert (mapped.questions, mapped.explained) == (90, 1.0)
    said = (
        "these 2 kinds explain 100 % of how the probabilities differ between the newest 90 questions with several arms"
    )
    assert mapped.sentence.partition(";")[0] == said
    who, many = mapped.kinds
    assert (who.name, who.share, who.arms[arms[0]]) == ('begins with "who"', 60 / 90, 1.0)
    assert (many.name, many.share, many.arms[arms[1]]) == ("asks how many, how much or how long", 30 / 90, 1.0)
    assert 0.5 < who.reward <= 1.0
    assert many.reward is None
    assert many.examples[0] == "How many are 87?"
    alone = policy_map(world.database, label="main", schema={}, weight=0.05, tenant="a")
    assert alone.questions == 75
    assert policy_map(world.database, label="main", schema={}, weight=0.05, tenant="b").kinds == ()
