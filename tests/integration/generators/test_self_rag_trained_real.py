"""self_rag_trained over real forward passes: the small model with reflection tokens that nobody has trained."""

import asyncio
import shutil

import pytest

from ragbandit.router.config.settings import GeneratorSettings, Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.arms.self_rag_trained import SelfRagTrained, share
from ragbandit.strategies.base import Prompt, Request
from ragbandit.workers.setup.generators import check_arms, make_generator, offered
from tests.support.arms import arm_runs
from tests.support.arms.arm_runs import QUESTION, branches, purposes

pytestmark = pytest.mark.models

PARAMS = SelfRagTrained().params
GATE = PARAMS["gate_tokens"]
TOKENS = [name for group in ("gate", "relevance", "support", "utility") for name in PARAMS[f"{group}_tokens"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The first two layers of SmolLM2 with the paper's tokens, whose embeddings are drawn by a fixed seed.

    Nobody has trained the tokens, so that more layers would tell no more of them.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ragbandit.router.encoders.weights import DEFAULT_GENERATOR, resolve

    source, target = resolve(DEFAULT_GENERATOR).folder, tmp_path_factory.mktemp("models") / "reflecting"
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, num_hidden_layers=2)
    tokenizer.add_tokens(TOKENS)
    torch.manual_seed(5)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    tokenizer.save_pretrained(target)
    model.save_pretrained(target)
    yield target
    shutil.rmtree(target)  # hundreds of megabytes, which pytest would keep


def settings_of(folder, **more):
    given = {"model": str(folder), "precision": "float32", "device": "cpu", "threads": 1, "trained_tokens": TOKENS}
    return GeneratorSettings.model_validate({**given, **more})


@pytest.fixture(scope="module")
def generator(folder):
    made = make_generator(settings_of(folder))
    yield made
    asyncio.run(made.close())


def outcome_of(generator, **params):
    return arm_runs.outcome_of(SelfRagTrained(max_tokens=12, passages=2, **params), generator)


def test_every_reflection_token_is_told_at_every_place(generator):
    """The model returns the log-probability of every reflection token at each written token, by name."""
    prompt = Prompt(instructions="", body=QUESTION)
    wanted = frozenset({"logprobs", "trained_tokens"})
    told = asyncio.run(generator.complete(Request(prompt=prompt, max_tokens=6, want=wanted))).details
    assert len(told["trained_tokens"]) == len(told["logprobs"]) > 0
    assert all(set(each) == set(TOKENS) and max(each.values()) <= 0.0 for each in told["trained_tokens"])
    assert sum(share(told["trained_tokens"][0], names=GATE)) == pytest.approx(1.0)


def test_the_gate_opens_by_the_models_probabilities(generator):
    """The gate is in the trace; just below its value the arm searches and reads every passage, at it it does not."""
    gate = float(branches(outcome_of(generator, threshold=1.0), "gate")[0])
    open_, shut = outcome_of(generator, threshold=gate - 0.001), outcome_of(generator, threshold=gate + 0.001)
    assert 0.0 < gate < 1.0
    assert (purposes(shut), shut.steps, shut.cost.retriever_calls) == (["gate"], 0, 0)
    assert shut.stop_reason in ("no_retrieval_wanted", "empty_answer")
    assert (purposes(open_), open_.steps, open_.cost.retriever_calls) == (["gate", "read", "read"], 1, 1)
    assert open_.stop_reason in ("best_passage", "empty_answer")


def test_the_arm_is_configured_by_its_tokens(folder):
    """generator.trained_tokens offers what the arm needs before a model is loaded; without it the arm is refused."""
    arms = {"arms": {"self_rag_trained": {}}, "policy": {"fallback": "self_rag_trained"}}
    told = Settings.model_validate({**arms, "generator": settings_of(folder).model_dump()})
    untold = Settings.model_validate({**arms, "generator": settings_of(folder, trained_tokens=[]).model_dump()})
    assert "trained_tokens" in offered(told.generator)
    check_arms(told)
    with pytest.raises(ConfigError, match=r"needs trained_tokens.*generator\.trained_tokens"):
        check_arms(untold)
