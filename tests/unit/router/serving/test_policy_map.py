"""The map of a policy: a policy that is a tree gives its own tree, and no leaf is due to chance."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ragbandit.router.config.context_schema import ContextKey
from ragbandit.router.serving.explanations import policy_map
from ragbandit.router.serving.explanations.kind_names import Condition, kind_name
from ragbandit.router.serving.explanations.policy_map import (
    MOST_LEAVES,
    Asked,
    KindRewards,
    grow_tree,
    halves,
    map_of,
    map_of_newest,
)
from ragbandit.router.serving.explanations.question_facts import frequent_words, question_facts
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


def told(text):
    """The facts of a text that hold, and its values."""
    return {name: value for name, value in facts(text).items() if value is not False and name not in BARE}


def test_facts_of_questions_in_any_language():
    """How a question begins, its language and length, and what is in it; of a text that is not kept, nothing."""
    cases = {
        "Who wrote Dracula in 1897?": (
            {"begins": "who", "language": "English", "words": 5.0, "a name": True, "a number": True, "a date": True}
        ),
        "How many moons has Mars?": {"begins": "how many", "language": "English", "words": 5.0, "a name": True},
        "how does it work": {"begins": "how", "language": "English", "words": 4.0},
        "In which year?": {"begins": "which", "language": "English", "words": 3.0},
        "Is it? And why?": {"begins": "yes or no", "language": "English", "words": 4.0, "several questions": True},
        "Welche Farbe hat der Ofen?": {"begins": "welche", "language": "German", "words": 5.0},
        "Ist er besser als der Herd?": (
            {"begins": "yes or no", "language": "German", "words": 6.0, "a comparison": True}
        ),
        "Wie viele Monde hat er?": {"begins": "how many", "language": "German", "words": 5.0},
        "Fix `run()`": {"begins": "no question word", "words": 2.0, "code": True},
        "¿Quién escribió el libro?": {"begins": "no question word", "language": "Spanish", "words": 4.0},
        "谁写了这本书": {"language": "Chinese", "characters": 6.0},
        "Кто написал книгу?": {"language": "Cyrillic letters", "words": 3.0},
        "\ud800 \u202e ?": {"begins": "no question word", "words": 3.0},
        "in": {"begins": "no question word", "language": "English", "words": 1.0},
        "   ": {},
        "0" * 64: {},
    }
    with every_case() as case:
        for text, expected in cases.items():
            with case(text):
                assert told(text) == expected
        with case("context"):
            given = {"plan": "paid", "age": 40, "tags": ["a", "b"], "vip": True, "asked_by": "x", "other": "x"}
            assert facts("", **given) == BARE | {
                "plan": "paid", "age": 40.0, "tags a": True, "tags b": True, "vip": "true"
            }  # fmt: skip
        with case("of before it was declared"):
            assert facts("", plan=3, age="x", tags="a", vip=None) == BARE
        with case("request and session"):
            edge = {"edge": {"needs": ["tools"], "optional_needs": ["images"]}}
            row = {"text": "", "tenant": "acme", "context": "{}", "price": None, "cost_weight": None}
            found = question_facts(row | {"request": json.dumps(edge), "session_place": "first question"}, schema={})
            assert found == BARE | {"needs tools": True, "needs images": True, "session": "first question"}
        with case("price"):
            assert facts("", price="economy", weight=0.2) == BARE | {"price": "economy", "weight of cost": 0.2}


def test_words_that_twenty_questions_have():
    """Words and pairs of neighbours without a topic, or of fewer than twenty questions, are none; Chinese has pairs."""
    texts = [f"What is the late refund of order {number}?" for number in range(20)] + ["Where is my parcel?"] * 19
    words = frequent_words([*texts, *["我要退款吗"] * 20])
    assert {"refund", "late", "late refund", "order", "退款", "我要", "要退", "款吗"} == words.keys()
    assert words["late refund"] == list(range(20))


def test_names_say_what_questions_are():
    """A condition that does not hold is named by the values that the questions of the kind have."""
    rows = [facts(text, plan="paid") for text in ("Who is it?", "When is it?", "Is it?")]

    def name(*conditions, rows=rows, words=None):
        given = [(Condition(fact, value, is_word=fact == "refund"), holds) for fact, value, holds in conditions]
        return kind_name(given, facts=rows, words=words or {})

    short = ("words", 12.0, True)
    cases = {
        "all questions": name(),
        'begins with "who" or "when" or asks yes or no': name(("begins", "why", False)),
        'begins with "who"': name(("begins", "who", True), rows=rows[:1]),
        "up to 12 words": name(short, ("words", 20.0, True)),
        "10 to 12 words": name(short, ("words", 9.0, False)),
        "longer than 12 words": name(("words", 12.0, False)),
        "up to 1 word": name(("words", 1.0, True)),
        "without numbers and up to 12 words": name(("a number", True, False), short),
        "first question of a session or without a session": name(
            ("session", "later question", False), rows=[{"session": "first question"}] * 2 + [{}]
        ),
        "without tools": name(("needs tools", True, False)),
        "plan paid": name(("plan", "free", False)),
        "age up to 40": name(("age", 40.0, True), rows=[]),
        'up to 12 words and about "refund"': name(("refund", True, True), short),
        'without "refund"': name(("refund", True, False)),
        'about "parcel"': name(("refund", True, False), words={"order": 0.8, "parcel": 1.0}),
    }
    with every_case() as case:
        for expected, said in cases.items():
            with case(expected):
                assert said == expected


def questions(count, *, seed=0):
    rng = np.random.default_rng(seed)
    words = ("who", "when", "why", "how")
    return [facts(f"{words[rng.integers(4)]} {'x ' * rng.integers(1, 20)}") for _ in range(count)]


def mapped(rows, pmfs, *, texts=None):
    """Returns (name of each leaf -> its questions, the share that the leaves explain)."""
    texts = texts or [""] * len(rows)
    tests = [*policy_map._tests(rows)]
    asked = Asked(texts=texts, facts=rows, tests=tests, made=halves(texts))
    earned = replace(KindRewards.of_outcomes(np.full(pmfs.shape, np.nan), pmfs=pmfs), confirmed=True)
    tree, by_rewards = grow_tree(pmfs, tests=tests, made=asked.made, earned=earned)
    assert not by_rewards
    leaves = {policy_map._name(path, places=places, asked=asked): places for path, places in tree}
    return leaves, policy_map._explained(pmfs, tree, made=asked.made)


def test_a_policy_that_is_a_tree_is_found_again():
    """Long questions get one arm, short questions with "who" a second arm; three leaves explain this policy."""
    rows = questions(600)
    long, who = (np.array([row["words"] > 9 for row in rows]), np.array([row["begins"] == "who" for row in rows]))
    pmfs = np.where(long[:, None], [0.1, 0.1, 0.8], np.where(who[:, None], [0.2, 0.7, 0.1], [0.9, 0.05, 0.05]))
    said, explained = mapped(rows, pmfs)
    other = next(name for name in said if "why" in name)
    assert said.keys() == {"longer than 9 words", 'up to 9 words and begins with "who"', other}
    assert all(word in other for word in ("up to 9 words", '"why"', '"how"', '"when"'))
    assert explained > 0.9
    again, _ = mapped(rows, pmfs)
    assert {leaf: here.tolist() for leaf, here in said.items()} == {leaf: here.tolist() for leaf, here in again.items()}


def test_chance_makes_no_leaves():
    """Random pmfs never give a second leaf in 20 tries; equal pmfs are explained by nothing."""
    rng, leaves = np.random.default_rng(1), 0
    for seed in range(20):
        said, explained = mapped(questions(200, seed=seed), rng.dirichlet([1.0, 1.0, 1.0], 200))
        leaves += len(said)
        assert explained < 0.2
    assert leaves == 20
    said, explained = mapped(questions(200), np.full((200, 3), 1 / 3))
    assert (list(said), explained) == (["all questions"], 0.0)


def test_leaves_are_few_and_not_small():
    """A policy that is another one for every length has eight leaves of a fiftieth of the questions or more."""
    rows, rng = questions(600), np.random.default_rng(2)
    of_length = rng.dirichlet([0.3, 0.3], 21)
    pmfs = np.array([of_length[int(row["words"])] for row in rows])
    said, explained = mapped(rows, pmfs)
    assert len(said) == MOST_LEAVES
    assert min(map(len, said.values())) >= 600 / 50
    assert 0.3 < explained < 1.0
    assert all(" and " not in leaf for leaf in said)  # "up to 9 words" says "up to 15 words" too


def test_a_split_holds_on_questions_that_it_was_not_made_from():
    """What is true of one half of the questions only makes no kind, and equal texts are in the same half."""
    rows, texts = questions(400), [f"question {number // 2}" for number in range(400)]
    made, long = halves(texts), np.array([row["words"] > 9 for row in rows])
    assert made.tolist() == [number // 2 % 2 == 0 for number in range(400)]
    of_all = np.where(long[:, None], [0.1, 0.9], [0.9, 0.1])
    assert len(mapped(rows, of_all, texts=texts)[0]) == 2
    of_half = np.where((long == made)[:, None], [0.1, 0.9], [0.9, 0.1])
    said, explained = mapped(rows, of_half, texts=texts)
    assert (list(said), explained) == (["all questions"], 0.0)


def shown(pmfs, *, rows, texts, rewards=None):
    """The map of questions; without rewards of every arm, rewards are unknown and confirm the kinds."""
    earned = KindRewards.of_outcomes(np.full(pmfs.shape, np.nan) if rewards is None else rewards, pmfs=pmfs)
    earned = replace(earned, confirmed=True) if rewards is None else earned
    asked = Asked(texts=texts, facts=rows, tests=[*policy_map._tests(rows)], made=halves(texts))
    return map_of(asked, pmfs=pmfs, arms=["cheap", "dear"], earned=earned)


def test_the_page_says_that_texts_are_not_kept():
    """Without texts kinds have no words, and the sentence names the setting."""
    rows = questions(400)
    pmfs = np.where(np.array([row["words"] > 9 for row in rows])[:, None], [0.1, 0.9], [0.9, 0.1])
    told = shown(pmfs, rows=rows, texts=[""] * 400)
    assert told.is_named
    assert "the kinds have no words, since texts are not kept (log.text)" in told.sentence


def test_kinds_that_explain_little_are_not_named():
    """The questions that differ most are shown instead; without texts, and where none differ, there are none."""
    rows, texts = questions(400), [f"question {number}" for number in range(400)]
    chances = np.random.default_rng(1).random(400)
    pmfs = np.stack([chances, 1.0 - chances], axis=1)
    told = shown(pmfs, rows=rows, texts=texts)
    assert not told.is_named
    likeliest = [f"question {number}" for number in np.argsort(-chances)[:3]]
    first = told.kinds[0]
    assert (first.name, [*first.examples]) == ("the 3 questions most likely to get cheap", likeliest)
    assert "too little to name them" in told.sentence
    assert shown(pmfs, rows=rows, texts=[""] * 400).kinds == ()
    alike = shown(0.5 + (pmfs - 0.5) / 50, rows=rows, texts=texts)
    assert (alike.kinds, "no kind of question gets other arms" in alike.sentence) == ((), True)


def test_a_kind_earns_so_much_over_the_best_fixed_arm():
    """The difference is that of the means on the questions of the kind, and its interval holds it."""
    rows, texts = questions(400), [f"question {number}" for number in range(400)]
    long = np.array([row["words"] > 9 for row in rows])
    pmfs = np.where(long[:, None], [0.0, 1.0], [1.0, 0.0])
    rewards = np.where(long[:, None], [0.2, 0.8], [0.6, 0.5]) + np.random.default_rng(3).normal(0, 0.1, (400, 2))
    told = shown(pmfs, rows=rows, texts=texts, rewards=rewards)
    assert told.is_named
    assert told.best == "dear"
    kinds = {kind.name: kind.over_best for kind in told.kinds}
    assert kinds["longer than 9 words"].estimate == 0.0
    short = kinds["up to 9 words"]
    assert 0.05 < short.low < 0.1 < short.high < 0.15
    unknown = shown(pmfs, rows=rows, texts=texts)
    assert (unknown.best, unknown.kinds[0].over_best.estimate) == (None, None)


def test_kinds_are_named_only_if_rewards_confirm_them():
    """If every kind earns the same with each arm, the shares of all questions are shown, with the reason."""
    rows, texts = questions(400), [f"question {number}" for number in range(400)]
    pmfs = np.where(np.array([row["words"] > 9 for row in rows])[:, None], [0.1, 0.9], [0.9, 0.1])
    told = shown(pmfs, rows=rows, texts=texts, rewards=np.random.default_rng(4).normal(0.5, 0.1, (400, 2)))
    assert not told.is_named
    assert told.sentence.startswith("different questions get different arms; no rewards confirm yet that this pays")
    [everything] = told.kinds
    assert (everything.name, everything.share, everything.examples) == ("these 400", 1.0, ())
    assert everything.arms == pytest.approx(dict(zip(("cheap", "dear"), pmfs.mean(axis=0), strict=True)))


def by_draws(seed, *, means, dear=0.3):
    """The map of 600 draws from equal probabilities. means: chances of a reward, by (short or long question, arm)"""
    rows, texts, rng = questions(600), [f"question {number}" for number in range(600)], np.random.default_rng(seed)
    long = np.array([row["words"] > 9 for row in rows]).astype(np.intp)
    drawn = (rng.random(600) < dear).astype(np.intp)
    rewards = (rng.random(600) < np.array(means)[long, drawn]).astype(np.float64)
    pmfs = np.tile([1.0 - dear, dear], (600, 1))
    earned = KindRewards.of_draws(rewards, drawn=drawn, pmfs=pmfs, most=600)
    asked = Asked(texts=texts, facts=rows, tests=[*policy_map._tests(rows)], made=halves(texts))
    return map_of(asked, pmfs=pmfs, arms=["cheap", "dear"], earned=earned)


def test_kinds_that_rewards_show_are_named_before_the_policy_follows_them():
    """The sentence says that the probabilities do not follow, and a kind has the arm that earns more there."""
    told = by_draws(1, means=[[0.9, 0.5], [0.4, 0.8]])
    assert (told.is_named, told.by_rewards, told.differs, told.best) == (True, True, False, "dear")
    assert told.sentence.startswith(
        "an arm's advantage differs between these kinds, but the probabilities do not follow yet: these 2 kinds"
    )
    kinds = {kind.name: kind for kind in told.kinds}
    assert kinds.keys() == {"longer than 9 words", "up to 9 words"}
    assert kinds["longer than 9 words"].better_arm is None  # the best fixed arm is best here
    short = kinds["up to 9 words"]
    assert short.better_arm == "cheap"
    assert 0.2 < short.better_by.low < 0.4 < short.better_by.high < 0.6


def test_rewards_that_differ_for_every_arm_make_no_kinds():
    """Where long questions are harder for both arms alike, and where all are alike, rewards name no kind in 40 logs."""
    named = [
        by_draws(seed, means=means).is_named
        for seed in range(20)
        for means in ([[0.9, 0.95], [0.3, 0.35]], [[0.5, 0.7]] * 2)
    ]
    assert sum(named) <= 1


def started_safely(*, rewards):
    """The map of 400 questions, the newest first: a safe start decided the older 300."""
    rows, texts = questions(400), [f"question {number}" for number in range(400)]
    long = np.array([row["words"] > 9 for row in rows])[:, None]
    learned = np.arange(400)[:, None] < 100
    pmfs = np.where(learned, np.where(long, [0.1, 0.9], [0.9, 0.1]), [0.02, 0.98])
    asked = Asked(texts=texts, facts=rows, tests=[*policy_map._tests(rows)], made=halves(texts))
    earned = KindRewards.of_outcomes(np.where(long, *rewards) + np.zeros((400, 2)), pmfs=pmfs)
    return map_of_newest(asked, pmfs=pmfs, arms=["cheap", "dear"], earned=earned), pmfs


def test_the_kinds_of_the_newest_questions_are_named_if_a_safe_start_decided_the_others():
    """Kinds that explain the newest quarter of the questions are named as those of this quarter."""
    told, _ = started_safely(rewards=([0.2, 0.8], [0.9, 0.5]))
    assert (told.is_named, told.questions) == (True, 100)
    assert {kind.name for kind in told.kinds} == {"longer than 9 words", "up to 9 words"}
    assert "the newest 100 questions" in told.sentence


def test_shares_of_the_newest_questions_are_shown_beside_those_of_all():
    """If rewards confirm no kinds, a reader sees how the newest quarter differs from the whole."""
    told, pmfs = started_safely(rewards=([0.5, 0.5], [0.5, 0.5]))
    assert [(kind.name, kind.share) for kind in told.kinds] == [
        ("these 400", 1.0),
        ("of these, the newest 100", 0.25),
    ]
    assert [kind.arms["cheap"] for kind in told.kinds] == pytest.approx([pmfs[:, 0].mean(), pmfs[:100, 0].mean()])


def drawn_rewards(seed, *, means, share=1.0):
    """Rewards of 600 draws from pmfs that prefer the second arm for every second question: (rewards, arms, pmfs)."""
    rng, second = np.random.default_rng(seed), np.arange(600) % 2 == 1
    pmfs = np.where(second[:, None], [0.1, 0.9], [0.9, 0.1])
    drawn = (rng.random(600) < pmfs[:, 1]).astype(np.intp)
    rewards = (rng.random(600) < np.array(means)[second.astype(np.intp), drawn]).astype(np.float64)
    return np.where(rng.random(600) < share, rewards, np.nan), drawn, pmfs


def test_draws_confirm_that_questions_need_different_arms():
    """Rewards of drawn arms suffice, often also if 30 % are known; equal questions seem to differ in 5 % of logs."""

    def confirmed(**given):
        logs = (drawn_rewards(seed, **given) for seed in range(60))
        return sum(KindRewards.of_draws(r, drawn=d, pmfs=p, most=100).confirmed for r, d, p in logs)

    assert confirmed(means=[[0.9, 0.8], [0.3, 0.8]]) == 60
    assert confirmed(means=[[0.9, 0.8], [0.3, 0.8]], share=0.3) > 40
    assert confirmed(means=[[0.5, 0.8], [0.5, 0.8]]) <= 8
    assert confirmed(means=[[0.3, 0.3], [0.9, 0.9]]) <= 8
    assert confirmed(means=[[0.3, 0.8], [0.9, 0.8]]) == 0


def test_few_or_certain_draws_confirm_nothing():
    """Fewer than ten rewards, or probabilities of 0 and 1, say nothing about the other arm."""
    rewards, drawn, pmfs = drawn_rewards(1, means=[[1.0, 0.0], [0.0, 1.0]])
    few = np.where(np.arange(600) < 9, rewards, np.nan)
    assert not KindRewards.of_draws(few, drawn=drawn, pmfs=pmfs, most=100).confirmed
    certain = np.eye(2)[drawn]
    assert not KindRewards.of_draws(rewards, drawn=drawn, pmfs=certain, most=100).confirmed
