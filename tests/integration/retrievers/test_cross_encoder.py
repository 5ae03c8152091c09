"""The cross-encoder: real tiny models, and scores made with transformers alone, one pair at a time."""

import asyncio
import json
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.base import Hit, Passage
from ragbandit.strategies.retrievers import sentences
from ragbandit.strategies.retrievers.sentences import CrossEncoder
from tests.support.tiny_models import PAIR_MODELS, PAIR_TOKENS, tiny_cross_encoder

QUERY = "who wrote dracula ?"
TEXTS = [
    "Bram Stoker wrote Dracula in 1897.",
    "",
    "Paris is the capital of France. " * 40,
    "北京 is in 上海 😀",
    "the river",
    "   \n\t ",
    "zyx" * 60,
    "dracula dracula",
    "a city " * 9,
]


@pytest.fixture(autouse=True)
def _quiet():
    """No bar of transformers is drawn over the tests."""
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.fixture(scope="module")
def encoder():
    return CrossEncoder(tiny_cross_encoder(), name="tiny")


def hits(*texts):
    return tuple(Hit(passage=Passage(id=str(n), title="", text=text), score=-n) for n, text in enumerate(texts))


def alone(folder, query, texts, *, tokens=PAIR_TOKENS):
    """The model's output for each pair by itself, cut as the authors of cross-encoders cut it."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    outputs = []
    for text in texts:
        with torch.inference_mode():
            read = tokenizer([query], [text], truncation=True, max_length=tokens, return_tensors="pt")
            outputs.append(model(**read).logits.item())
    return outputs


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("architecture", PAIR_MODELS)
def test_scores_are_those_of_each_pair_alone(architecture, told, monkeypatch):
    """Batches and padding do not change a score, for every kind of positions."""
    monkeypatch.setattr(sentences, "_PAIRS", 4)
    folder = tiny_cross_encoder(architecture, told=told)
    scores = CrossEncoder(folder).score(QUERY, TEXTS)
    # Nothing tells how much of a text XLNet reads.
    expected = alone(folder, QUERY, TEXTS, tokens=512 if architecture == "xlnet" and not told else PAIR_TOKENS)
    assert scores.tolist() == pytest.approx(expected, abs=1e-5)
    assert np.ptp(expected) > 0.5


def test_hits_come_best_first_with_the_models_output(encoder):
    """The order and the scores are those of each pair alone; a title is read on a line before the text."""
    given = tuple(Hit(passage=Passage(id=text, title="City", text=text), score=1.0) for text in TEXTS if text.strip())
    ranked = asyncio.run(encoder(QUERY, given))
    expected = alone(tiny_cross_encoder(), QUERY, [f"City\n{hit.passage.text}" for hit in given])
    best = sorted(zip(expected, given, strict=True), key=lambda pair: -pair[0])
    assert [hit.passage for hit in ranked] == [hit.passage for _, hit in best]
    assert [hit.score for hit in ranked] == pytest.approx([score for score, _ in best], abs=1e-5)
    assert all(type(hit.score) is float for hit in ranked)


@pytest.mark.parametrize("query", ["", "dracula " * 20, "北京 " * 200, "who" * 900])
@pytest.mark.parametrize("architecture", ["bert"])
def test_a_question_longer_than_the_model_is_cut(query, architecture):
    """The longer of question and passage is cut, so that passages still differ; a short passage is read whole."""
    folder, texts = tiny_cross_encoder(architecture), ["the river", "who wrote the film", "paris is the capital " * 90]
    scores = CrossEncoder(folder).score(query, texts)
    assert scores.tolist() == pytest.approx(alone(folder, query, texts), abs=1e-5)
    assert len(set(np.round(scores, 4).tolist())) == 3


def test_texts_of_any_length_cost_what_the_model_reads(encoder):
    """A question and passages of 100,000 characters are read in the time of short ones, not of their product."""
    began = time.monotonic()
    scores = encoder.score(
        "vistula river " * 7_000, ["paris is the capital " * 5_000, "北京上海" * 25_000, " " * 99_990]
    )
    assert time.monotonic() - began < 5
    assert scores[:2].tolist() == pytest.approx(
        alone(tiny_cross_encoder(), "vistula river " * 40, ["paris is the capital " * 40, "北京上海" * 40]), abs=1e-5
    )


def test_what_nobody_waits_for_is_not_computed(encoder, monkeypatch):
    """The event loop goes on while the model scores; a caller that gives up has the batch under way finished alone."""
    monkeypatch.setattr(sentences, "_PAIRS", 1)
    batches, begun, given_up, real = [], threading.Event(), threading.Event(), encoder._forward

    def slow(*pairs):
        batches.append(pairs)
        begun.set()
        assert given_up.wait(10)
        return real(*pairs)

    monkeypatch.setattr(encoder, "_forward", slow)

    async def give_up():
        ranking = asyncio.create_task(encoder(QUERY, hits(*TEXTS)))
        await asyncio.to_thread(begun.wait, 10)
        ranking.cancel()
        await asyncio.sleep(0.01)
        given_up.set()
        with pytest.raises(asyncio.CancelledError):
            await ranking

    asyncio.run(give_up())
    with encoder._lock:
        assert len(batches) == 1


def test_the_name_tells_the_weights(encoder):
    """The given name, or the folder's, stands before the start of a hash that other weights do not share."""
    folder = tiny_cross_encoder(seed=1)
    unnamed, named = CrossEncoder(folder).name, CrossEncoder(folder, name="tiny").name
    assert named.startswith("tiny:")
    assert len(named) == len("tiny:") + 12
    assert unnamed == named.replace("tiny", Path(folder).name)
    assert named != encoder.name


# ------------------------------------------------------------------------------------------------- what is refused


def other_weights(folder, *, keep=lambda name: True, pickled=False):
    state = {name: array for name, array in load_file(folder / "model.safetensors").items() if keep(name)}
    if pickled:
        torch.save({name: torch.from_numpy(array) for name, array in state.items()}, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    else:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def torn(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def other_config(file, *, left_out="", **changed):
    config = {key: value for key, value in json.loads(file.read_text()).items() if key != left_out}
    file.write_text(json.dumps({**config, **changed}))


BAD, NO_HEAD = "cannot be used", "has no weights for classifier.bias, which would be random"
#: fault of the folder -> (function that causes it, part of the error)
DAMAGES = {
    "no config": (lambda folder: (folder / "config.json").unlink(), BAD),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), BAD),
    "pickled weights": (lambda folder: other_weights(folder, pickled=True), BAD),
    "torn weights": (lambda folder: torn(folder / "model.safetensors"), BAD),
    "no head": (lambda folder: other_weights(folder, keep=lambda name: not name.startswith("classifier")), NO_HEAD),
    "other shapes": (lambda folder: other_config(folder / "config.json", hidden_size=64), BAD),
    "torn tokenizer": (lambda folder: torn(folder / "tokenizer.json"), BAD),
    "no padding": (
        lambda folder: other_config(folder / "tokenizer_config.json", left_out="pad_token"),
        "cannot be used",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_is_no_cross_encoder_is_refused(damage, tmp_path):
    """What lacks a part, would be random, or is pickled is a ConfigError of the setting."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_cross_encoder(), folder)
    make_so, words = DAMAGES[damage]
    make_so(folder)
    with pytest.raises(ConfigError, match=words) as caught:
        CrossEncoder(folder)
    assert caught.value.field == "retriever.rerank"
    assert str(folder) in str(caught.value)


def test_code_in_the_folder_is_not_run(tmp_path, monkeypatch):
    """A model that brings its own code is refused, and nobody is asked whether to run it."""
    folder, asked = tmp_path / "model", []
    shutil.copytree(tiny_cross_encoder(), folder)
    config = json.loads((folder / "config.json").read_text())
    mapping = {"AutoConfig": "mine.Config", "AutoModelForSequenceClassification": "mine.Model"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mine", "auto_map": mapping}))
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.setattr("builtins.input", lambda *words: asked.append(words) or "y")
    with pytest.raises(ConfigError, match="cannot be used"):
        CrossEncoder(folder)
    assert asked == []
    assert not (tmp_path / "ran").exists()
