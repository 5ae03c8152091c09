import asyncio
import dataclasses
import json
import os
import stat
import time

import numpy as np
import pytest

from ragbandit.shared.types import Branch, Generated
from ragbandit.strategies.arms.basic import NoRetrieval
from ragbandit.strategies.base import Prompt, Request, Sampling
from ragbandit.strategies.generators.response_cache import CachedGenerator, request_key
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.generators.text_feed import Token
from tests.support.arms.arm_runs import outcome_of

PROMPT = Prompt(instructions="Be short.", body="Where is the ferry?")
REQUEST = Request(prompt=PROMPT, max_tokens=8)


def complete(generator, request=REQUEST):
    return asyncio.run(generator.complete(request))


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_the_second_time_nobody_is_asked(tmp_path):
    """The same request is answered from the folder, by another process too, with text, tokens and price."""
    first = ScriptedGenerator(["In the harbour."], dollars=0.25, seconds=0.05)
    made = complete(CachedGenerator(first, folder=tmp_path / "answers"))
    kept = complete(CachedGenerator(ScriptedGenerator([]), folder=tmp_path / "answers"))
    assert made.seconds is None
    assert kept.seconds >= 0.05
    assert dataclasses.replace(kept, seconds=None) == made
    assert kept.dollars == 0.25


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": dataclasses.replace(PROMPT, instructions="Be long.")},
        {"prompt": dataclasses.replace(PROMPT, body="Where?")},
        {"prompt": dataclasses.replace(PROMPT, prefix="In")},
        {"max_tokens": 9},
        {"stop": ("\n",)},
        {"want": frozenset({"logprobs"})},
        {"sampling": Sampling(temperature=0.5, seed=1)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_a_request_counts(change):
    """A request that differs in anything but its deadline has another key; so do seeds, generators and versions."""
    key = request_key(REQUEST, generator="a", version="")
    assert key != request_key(dataclasses.replace(REQUEST, **change), generator="a", version="")
    assert key == request_key(dataclasses.replace(REQUEST, deadline=5.0), generator="a", version="")
    sampled = [dataclasses.replace(REQUEST, sampling=Sampling(temperature=0.5, seed=seed)) for seed in (1, 2)]
    keys = {request_key(each, generator="a", version="") for each in sampled}
    assert len(keys | {request_key(REQUEST, generator=g, version=v) for g, v in (("b", ""), ("a", "2"))} | {key}) == 5


def test_logprobs_and_entropy_are_kept(tmp_path):
    """Tokens with their log-probabilities and entropies come back as they were."""
    told = {"logprobs": (Token(text="In", logprob=-0.5),), "entropy": (0.25,)}
    inner = ScriptedGenerator(["In"], capabilities={"completion", "logprobs", "entropy"}, details=told)
    cached = CachedGenerator(inner, folder=tmp_path)
    wanting = dataclasses.replace(REQUEST, want=frozenset(told))
    assert complete(cached, wanting).details == told
    assert complete(cached, wanting).details == told
    assert len(inner.requests) == 1


def test_arrays_are_not_kept(tmp_path):
    """A call that wants hidden states is made every time."""
    inner = ScriptedGenerator(
        {"": "x"}, capabilities={"completion", "hidden_states"}, details={"hidden_states": np.zeros((2, 3))}
    )
    cached = CachedGenerator(inner, folder=tmp_path)
    for _ in range(2):
        complete(cached, dataclasses.replace(REQUEST, want=frozenset({"hidden_states"})))
    assert len(inner.requests) == 2
    assert files(tmp_path) == []


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"text": "x"}', '{"details": {}, "colour": 1}', "\udcff"])
def test_a_broken_file_is_made_anew(broken, tmp_path, caplog):
    """A damaged file is logged, and replaced by a good one."""
    cached = CachedGenerator(ScriptedGenerator({"": "In the harbour."}), folder=tmp_path)
    complete(cached)
    (file,) = files(tmp_path)
    file.write_bytes(broken.encode("utf-8", "surrogateescape"))
    assert complete(cached).seconds is None
    assert "the model is called again" in caplog.text
    assert complete(cached).text == "In the harbour."


def test_a_folder_that_cannot_be_written(tmp_path, caplog):
    """If the folder cannot be written, the answer is returned, and the failure is logged."""
    folder = tmp_path / "answers"
    cached = CachedGenerator(ScriptedGenerator({"": "x"}), folder=folder)
    key = request_key(REQUEST, generator="scripted", version="")
    (folder / key[:2]).write_text("in the way")
    assert complete(cached).text == "x"
    assert "cannot be written to the cache" in caplog.text


def test_questions_are_not_written(tmp_path):
    """The folder has only answers, readable only by their owner, and neither questions nor temporary files."""
    complete(CachedGenerator(ScriptedGenerator(["In the harbour."]), folder=tmp_path / "answers"))
    (file,) = files(tmp_path)
    assert "ferry" not in file.read_text()
    assert json.loads(file.read_text())["text"] == "In the harbour."
    if os.name == "posix":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def outcome(generator, *, seconds=None):
    return outcome_of(NoRetrieval(), generator, seconds=seconds)


def test_costs_stay_true(tmp_path):
    """An outcome from the cache has the tokens, dollars and seconds of the first call, and the trace shows the hit."""
    inner = ScriptedGenerator(["In the harbour."], seconds=0.6, dollars=0.5)
    first = outcome(CachedGenerator(inner, folder=tmp_path))
    began = time.monotonic()
    second = outcome(CachedGenerator(inner, folder=tmp_path))
    assert time.monotonic() - began < 0.5
    for term in ("llm_calls", "prompt_tokens", "completion_tokens", "dollars"):
        assert getattr(second.cost, term) == getattr(first.cost, term)
    assert second.cost.seconds_generate == pytest.approx(first.cost.seconds_generate, abs=0.2)
    assert second.cost.seconds_total >= 0.6
    assert [type(event) for event in first.trace] == [Generated]
    assert [type(event) for event in second.trace] == [Branch, Generated]
    assert second.trace[0].rule == "response_cached"
