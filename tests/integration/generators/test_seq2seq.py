"""Models with an encoder and a decoder (T5, BART), tiny and random, against transformers' own generate."""

import asyncio
import functools
import json
import shutil
from pathlib import Path

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.base import Passage, Prompt, Request
from ragbandit.strategies.generators.local import LocalGenerator
from ragbandit.strategies.retrievers.bm25 import build_index
from ragbandit.workers.setup.generators import WorkerArm
from ragbandit.workers.setup.loading import ArmLoader
from tests.support.tiny_models import tiny_writer

ARCHITECTURES = pytest.mark.parametrize("architecture", ["t5", "bart"])
WORDS = [" ".join(f"w{(7 * place + number) % 80}" for place in range(number, 3 * number + 2)) for number in range(6)]


@functools.cache
def writer(architecture):
    return LocalGenerator(tiny_writer(architecture), device="cpu", precision="float32", threads=1, max_batch=4)


def together(generator, requests):
    async def run():
        return await asyncio.gather(*map(generator.complete, requests))

    return asyncio.run(run())


def asked(words, **options):
    return Request(prompt=Prompt(instructions="", body=words), **{"max_tokens": 12, **options})


@functools.cache
def reference(architecture):
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    folder = tiny_writer(architecture)
    return AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def theirs(architecture, words):
    """(tokens that the encoder reads, tokens that transformers' generate writes)."""
    model, tokenizer = reference(architecture)
    read = tokenizer(words, return_tensors="pt", return_token_type_ids=False)
    written = model.generate(**read, max_new_tokens=12, do_sample=False, num_beams=1)
    return read["input_ids"][0].tolist(), written[0, 1:].tolist()


@ARCHITECTURES
def test_texts_are_those_of_transformers(architecture):
    """Texts of many lengths, written together, are what transformers writes for each alone; prompt tokens are those of
    the encoder with its end token, completion tokens those of the decoder.
    """
    _, tokenizer = reference(architecture)
    generator = writer(architecture)
    for words, done in zip(WORDS, together(generator, [asked(words) for words in WORDS]), strict=True):
        read, written = theirs(architecture, words)
        assert done.prompt_tokens == generator.count_tokens(asked(words).prompt) == len(read)
        assert (done.completion_tokens, read[-1]) == (len(written), tokenizer.eos_token_id)
        assert done.text == tokenizer.decode(written, skip_special_tokens=True)
        assert done.finish == ("stop" if written[-1] == tokenizer.eos_token_id else "length")


def test_log_probabilities_are_those_of_the_decoder():
    """Log-probabilities and entropies are of the distributions from which the decoder's tokens were taken."""
    import torch

    [done] = together(writer("t5"), [asked(WORDS[4], want=frozenset({"logprobs", "entropy"}))])
    read, written = theirs("t5", WORDS[4])
    model, _ = reference("t5")
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([read]), decoder_input_ids=torch.tensor([[0, *written[:-1]]])).logits[0]
    told = torch.log_softmax(logits, dim=-1)
    expected = [float(told[place, token]) for place, token in enumerate(written)]
    assert [one.logprob for one in done.details["logprobs"]] == pytest.approx(expected, abs=1e-4)
    assert list(done.details["entropy"]) == pytest.approx((-(told.exp() * told).sum(-1)).tolist(), abs=1e-4)


def test_attention_and_hidden_states_are_not_offered(tmp_path):
    """An arm that needs details of a causal model is refused by name when it is loaded."""
    assert writer("t5").capabilities == {"completion", "stop", "logprobs", "entropy"}
    section = {"model": tiny_writer("t5"), "device": "cpu", "precision": "float32", "threads": 1}
    build_index([Passage(id="a", title="A", text="one passage")], tmp_path / "index")
    settings = Settings(generator=section, retriever={"index": str(tmp_path / "index")})
    loader = ArmLoader(settings)
    assert set(loader.load({"flare": WorkerArm(params={})})) == {"flare"}
    with pytest.raises(ConfigError, match="needs attention") as caught:
        loader.load({"dragin": WorkerArm(params={})})
    assert (caught.value.field, "without an encoder" in caught.value.remedy) == ("arms.dragin", True)


def test_a_start_token_is_needed(tmp_path):
    """A model that does not say how its decoder starts is refused, with the setting and the remedy."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_writer("t5"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"decoder_start_token_id": None}))
    with pytest.raises(ConfigError, match="decoder starts") as caught:
        LocalGenerator(Path(folder), device="cpu", precision="float32", threads=1)
    assert caught.value.field == "generator.model"
