"""seakr: the spread of sampled states decides, with scripted hidden states."""

import asyncio
import math
import re

import numpy as np
import pytest
from hypothesis import given, strategies as some

from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.types import CallFailed
from ragbandit.strategies.arm_parts.steps import together
from ragbandit.strategies.arms.seakr import Seakr, uncertainty
from ragbandit.strategies.base import Prompt
from ragbandit.strategies.generators.scripted import Scripted, ScriptedGenerator
from ragbandit.strategies.generators.text_feed import Token
from tests.support.arms.arm_runs import branches, outcome_of, purposes, queries, run_of

CAPABILITIES = frozenset({"completion", "stop", "logprobs", "hidden_states"})
#: hidden states of five layers and four features
FLAT = np.ones((5, 4), dtype=np.float32)


class Model(ScriptedGenerator):
    """Answers by the first piece that the prompt contains: (greedy text, spread of its samples' states).

    With a spread of 0 all samples have the same state; a text "" makes the samples empty, too.
    """

    def __init__(self, script, *, unlikely=(), states=None, **settings):
        super().__init__([], capabilities=CAPABILITIES)
        self.settings = settings
        self.script, self.unlikely, self.states = script, unlikely, states

    async def complete(self, request):
        whole = f"{request.prompt.body}\n{request.prompt.prefix}"
        text, spread = next(said for piece, said in self.script.items() if piece in whole)
        seed = request.sampling.seed if request.sampling else 0
        states = FLAT + spread * np.random.default_rng(seed).normal(size=FLAT.shape).astype(np.float32)
        tokens = tuple(
            Token(text=piece, logprob=math.log(0.1 if piece.strip() in self.unlikely else 0.95))
            for piece in re.findall(r"\s*\S+", text)
        )
        states = states if self.states is None else self.states
        said = Scripted(text=text, details={"logprobs": tokens, "hidden_states": states})
        self.requests.append(request)
        # One generator for each call: many are under way at the same time.
        return await ScriptedGenerator([said], capabilities=CAPABILITIES, **self.settings).complete(request)


def single(**params):
    return Seakr(**{"delta": -6.0, "samples": 3, "passages": 2, **params})


def multi(**params):
    return Seakr(**{"delta": -6.0, "hops": "multi", "samples": 2, "passages": 2, **params})


def doubts(outcome):
    return [float(value.split()[-1]) for value in branches(outcome, "uncertainty")]


def test_a_sure_answer_needs_no_search():
    """Samples of one mind: the first answer counts, after one greedy call and the samples."""
    outcome = outcome_of(single(), Model({"": ("Ohio", 0.0)}))
    assert (outcome.answer, outcome.stop_reason, outcome.steps) == ("Ohio", "sure", 0)
    assert purposes(outcome) == ["answer"] + ["answer_sample"] * 3
    assert doubts(outcome)[0] == pytest.approx(math.log(1e-3), abs=1e-3)


def test_samples_are_drawn_as_the_settings_say():
    """Every sample has its own seed, and the temperature, top_p and top_k of the settings; the answer is greedy."""
    generator = Model({"": ("Ohio", 0.0)})
    outcome_of(single(seed=5, temperature=0.7, top_p=0.8, top_k=9), generator)
    first, *samples = [request.sampling for request in generator.requests]
    assert first is None
    assert [each.seed for each in samples] == [5, 6, 7]
    assert {(each.temperature, each.top_p, each.top_k) for each in samples} == {(0.7, 0.8, 9)}


def test_the_threshold_has_its_value_inside():
    """A doubt of exactly delta is sure; a delta just below it searches."""
    delta = doubts(outcome_of(single(), Model({"": ("Ohio", 0.0)})))[0]
    exact = uncertainty(np.ones((3, 4)), alpha=1e-3)
    assert delta == pytest.approx(exact, abs=1e-4)
    assert outcome_of(single(delta=exact), Model({"": ("Ohio", 0.0)})).stop_reason == "sure"
    assert outcome_of(single(delta=exact - 1e-6), Model({"": ("Ohio", 0.0)})).stop_reason == "best_passage"


def test_an_unsure_answer_is_read_from_the_surest_passage():
    """Every passage is read alone; the answer with the least doubt counts."""
    script = {"Spielberg:": ("Cincinnati", 0.1), "Jaws:": ("Toledo", 2.0), "": ("Paris", 5.0)}
    generator = Model(script)
    outcome = outcome_of(single(), generator)
    assert (outcome.answer, outcome.stop_reason, outcome.steps) == ("Cincinnati", "best_passage", 1)
    assert queries(outcome) == ["the maker of Jaws from?"]
    assert outcome.cost.passages == 2
    assert outcome.cost.llm_calls == 3 * (1 + 3)
    assert all(prompt.body.count("Spielberg:") + prompt.body.count("Jaws:") < 2 for prompt in generator.prompts)


def test_a_reading_without_words_does_not_count():
    """A passage with an answer wins over passages without one; without any answer the first one stays."""
    some_words = outcome_of(single(), Model({"Spielberg:": ("", 0.0), "Jaws:": ("Ohio", 3.0), "": ("Paris", 5.0)}))
    no_words = outcome_of(single(), Model({"Spielberg:": ("", 0.0), "Jaws:": ("", 0.0), "": ("Paris", 5.0)}))
    assert (some_words.answer, some_words.stop_reason) == ("Ohio", "best_passage")
    assert (no_words.answer, no_words.stop_reason) == ("Paris", "no_reading")
    assert branches(some_words, "samples_dropped") == ["3 of 3 are empty"]


@pytest.mark.parametrize("budget", [{"rounds": 0}, {"passages": 0}])
def test_without_a_passage_the_first_answer_counts(budget):
    """A budget without round or passage ends an unsure answer with no_passage."""
    outcome = outcome_of(single(), Model({"": ("Paris", 5.0)}), **budget)
    assert (outcome.answer, outcome.stop_reason) == ("Paris", "no_passage")
    assert len(branches(outcome, "search_skipped")) == 1


def test_nothing_said_is_an_empty_answer():
    """An empty first answer is unsure; without passages the stop reason is empty_answer, in both ways."""
    for arm in (single(), multi()):
        outcome = outcome_of(arm, Model({"": ("", 0.0)}), corpus=())
        assert (outcome.answer, outcome.stop_reason) == ("", "empty_answer")


def test_the_draft_is_the_first_answer():
    """A budget that ends among the samples leaves the first answer."""
    outcome = outcome_of(single(), Model({"": ("Ohio", 0.0)}, dollars=1.0), dollars=2.0)
    assert (outcome.status, outcome.answer, outcome.cost.llm_calls) == ("exhausted", "Ohio", 2)


@pytest.mark.parametrize(
    ("states", "layer"),
    [(np.ones(4, dtype=np.float32), None), (FLAT, 5), (np.full((5, 4), np.nan, dtype=np.float32), None), ("x", None)],
)
def test_states_that_cannot_be_used_are_a_failure(states, layer):
    """States of the wrong shape, without the layer, or not finite fail the arm by name."""
    outcome = outcome_of(single(layer=layer), Model({"": ("Ohio", 0.0)}, states=states))
    assert outcome.status == "failed"
    assert "states" in outcome.error


def test_a_chain_of_sure_sentences_needs_no_search():
    """Multi: sure sentences are kept as they are until the answer is announced; one final reading."""
    script = {
        "is: Ohio. So the answer is": ("Ohio", 0.0),
        "old.": ("So the answer is: Ohio.", 0.0),
        "": ("It is old.", 0.0),
    }
    outcome = outcome_of(multi(), Model(script))
    assert (outcome.answer, outcome.stop_reason, outcome.steps) == ("Ohio", "answer_found", 0)
    assert [each for each in purposes(outcome) if "sample" not in each] == ["think", "think", "read"]


def test_an_unsure_sentence_is_searched_and_the_surest_passage_kept():
    """Multi: the sure words are searched, each new passage is tried with those kept, the surest stays."""
    script = {
        "So the answer is:": ("Toledo", 3.0),
        "Spielberg: Spielberg came from Cincinnati.\n\nQuestion": ("Spielberg is from Ohio.", 0.0),
        "Jaws: Jaws was": ("Wrong.", 1.0),
        "": ("Spielberg came from Toledo.", 5.0),
    }
    generator = Model(script, unlikely={"Toledo."})
    outcome = outcome_of(multi(sentences=1), generator)
    assert queries(outcome) == ["Spielberg came"]
    assert [each for each in purposes(outcome) if "sample" not in each] == [
        "think",
        "think_with",
        "think_with",
        "read",
        "read",
    ]
    assert "Spielberg is from Ohio. So the answer is:" in generator.prompts[-6].prefix
    # The reading from the kept passage is surer than the one from the sentence.
    assert (outcome.answer, outcome.stop_reason) == ("Spielberg is from Ohio", "max_sentences")
    assert outcome.cost.passages == 2


def test_a_known_answer_comes_before_a_sure_unknown():
    """Multi: of the two last readings one that is "unknown" loses, however sure."""
    script = {
        "So the answer is:": ("unknown", 0.0),
        "Answer:": ("Ohio", 3.0),
        "Jaws: ": ("It is so.", 0.0),
        "Spielberg: ": ("It is so.", 0.0),
        "": ("Jaws is old.", 5.0),
    }
    assert outcome_of(multi(sentences=1), Model(script)).answer == "Ohio"


def test_passages_of_an_earlier_search_are_not_new():
    """Multi: a search that finds nothing ends the chain, although one before left a passage that was not kept."""
    script = {
        "answer is:": ("Ohio", 0.0),
        "Answer:": ("Ohio", 0.0),
        "First.": ("Nowhere.", 5.0),
        "Jaws: ": ("First.", 0.0),
        "Spielberg: ": ("Other.", 1.0),
        "": ("Toledo.", 5.0),
    }
    outcome = outcome_of(multi(), Model(script, unlikely={"Toledo."}))
    assert queries(outcome) == ["the maker of Jaws from?", "Nowhere"]
    assert outcome.stop_reason == "nothing_new"


def test_words_of_question_and_last_sentence_are_searched_however_unlikely():
    """Multi: an unlikely word is in the query if the question holds it; other unlikely and stop words are not."""
    generator = Model({"": ("The maker was from Toledo.", 5.0)}, unlikely={"maker", "Toledo."})
    assert queries(outcome_of(multi(sentences=1), generator)) == ["maker"]


def test_a_proposal_without_sure_words_searches_the_question():
    """Multi: where no word is sure, or nothing was said, the question is searched, and noted."""
    unsure = outcome_of(multi(sentences=1), Model({"": ("Toledo.", 5.0)}, unlikely={"Toledo."}))
    silent = outcome_of(multi(sentences=1), Model({"": ("", 0.0)}))
    assert queries(unsure) == queries(silent) == ["the maker of Jaws from?"]
    assert len(branches(unsure, "query_fallback")) == len(branches(silent, "query_fallback")) == 1


@pytest.mark.parametrize(
    ("params", "script", "budget", "reason"),
    [
        ({"kept_passages": 1}, {"": ("Jaws is old.", 5.0)}, {}, "max_passages"),
        ({}, {"": ("Jaws is old.", 5.0)}, {}, "repeated_query"),
        ({}, {"": ("Jaws is old.", 5.0)}, {"rounds": 0}, "budget_rounds"),
        ({}, {"": ("Nowhere.", 5.0)}, {}, "nothing_new"),
        ({}, {"answer is:": ("Ohio", 0.0), "Jaws was": ("", 0.0), "": ("Jaws old.", 5.0)}, {}, "empty_sentence"),
        ({"sentences": 1}, {"": ("Jaws is old.", 5.0)}, {}, "max_sentences"),
    ],
)
def test_the_chain_ends_by_every_rule(params, script, budget, reason):
    """Multi: each rule that ends the chain is the stop reason, and the last readings still answer."""
    outcome = outcome_of(multi(**params), Model(script), **budget)
    assert (outcome.status, outcome.stop_reason) == ("answered", reason)
    assert outcome.answer


matrices = some.integers(2, 6).flatmap(
    lambda k: some.lists(some.lists(some.floats(-5, 5), min_size=5, max_size=5), min_size=k, max_size=k).map(np.array)
)


@given(matrices)
def test_uncertainty_is_the_log_determinant(states):
    """It is logdet(Z J Z^T + alpha I) / k, with J written out."""
    k, d = states.shape
    centring = np.eye(d) - np.ones((d, d)) / d
    _, expected = np.linalg.slogdet(states @ centring @ states.T + 0.1 * np.eye(k))
    assert uncertainty(states, alpha=0.1) == pytest.approx(expected / k, abs=1e-6)


def call_together(budget, *, fail_at=(), calls=4):
    """(results or error, how many calls were under way at most, the run)."""
    generator = ScriptedGenerator({"": "x"}, seconds=0.01, fail_at=fail_at)
    run = run_of(generator, **budget)
    busy = {"now": 0, "most": 0}

    async def one(number):
        busy["now"] += 1
        busy["most"] = max(busy["most"], busy["now"])
        try:
            await run.complete(Prompt(instructions="", body="b"), purpose="p", max_tokens=1)
        finally:
            busy["now"] -= 1
        return number

    async def go():
        return await together([lambda n=n: one(n) for n in range(calls)], run=run)

    try:
        return asyncio.run(go()), busy["most"], run
    except ArmFailed as error:
        return error, busy["most"], run


def test_calls_are_made_at_the_same_time_unless_tokens_or_dollars_are_capped():
    """Results come in the order of the calls; a cap that each call must be held against makes them wait."""
    for budget, most in (({}, 4), ({"tokens": 1000}, 1), ({"dollars": 1.0}, 1), ({"rounds": 1}, 4)):
        results, under_way, run = call_together(budget)
        assert (results, under_way, run.cost.llm_calls) == ([0, 1, 2, 3], most, 4)


def test_the_first_failure_ends_the_calls_beside_it():
    """The failure itself is raised, and every call that began is in the account."""
    error, _, run = call_together({}, fail_at=[2])
    assert isinstance(error, ArmFailed)
    assert "fails at call 2" in str(error)
    assert run.cost.llm_calls == 4 == len(run.trace)
    assert any(isinstance(event, CallFailed) and event.error == str(error) for event in run.trace)


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_a_temperature_that_no_model_can_use_is_refused(value):
    """The temperature of the samples is a finite number above 0."""
    with pytest.raises(ConfigError, match=r"arms\.seakr\.temperature"):
        Seakr(temperature=value)
