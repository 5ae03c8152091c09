"""Many texts at once on tiny random models, against transformers' own generate one at a time."""

import asyncio
import functools
import threading
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ragbandit.additions.local_models import static_batches
from ragbandit.additions.local_models.generator import LocalGenerator, token_texts
from ragbandit.shared.errors import ArmFailed, ConfigError, InvalidInput
from ragbandit.strategies.base import Prompt, Request, Sampling
from ragbandit.strategies.generators.wrappers import PricedGenerator
from tests.support.tiny_models import tiny_writer

#: beginnings of prompts
SHARED = [f"w{(7 * place) % 61}" for place in range(50)]
LONGEST = 12


def fresh(architecture="gpt2", *, rows=4, **options):
    """A generator of a test's own, to be broken."""
    return LocalGenerator(
        tiny_writer(architecture), device="cpu", precision="float32", threads=1, max_batch=rows, **options
    )


@functools.cache
def writer(architecture, *, rows=4):
    return fresh(architecture, rows=rows)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Prompts are read in pieces, and stop strings looked for, within a few tokens."""
    monkeypatch.setattr("ragbandit.additions.local_models.static_batches._CHUNK", 16)
    monkeypatch.setattr("ragbandit.additions.local_models.generator._TAIL", 0)


@pytest.fixture
def steps(monkeypatch):
    """(texts, tokens) of every step of a model, in order."""
    seen = []

    def watch(generator):
        forward = generator._model.forward

        def watched(**inputs):
            seen.append(tuple(inputs["input_ids"].shape))
            return forward(**inputs)

        monkeypatch.setattr(generator._model, "forward", watched)
        return seen

    return watch


def asked(words, *, max_tokens=LONGEST, **options):
    return Request(prompt=Prompt(instructions="", body=" ".join(words)), max_tokens=max_tokens, **options)


async def answered(generator, requests, *, waits=None, cancelled=None):
    """The result of each call; None for calls that are cancelled after the given seconds."""

    async def call(number, request):
        await asyncio.sleep(waits[number] if waits else 0)
        task = asyncio.create_task(generator.complete(request))
        if cancelled and cancelled[number] is not None:
            await asyncio.sleep(cancelled[number])
            task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    found = await asyncio.gather(*(call(number, request) for number, request in enumerate(requests)))
    return [None if isinstance(each, asyncio.CancelledError) else each for each in found]


def together(generator, requests, **options):
    return asyncio.run(answered(generator, requests, **options))


@functools.cache
def theirs(architecture, words):
    """The tokens that transformers' generate writes after these words."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = _reference(architecture, AutoModelForCausalLM, AutoTokenizer)
    ids = torch.tensor([tokenizer(" ".join(words))["input_ids"]])
    written = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=LONGEST, do_sample=False)
    return written[0, ids.shape[1] :].tolist(), tokenizer


@functools.cache
def _reference(architecture, models, tokenizers):
    folder = tiny_writer(architecture)
    return models.from_pretrained(folder), tokenizers.from_pretrained(folder)


def expected(architecture, request):
    """(text, tokens, why it ends) of the call, from what transformers writes."""
    words = tuple(request.prompt.body.split())
    tokens, tokenizer = theirs(architecture, words)
    for count in range(1, request.max_tokens + 1):
        if tokens[count - 1] == tokenizer.eos_token_id:
            return tokenizer.decode(tokens[: count - 1], skip_special_tokens=True), count, "stop"
        text = tokenizer.decode(tokens[:count], skip_special_tokens=True)
        at = min((text.find(stop) for stop in request.stop if stop in text), default=None)
        if at is not None:
            return text[:at], count, "stop"
    return text, request.max_tokens, "length"


calls = st.builds(
    lambda shared, own, **options: asked((*SHARED[:shared], *(f"w{number}" for number in own)), **options),
    shared=st.integers(0, 45),
    own=st.lists(st.integers(0, 79), min_size=1, max_size=5),
    max_tokens=st.integers(1, LONGEST),
    stop=st.lists(st.integers(0, 79).map("w{}".format), max_size=20).map(tuple),
)
moments = st.sampled_from([0, 0, 0.002, 0.01])


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "mistral"])
@settings(max_examples=8, deadline=None, derandomize=True)
@given(data=st.data(), requests=st.lists(calls, min_size=1, max_size=9))
def test_a_text_is_the_same_alone_and_among_others(architecture, data, requests):
    """A greedy text equals transformers' own text, whichever other calls start, end and are cancelled meanwhile."""
    count = len(requests)
    waits = data.draw(st.lists(moments, min_size=count, max_size=count))
    cancelled = data.draw(st.lists(st.sampled_from([None, None, None, 0, 0.005]), min_size=count, max_size=count))
    found = together(writer(architecture), requests, waits=waits, cancelled=cancelled)
    for request, done, cut in zip(requests, found, cancelled, strict=True):
        if done is None:
            assert cut is not None
            continue
        assert (done.text, done.completion_tokens, done.finish) == expected(architecture, request)
        assert done.prompt_tokens == len(request.prompt.body.split())


def test_what_is_told_is_the_same_among_others():
    """Log-probabilities, entropies, attention and states of a text do not depend on the other texts of its batch."""
    want = frozenset({"logprobs", "entropy", "attention", "hidden_states"})
    requests = [asked(SHARED[start : 2 * start + 3], want=want if start % 2 else frozenset()) for start in range(8)]
    alone = [together(writer("llama"), [request])[0] for request in requests]
    for one, among in zip(alone, together(writer("llama"), requests), strict=True):
        assert set(one.details) == set(among.details)
        assert one.text == among.text
        for name in one.details:
            told, other = _numbers(one.details[name]), _numbers(among.details[name])
            assert told.shape == other.shape
            assert np.allclose(told, other, atol=1e-4), name


def _numbers(told):
    if hasattr(told, "weights"):
        return told.weights
    if isinstance(told, tuple) and hasattr(told[0], "logprob"):
        return np.array([token.logprob for token in told])
    return np.array(told)


def test_a_drawn_text_is_the_same_among_others():
    """A seed gives its text whatever else is being drawn, and other seeds give others."""
    how = [
        Sampling(temperature=2.0, seed=seed, top_p=0.9 if seed % 2 else 1.0, top_k=5 * (seed % 3)) for seed in range(8)
    ]
    requests = [asked(SHARED[:9], sampling=each) for each in how]
    alone = [together(writer("llama"), [request])[0] for request in requests]
    assert together(writer("llama"), requests) == alone
    assert len({done.text for done in alone}) > 4


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("temperature", each) for each in (0.0, np.nan, np.inf)), ("top_p", 0.0), ("top_p", 1.1), ("top_k", -1)],
)
def test_a_way_to_draw_has_its_ranges(name, value):
    """A temperature, top_p or top_k that no distribution follows is InvalidInput, which names it."""
    with pytest.raises(InvalidInput) as caught:
        Sampling(**{"temperature": 1.0, "seed": 1, name: value})
    assert caught.value.field == f"sampling.{name}"


def test_texts_share_their_steps(monkeypatch, steps):
    """Four texts are written together, a step for all of them, and answered as if each were alone."""
    monkeypatch.setattr(static_batches, "_GATHER_S", 0.3)  # on a busy machine too, all texts are there by then
    generator = fresh("llama")
    seen = steps(generator)
    requests = [asked([f"w{number}"], max_tokens=10) for number in range(4)]
    lengths = [done.completion_tokens for done in together(generator, requests)]
    assert seen == [(4, 1)] * max(lengths)


def test_a_failure_is_of_its_text_only(monkeypatch, caplog):
    """A prompt that cannot be read fails alone: the texts of its batch are written again without it."""
    monkeypatch.setattr(static_batches, "_GATHER_S", 0.3)  # on a busy machine too, all texts are there by then
    generator = writer("llama", rows=3)
    forward = generator._model.forward

    def broken(**inputs):
        if 70 in inputs["input_ids"]:
            raise RuntimeError("out of memory")
        return forward(**inputs)

    fine, bad = asked(SHARED[:9]), asked(["w68", "w1"])
    monkeypatch.setattr(generator._model, "forward", broken)
    done, failed, after = together(generator, [fine, bad, asked(SHARED[3:9])])
    assert isinstance(failed, ArmFailed)
    assert (done.text, done.completion_tokens, done.finish) == expected("llama", fine)
    assert after.text == expected("llama", asked(SHARED[3:9]))[0]
    assert "a batch of 3 texts failed" in caplog.text


@settings(deadline=None, derandomize=True)
@given(st.text(alphabet="aé€😀 \ufffd", max_size=12), st.data())
def test_pieces_join_to_the_text(text, data):
    """Whatever bytes tokens cut letters at, every piece is what its token adds to all before it."""
    content = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(content)))))
    bounds = [0, *cuts, len(content)]
    tokens = [content[begin:end] for begin, end in pairwise(bounds)]

    def decoded(some):
        return b"".join(some).decode("utf-8", "replace")

    whole = [decoded(tokens[:count]).rstrip("\ufffd") for count in range(len(tokens) + 1)]
    assert token_texts(tokens, text=decoded) == [after[len(before) :] for before, after in pairwise(whole)]


def test_a_deadline_ends_its_own_row(monkeypatch):
    """A text returns its written part at its deadline, and the other texts of the batch go on."""
    generator = writer("gpt2", rows=3)
    forward = generator._model.forward

    def slow(**inputs):
        time.sleep(0.03)
        return forward(**inputs)

    monkeypatch.setattr(generator._model, "forward", slow)
    late = asked(["w3", "w4"], deadline=time.monotonic() + 0.15)
    cut, whole = together(generator, [late, asked(["w3", "w4"])])
    assert cut.finish == "deadline"
    assert whole.text.startswith(cut.text)
    assert (whole.text, whole.completion_tokens, whole.finish) == expected("gpt2", asked(["w3", "w4"]))


def test_cancelling_frees_the_model(monkeypatch):
    """After a cancelled call, which is paid for, the model computes at most one more step of it and serves the next."""
    generator, widths, computing = fresh("llama"), [], threading.Event()
    forward = generator._model.forward

    def watched(**inputs):
        widths.append(inputs["input_ids"].shape[1])
        computing.set()
        time.sleep(0.02)
        return forward(**inputs)

    monkeypatch.setattr(generator._model, "forward", watched)

    async def cancel_then_ask():
        request = asked(SHARED * 8)
        task = asyncio.create_task(PricedGenerator(generator, price=(1e6, 1e6)).complete(request))
        await asyncio.to_thread(computing.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        before = len(widths)
        assert request.lost.cost.dollars == request.lost.cost.prompt_tokens == generator.count_tokens(request.prompt)
        await generator.complete(asked(["w1"], max_tokens=1))
        return widths[before:]

    # A step may have begun between the cancelling and the count; the prompt had 25 of them, of 16 tokens each.
    steps = asyncio.run(cancel_then_ask())
    assert len(steps) <= 2
    assert steps[-1] == 1


def test_closing_lets_texts_end():
    """Calls that were accepted before `close` are answered; later calls are ArmFailed."""
    generator = LocalGenerator(tiny_writer("gpt2"), device="cpu", precision="float32", threads=1, max_batch=1)

    async def close_amid():
        tasks = [asyncio.create_task(generator.complete(asked(["w3"]))) for _ in range(3)]
        await asyncio.sleep(0)
        await generator.close()
        return await asyncio.gather(*tasks)

    assert {done.text for done in asyncio.run(close_amid())} == {expected("gpt2", asked(["w3"]))[0]}
    asyncio.run(generator.close())
    with pytest.raises(ArmFailed, match="cannot be asked"):
        asyncio.run(generator.complete(asked(["w3"])))


def test_a_text_may_be_longer_than_a_window():
    """A model with a window of 64 tokens writes longer texts as transformers does, also in batches."""
    requests = [asked(SHARED), asked([*SHARED, *SHARED[:25]]), asked([*SHARED, *SHARED])]
    found = together(writer("mistral"), requests)
    assert [done.text for done in found] == [expected("mistral", request)[0] for request in requests]


def test_models_that_cannot_write_rows_are_refused():
    """A model with other state than keys and values is a ConfigError of the model's name, with a remedy."""
    with pytest.raises(ConfigError, match=r"its state is more than keys and values.*serve the model") as caught:
        fresh("mamba")
    assert caught.value.field == "generator.model"
