"""seakr: the spread of sampled states decides, with scripted hidden states."""

import asyncio
import math
import re

import numpy as np
import pytest
from hypothesis import given, strategies as some

from ragbandit.additions.research_arms.seakr import Seakr, uncertainty
from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.types import CallFailed
from ragbandit.strategies.arm_parts.steps import run_calls
from ragbandit.strategies.base import Prompt
from ragbandit.strategies.generators.parts import Token
from ragbandit.strategies.generators.scripted import Scripted, ScriptedGenerator
from tests.support.arms.arm_runs import outcome_of, purposes, queries, run_of

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


@pytest.mark.parametrize(
    ("states", "layer"),
    [(np.ones(4, dtype=np.float32), None), (FLAT, 5), (np.full((5, 4), np.nan, dtype=np.float32), None), ("x", None)],
)
def test_states_that_cannot_be_used_are_a_failure(states, layer):
    """States of the wrong shape, without the layer, or not finite fail the arm by name."""
    outcome = outcome_of(single(layer=layer), Model({"": ("Ohio", 0.0)}, states=states))
    assert outcome.status == "failed"
    assert "states" in outcome.error


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
        return await run_calls([lambda n=n: one(n) for n in range(calls)], run=run)

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
