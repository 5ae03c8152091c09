"""Models with an encoder and a decoder (T5, BART), tiny and random, against transformers' own generate."""

import asyncio
import functools
import json
import shutil
from dataclasses import replace

import pytest

from ragbandit.additions.local_models import kind
from ragbandit.additions.local_models.generator import LocalGenerator
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.base import Passage, Prompt, Request, Sampling
from ragbandit.strategies.retrievers.bm25 import build_index
from ragbandit.testing.doubles import STREAM_CHECKS
from ragbandit.workers.setup import generators
from ragbandit.workers.setup.chosen_arms import parse_arms
from ragbandit.workers.setup.loading import ArmLoader
from tests.support.arms.arm_runs import ARMS_HERE, made
from tests.support.tiny_models import tiny_writer

ARCHITECTURES = pytest.mark.parametrize("architecture", ["t5", "bart"])
WORDS = [" ".join(f"w{(7 * place + number) % 80}" for place in range(number, 3 * number + 2)) for number in range(6)]


def fresh(architecture):
    return LocalGenerator(tiny_writer(architecture), device="cpu", precision="float32", threads=1, max_batch=4)


writer = functools.cache(fresh)


def section():
    """The settings of a tiny T5."""
    return {"model": tiny_writer("t5"), "device": "cpu", "precision": "float32", "threads": 1}


class Watching:
    """An arm of a user that reads the attention of its model."""

    needs = frozenset({"completion", "attention"})

    def __init__(self, *, name):
        self.name, self.params = name, {}

    async def answer(self, question, *, run):
        raise AssertionError("never reached")


WATCHING = generators.WorkerArm(params={"class": f"{__name__}:Watching"})


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


@functools.cache
def theirs(architecture, words):
    """Returns (tokens that the encoder reads, tokens that transformers' generate writes)."""
    model, tokenizer = reference(architecture)
    read = tokenizer(words, return_tensors="pt", return_token_type_ids=False)
    written = model.generate(**read, max_new_tokens=12, do_sample=False, num_beams=1)
    return read["input_ids"][0].tolist(), written[0, 1:].tolist()


@ARCHITECTURES
def test_texts_are_those_of_transformers(architecture):
    """Texts of many lengths, written together, are what transformers writes for each prompt. The prompt's tokens are
    the encoder's with its end token, the completion's tokens are the decoder's.
    """
    _, tokenizer = reference(architecture)
    generator = writer(architecture)
    texts = set()
    for words, done in zip(WORDS, together(generator, [asked(words) for words in WORDS]), strict=True):
        read, written = theirs(architecture, words)
        assert done.prompt_tokens == generator.count_tokens(asked(words).prompt) == len(read)
        assert (done.completion_tokens, read[-1]) == (len(written), tokenizer.eos_token_id)
        assert done.text == tokenizer.decode(written, skip_special_tokens=True)
        assert done.finish == ("stop" if written[-1] == tokenizer.eos_token_id else "length")
        texts.add(done.text)
    assert len(texts) > 1


@ARCHITECTURES
def test_a_stop_string_ends_the_text(architecture):
    """The text ends before the stop string, with the tokens that were written until then."""
    [whole] = together(writer(architecture), [asked(WORDS[3])])
    stop = whole.text.split()[4]
    [done] = together(writer(architecture), [asked(WORDS[3], stop=(stop,))])
    before = whole.text.split()[: whole.text.split().index(stop)]
    assert (done.text.split(), done.finish) == (before, "stop")
    assert done.completion_tokens == len(before) + 1


def test_instructions_conversation_and_prefix_are_read():
    """Without a chat template the encoder reads instructions, question and prefix as one text, without the model's
    control tokens.
    """
    generator, _ = writer("t5"), reference("t5")
    whole, parts = asked("w1 w2 w3 w4"), Prompt(instructions="w1", body="w2 </s> w3", prefix="w4")
    [done, wanted] = together(generator, [replace(whole, prompt=parts), whole])
    assert (done.text, done.prompt_tokens) == (wanted.text, wanted.prompt_tokens)


def test_log_probabilities_are_those_of_the_decoder():
    """Log-probabilities and entropies belong to the distributions from which the decoder's tokens were taken."""
    import torch

    [done] = together(writer("t5"), [asked(WORDS[4], want=frozenset({"logprobs", "entropy"}))])
    read, written = theirs("t5", WORDS[4])
    model, _ = reference("t5")
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([read]), decoder_input_ids=torch.tensor([[0, *written[:-1]]])).logits[0]
    rows = torch.log_softmax(logits, dim=-1)
    expected = [float(rows[place, token]) for place, token in enumerate(written)]
    assert [one.logprob for one in done.details["logprobs"]] == pytest.approx(expected, abs=1e-4)
    assert list(done.details["entropy"]) == pytest.approx((-(rows.exp() * rows).sum(-1)).tolist(), abs=1e-4)


def test_sampling_follows_the_seed():
    """One seed gives one text; other seeds give other texts."""
    requests = [asked(WORDS[2], sampling=Sampling(temperature=1.5, seed=number % 4)) for number in range(8)]
    texts = [together(writer("t5"), [request])[0].text for request in requests]
    assert texts[:4] == texts[4:]
    assert len(set(texts)) > 1


def test_arms_that_look_inside_the_decoder_are_refused():
    """An arm that reads attention is refused by name: before the model is loaded if it is on this disk, otherwise when
    it is loaded.
    """
    assert writer("t5").capabilities == {"completion", "stop", "logprobs", "entropy"}
    with pytest.raises(ConfigError, match="needs attention") as caught:
        generators.make_strategies(Settings(generator=section()), {"own": WATCHING})
    assert (caught.value.field, "without an encoder" in caught.value.remedy) == ("arms.own", True)


def test_all_leaves_out_the_arms_that_the_model_cannot_serve():
    """`evaluate --strategy all` leaves out each arm with needs that the model does not meet, with the reason."""
    able = writer("t5").capabilities
    arms, lacking = parse_arms(["all"], settings=Settings(generator=section()))
    needs = {name: made(name).needs for name in ARMS_HERE}
    assert set(arms) & needs.keys() == {name for name, needed in needs.items() if needed <= able}
    for name in needs.keys() - set(arms):
        assert lacking[name] == f"the generator lacks {', '.join(sorted(needs[name] - able))}"


def test_a_model_that_was_not_on_disk_is_checked_when_it_is_loaded(monkeypatch, tmp_path):
    """The loader compares the needs of every arm with what the loaded model offers."""
    build_index([Passage(id="a", title="A", text="one passage")], tmp_path / "index")
    settings = Settings(generator=section(), retriever={"index": str(tmp_path / "index")})
    monkeypatch.setattr(kind, "config_on_disk", lambda _model: {})
    loader = ArmLoader(settings)
    assert set(loader.load({"multi_step": generators.WorkerArm(params={})})) == {"multi_step"}
    with pytest.raises(ConfigError, match="needs attention") as caught:
        loader.load({"own": WATCHING})
    assert caught.value.field == "arms.own"


@pytest.mark.parametrize("check", STREAM_CHECKS, ids=lambda check: check.__name__)
def test_a_text_is_streamed(check):
    """The pieces that are sent while the decoder writes are the text that it returns."""
    check(lambda _text: fresh("t5"))


def test_a_start_token_is_needed(tmp_path):
    """A model without the token that its decoder starts with is refused, with the setting and the remedy."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_writer("t5"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"decoder_start_token_id": None}))
    with pytest.raises(ConfigError, match="decoder_start_token_id") as caught:
        LocalGenerator(folder, device="cpu", precision="float32", threads=1)
    assert caught.value.field == "generator.model"
    assert "pad_token_id" in caught.value.remedy
