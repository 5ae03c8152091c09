"""The cross-encoder: real tiny models, and scores made with transformers alone, one pair at a time."""

import asyncio
import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from ragbandit.additions.reranking import cross_encoder
from ragbandit.additions.reranking.cross_encoder import CrossEncoder
from ragbandit.shared.errors import ConfigError
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


def alone(folder, query, texts, *, tokens=PAIR_TOKENS, activation=torch.sigmoid):
    """The model's score for each pair by itself, cut as the authors of cross-encoders cut it."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    outputs = []
    for text in texts:
        with torch.inference_mode():
            read = tokenizer([query], [text], truncation=True, max_length=tokens, return_tensors="pt")
            outputs.append(activation(model(**read).logits.double()).item())
    return outputs


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("architecture", PAIR_MODELS)
def test_scores_are_those_of_each_pair_alone(architecture, told, monkeypatch):
    """Batches and padding do not change a score, for every kind of positions."""
    monkeypatch.setattr(cross_encoder, "_PAIRS", 4)
    folder = tiny_cross_encoder(architecture, told=told)
    scores = CrossEncoder(folder).score(QUERY, TEXTS)
    # Nothing tells how much of a text XLNet reads.
    expected = alone(folder, QUERY, TEXTS, tokens=512 if architecture == "xlnet" and not told else PAIR_TOKENS)
    assert scores.tolist() == pytest.approx(expected, abs=1e-5)
    assert np.ptp(expected) > 0.1


ACTIVATIONS = {
    "nothing is named": ({}, torch.sigmoid),
    "identity": ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, lambda x: x),
    "sigmoid": ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, torch.sigmoid),
    "before version 4": ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, lambda x: x),
    "another": ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, torch.tanh),
    "null": ({"sentence_transformers": None, "sbert_ce_default_activation_function": None}, torch.sigmoid),
}


@pytest.mark.parametrize("named", ACTIVATIONS)
def test_the_models_config_names_the_activation(named, tmp_path):
    """Scores pass through the activation of the config, by default a sigmoid, as sentence-transformers does it."""
    folder, (added, activation) = tmp_path / "model", ACTIVATIONS[named]
    shutil.copytree(tiny_cross_encoder(), folder)
    other_config(folder / "config.json", **added)
    scores = asyncio.run(CrossEncoder(folder).scores(QUERY, TEXTS))
    assert scores == pytest.approx(alone(tiny_cross_encoder(), QUERY, TEXTS, activation=activation), abs=1e-5)
    assert all(type(score) is float for score in scores)


def test_high_outputs_keep_their_order(encoder, monkeypatch):
    """Outputs of 30 and 31 have different scores, although a sigmoid in float32 makes 1.0 of both."""
    monkeypatch.setattr(encoder, "_outputs", lambda query, texts: torch.arange(30, 30 + len(texts)).double())
    assert len(set(encoder.score(QUERY, ["a", "b"]).tolist())) == 2


@pytest.mark.parametrize("query", ["", "dracula " * 20, "北京 " * 200, "who" * 900])
@pytest.mark.parametrize("architecture", ["bert"])
def test_a_question_longer_than_the_model_is_cut(query, architecture):
    """The longer of question and passage is cut, so that passages still differ; a short passage is read whole."""
    folder, texts = tiny_cross_encoder(architecture), ["the river", "who wrote the film", "paris is the capital " * 90]
    scores = CrossEncoder(folder).score(query, texts)
    assert scores.tolist() == pytest.approx(alone(folder, query, texts), abs=1e-5)
    assert len(set(np.round(scores, 4).tolist())) == 3


def test_texts_of_any_length_are_cut_to_what_the_model_reads(encoder, monkeypatch):
    """The tokenizer gets no more than 32 characters for each token of the model, from a text of any length."""
    read, tokenizer = [], encoder._tokenizer
    monkeypatch.setattr(
        encoder, "_tokenizer", lambda *texts, **options: read.extend(texts) or tokenizer(*texts, **options)
    )
    scores = encoder.score(
        "vistula river " * 7_000, ["paris is the capital " * 5_000, "北京上海" * 25_000, " " * 99_990]
    )
    assert max(map(len, [text for texts in read for text in texts])) <= 32 * PAIR_TOKENS
    assert scores[:2].tolist() == pytest.approx(
        alone(tiny_cross_encoder(), "vistula river " * 40, ["paris is the capital " * 40, "北京上海" * 40]), abs=1e-5
    )


def test_what_nobody_waits_for_is_not_computed(encoder, monkeypatch):
    """The event loop goes on while the model scores; a caller that gives up has the batch under way finished alone."""
    monkeypatch.setattr(cross_encoder, "_PAIRS", 1)
    batches, begun, given_up, real = [], threading.Event(), threading.Event(), encoder._outputs

    def slow(*pairs):
        batches.append(pairs)
        begun.set()
        assert given_up.wait(10)
        return real(*pairs)

    monkeypatch.setattr(encoder, "_outputs", slow)

    async def give_up():
        ranking = asyncio.create_task(encoder.scores(QUERY, TEXTS))
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
    "two outputs": (lambda folder: other_config(folder / "config.json", num_labels=2, id2label={}), BAD),
    "an unknown activation": (
        lambda folder: other_config(folder / "config.json", sbert_ce_default_activation_function="mine.Softplus"),
        "names the activation 'mine.Softplus', which torch does not have",
    ),
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
    assert caught.value.field == "retriever.rerank.model"
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
