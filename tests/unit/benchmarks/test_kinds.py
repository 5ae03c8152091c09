"""The benchmark of kinds of questions: its worlds have the rule they say, and a pass is mapped."""

import numpy as np

from benchmarks.kinds.passes import mapped, passes
from benchmarks.kinds.worlds import LANGUAGES, WORLDS, World, is_followed, is_named, questions_of, table_of


def test_the_cheap_arm_fails_where_the_rule_holds():
    """In each world with a rule the cheap arm is right on a third of its questions, and on most others."""
    for world in WORLDS:
        questions = questions_of(world.language, 1_000)
        right = np.array([row.correct["cheap"] for row in table_of(world, questions=questions, seed=1).rows])
        topics = {*LANGUAGES[world.language].topics[: 2 if len(world.rule) < 2 else 3]}
        facts = {
            "length": [question.clauses >= 2 for question in questions],
            "topic": [any(topic in question.text for topic in topics) for question in questions],
            "plan": [question.plan == "paid" for question in questions],
        }
        if world.rule:
            held = np.all([facts[fact] for fact in world.rule], axis=0)
            assert right[held].mean() < 0.45 < 0.8 < right[~held].mean()


def test_a_rule_is_named_if_every_fact_is():
    """A mixture needs both facts in the names."""
    world = World(language="German", rule=("topic", "plan"))
    assert is_named(world, ['plan paid and about "erstattung"', "plan free"])
    assert not is_named(world, ["plan paid", "plan free"])
    assert is_named(World(language="Chinese", rule=("length",)), ["up to 24 characters"])


def test_choices_follow_a_rule_if_each_of_its_facts_changes_them():
    """Choices by the plan alone follow half of a mixture, which is not the rule; a tenth of its effect is none."""
    world, plan = World(language="German", rule=("topic", "plan")), World(language="German", rule=("plan",))
    questions = questions_of("German", 200)
    paid = np.array([question.plan == "paid" for question in questions])
    both = np.array([all(world.facts(question)) for question in questions])
    assert is_followed(plan, questions=questions, expensive=paid + 0.0)
    assert is_followed(world, questions=questions, expensive=both + 0.0)
    assert not is_followed(world, questions=questions, expensive=paid + 0.0)
    assert not is_followed(world, questions=questions, expensive=paid - 0.1 * (paid & ~both))
    assert not is_followed(World(language="German", rule=()), questions=questions, expensive=paid + 0.0)


def test_a_pass_ends_in_a_map():
    """A policy that learns whose questions are of the plan paid has kinds with this name."""
    world = World(language="English", rule=("plan",))
    (one,) = (
        one
        for one in passes(seeds=range(1), decisions=1_000, policy="mba", labelled=1.0, encoder="hashing")
        if one.world == world
    )
    told, follows = mapped(one)
    assert follows
    assert told.is_named
    assert is_named(world, [kind.name for kind in told.kinds])
