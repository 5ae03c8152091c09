import hashlib
import importlib.resources
import logging
import math
from pathlib import Path

import numpy as np
import pytest

from ragbandit.router.encoders.distilbert import _RECIPE, DistilBertEncoder
from ragbandit.router.encoders.features import references
from ragbandit.router.encoders.forward import (
    AnyForward,
    DistilBertForward,
    Forward,
    load_transformer,
    processor_features,
    token_batches,
)
from ragbandit.router.encoders.half_precision import half_precision_hash
from ragbandit.shared.errors import ConfigError
from tests.support.model_memory import release
from tests.support.tiny_models import tiny_encoder

QUESTIONS = [
    *("What is the capital of France?", "When did the region where the Poachie Range is located achieve statehood?"),
    *("Who?", "Which of the two composers of the opera that opened the new house in 1871 was born further north?"),
    *("How long does the ferry take?", "这是什么问题", "Why 😀?", ""),
]


#: the first test fits the projection of an empty cache: half a minute of one core
pytestmark = pytest.mark.timeout(300)
#: What float32's rounding may change in a feature, which is about 1: 24 bits, so at most 2**-24 of a number's size at
#: each rounding; a token meets fewer than 90 on its way (see `bfloat16_error`), each behind a sum of at most 3,072
#: terms whose order is the processor's choice. Roundings are as often up as down: sqrt(90 * 3072) * 2**-24 = 3e-5,
#: and four times that for the largest of some thousand features.
FLOAT32 = 4 * math.sqrt(90 * 3072) * 2.0**-24


@pytest.fixture(scope="module", autouse=True)
def no_model_outlives_this_file():
    yield
    release()


@pytest.fixture(scope="module")
def encoder():
    # One thread: on a busy machine OpenMP threads wait for each other far longer than they compute.
    return DistilBertEncoder(precision="float32", device="cpu", threads=1)


@pytest.fixture(scope="module")
def folder(encoder):
    from ragbandit.router.encoders.weights import DEFAULT_ENCODER, resolve

    return resolve(DEFAULT_ENCODER).folder


@pytest.fixture(scope="module")
def tiny_bert(folder, tmp_path_factory):
    """A BERT of two small layers with random weights and the real tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    target = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=28996, **sizes)).save_pretrained(str(target))
    (target / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    return target


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A factory of encoders on a DistilBERT of two small layers, with a cache of this test alone.

    They are fitted on a file of this test alone, too: every sixth reference question.
    """
    file = tmp_path / "reference_questions.jsonl"
    file.write_text("".join(line + "\n" for line in references().text.splitlines()[::6]), "utf-8")
    monkeypatch.setattr(importlib.resources, "files", lambda package: tmp_path)

    def make(model=None, **changed):
        plain = {"dimension": 48, "threads": 1, "device": "cpu", "precision": "float32", "cache": tmp_path / "cache"}
        return DistilBertEncoder(str(model or tiny_encoder()), **({"max_tokens": 40} | plain | changed))

    return make


def ids_of(encoder, texts) -> list[list[int]]:
    return encoder._tokenizer.batch(texts)


def pooled(forward, rows, *, most_questions=100) -> np.ndarray:
    """The pooled states of questions as token ids, in their order."""
    found = np.zeros((len(rows), forward.layers * 2 * forward.width), dtype=np.float32)
    for places, batch in token_batches(rows, most_questions=most_questions, most_tokens=10_000):
        found[places] = forward.pool_states(batch)
    return found


@pytest.mark.models
def test_the_hand_written_forward_equals_transformers(folder, encoder):
    """Pooled states of every layer equal those of transformers' DistilBertModel within float32 rounding."""
    ours = encoder._forward
    theirs = AnyForward(folder, precision="float32", device="cpu", threads=1)
    assert isinstance(ours, DistilBertForward)
    ids = ids_of(encoder, QUESTIONS)
    np.testing.assert_allclose(pooled(ours, ids), pooled(theirs, ids), rtol=1e-3, atol=2e-5)


@pytest.mark.models
def test_padded_batches_give_the_states_of_questions_read_at_their_own_length(monkeypatch):
    """What a card reads, padded and masked, is what a processor reads, within float32 rounding, whatever the batch."""
    forward = load_transformer(Path(tiny_encoder()), precision="float32", device="cpu", threads=1)
    random = np.random.default_rng(0)
    lengths = [1, 2, 7, 8, 9, 17, 17, 17, 40]
    rows = [random.integers(4, 20, length).tolist() for length in lengths]
    wanted = pooled(forward, rows)
    monkeypatch.setattr(DistilBertForward, "_run", Forward._run)
    np.testing.assert_allclose(pooled(forward, rows), wanted, rtol=1e-3, atol=2e-5)
    np.testing.assert_allclose(pooled(forward, rows[:1]), wanted[:1], rtol=1e-3, atol=2e-5)
    np.testing.assert_allclose(pooled(forward, rows, most_questions=4), wanted, rtol=1e-3, atol=2e-5)


@pytest.mark.models
def test_padding_does_not_leave_the_models_positions(tiny, monkeypatch):
    """A question as long as the model reads is not padded beyond its last position."""
    forward = tiny()._forward
    forward.max_tokens = 37
    monkeypatch.setattr(DistilBertForward, "_run", Forward._run)
    assert np.isfinite(pooled(forward, [[4] * 37, [5] * 3])).all()
    seen = []
    forward._padded = lambda ids, lengths: seen.append(tuple(ids.shape)) or ids[:, :1].float()
    forward.pool_states(next(batch for _, batch in token_batches([[4] * 37], most_questions=1, most_tokens=99)))
    assert seen == [(1, 37)]


@pytest.mark.models
def test_the_hash_tells_encoders_apart(tiny, tmp_path):
    """Precision, dimension, seed and length each change the hash; the same settings give it again, in any cache."""
    plain = tiny()
    assert tiny().hash == tiny(cache=tmp_path / "other").hash == plain.hash
    changes = [{"precision": "bfloat16"}, {"dimension": 64}, {"seed": 1}, {"max_tokens": 20}]
    assert len({plain.hash, *(tiny(**change).hash for change in changes)}) == 5


@pytest.mark.models
def test_the_projection_is_fitted_once(tiny, monkeypatch, caplog):
    """The second start reads it from the cache, without a fit, and gives the very same features."""
    caplog.set_level(logging.INFO, logger="ragbandit.encoder")
    rows = tiny().encode(QUESTIONS)
    assert caplog.text.count("reference questions, once") == 1

    def never(*given, **named):
        raise AssertionError("fitted again")

    monkeypatch.setattr("ragbandit.router.encoders.distilbert.fit_projection", never)
    assert np.array_equal(tiny().encode(QUESTIONS), rows)
    assert caplog.text.count("reference questions, once") == 1
    with pytest.raises(AssertionError, match="fitted again"):
        tiny(seed=1)


@pytest.mark.models
def test_a_damaged_projection_is_fitted_again(tiny, tmp_path, caplog):
    """A cut file in the cache is replaced at the next start, and the features are the same."""
    caplog.set_level(logging.INFO, logger="ragbandit.encoder")
    rows = tiny().encode(QUESTIONS)
    (file,) = (tmp_path / "cache" / "projection").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert np.array_equal(tiny().encode(QUESTIONS), rows)
    assert caplog.text.count("reference questions, once") == 2
    assert file.read_bytes() == whole


def test_the_recipe_is_pinned():
    """The recipe in the hash changes only on purpose, since existing ledgers need the same one."""
    assert hashlib.sha256(_RECIPE.encode()).hexdigest() == (
        "32dae4ace652085b108a3c5c59547d23240545941e330fb9d6d5ee7817235147"
    )


@pytest.mark.models
@pytest.mark.parametrize("text", ["", " ", "x" * 1_000_000, "word " * 200_000, "😀" * 300, "这" * 300, "\ud800 hi\x00"])
def test_any_text_costs_max_tokens_at_most(encoder, monkeypatch, text):
    """The encoder reads a bounded part of an empty, huge, foreign or broken text, and its features are finite."""
    read = []

    class Tokenizer:
        """The encoder's own tokenizer, which records the length of its texts and tokens."""

        def encode_batch_fast(self, parts):
            encoded = tokenizer.encode_batch_fast(parts)
            read.extend((len(part), len(one.ids)) for part, one in zip(parts, encoded, strict=True))
            return encoded

    tokenizer = encoder._tokenizer.tokenizer
    monkeypatch.setattr(encoder._tokenizer, "tokenizer", Tokenizer())
    assert np.isfinite(encoder.encode([text])).all()
    [(characters, tokens)] = read
    assert characters <= 32 * 128
    assert tokens <= 128


@pytest.mark.models
def test_any_other_encoder_works(tiny, tiny_bert):
    """A BERT folder gives features by the same recipe, and they do not depend on the batch."""
    encoder = tiny(tiny_bert, max_tokens=128)
    alone = np.concatenate([encoder.encode([question]) for question in QUESTIONS])
    assert alone.shape == (8, 48)
    np.testing.assert_allclose(encoder.encode(QUESTIONS), alone, atol=FLOAT32)


@pytest.mark.models
@pytest.mark.parametrize(
    "wrong",
    [
        *({"dimension": size} for size in (0, 15, 10_000)),
        *({"max_tokens": 41}, {"max_tokens": -1}, {"threads": 0}),
        {"precision": "int4"},
        {"device": "tpu"},
    ],
)
def test_wrong_settings_name_themselves(tiny, wrong):
    """A setting that the model cannot serve is a ConfigError that names it."""
    with pytest.raises(ConfigError) as caught:
        tiny(**wrong)
    assert caught.value.field == f"encoder.{next(iter(wrong))}"


@pytest.mark.models
@pytest.mark.parametrize(("cores", "threads", "expected"), [(2, None, 2), (2, 1, 1), (16, None, 4), (16, 1, 1)])
def test_a_set_number_of_threads_comes_before_the_default(tiny, monkeypatch, cores, threads, expected):
    """A forward pass has the threads of the setting, or as many as suit the cores, whatever a batch holds."""
    import torch

    monkeypatch.setenv("GOMP_SPINCOUNT", "0")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(cores), raising=False)
    encoder = tiny(threads=threads)
    for texts in (["Who?"], QUESTIONS * 8):
        encoder.encode(texts)
        assert encoder._thread.submit(torch.get_num_threads).result() == expected


@pytest.mark.models
def test_missing_parameters_are_a_config_error(tmp_path: Path):
    """A DistilBERT folder whose weights lack a layer is refused by name."""
    from safetensors.numpy import load_file, save_file

    folder = Path(tiny_encoder())
    state = load_file(str(folder / "model.safetensors"))
    del state["transformer.layer.1.ffn.lin2.bias"]
    save_file(state, str(tmp_path / "model.safetensors"))
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(ConfigError, match=r"layer\.1\.ffn\.lin2\.bias"):
        DistilBertEncoder(str(tmp_path), threads=1)


#: The largest change of a feature when its question is encoded in another batch; docs/machines.md states it. In int8 a
#: rounding may move an input to the next of 255 levels. In bfloat16 the products of AMX are added in another order for
#: more than 32 tokens, which changes the last of 8 bits; other processors add them in one order.
TOLERANCE = {"float32": FLOAT32, "int8": 0.02, "bfloat16": 0.1}
NEEDS_AMX = pytest.mark.skipif(
    not processor_features().get("amx_bf16"), reason="without AMX, bfloat16 takes 35 times as long as float32: minutes"
)


@pytest.mark.models
@pytest.mark.parametrize("precision", ["float32", "int8", pytest.param("bfloat16", marks=NEEDS_AMX)])
def test_features_do_not_change_with_the_batch(precision):
    """The features of a question in batches of 2 and of 64 are those of the single question within the tolerance."""
    encoder = DistilBertEncoder(precision=precision, device="cpu", threads=1)
    questions = [*QUESTIONS, *references().questions[:56]]
    single = np.concatenate([encoder.encode([question]) for question in QUESTIONS])

    for size in (2, 64):
        together = np.concatenate([encoder.encode(questions[start : start + size]) for start in range(0, 8, size)])
        assert np.abs(together[:8] - single).max() <= TOLERANCE[precision], size
    assert np.abs(together - np.roll(together, 1, axis=0)).max() > 1.0  # other questions have other features


def tiny_features(folder, precision):
    """An encoder's hash, and its features of the questions."""
    encoder = DistilBertEncoder(
        tiny_encoder(), precision=precision, device="cpu", threads=1, dimension=48, max_tokens=40, cache=folder
    )
    return encoder.hash, encoder.encode(QUESTIONS)


@pytest.mark.models
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_another_processor_has_nearly_the_same_features(tmp_path, other_torch, precision):
    """The encoder has the same hash on another processor, and its features differ within the tolerance, with a
    projection from the cache and with one that is fitted there.
    """
    hashed, features = tiny_features(tmp_path / "cache", precision)
    for folder in ("cache", "other"):
        there, others = other_torch.call(tiny_features, tmp_path / folder, precision)
        assert there == hashed
        assert np.abs(others - features).max() <= TOLERANCE[precision], folder


def test_bytes_give_nearly_the_features_of_float32(encoder):
    """Features of int8 correlate with those of float32 by more than .97."""
    small = DistilBertEncoder(precision="int8", device="cpu", threads=1)
    questions = references().questions[1:100:5]

    correlation = np.corrcoef(small.encode(questions).ravel(), encoder.encode(questions).ravel())[0, 1]

    assert 0.97 < correlation < 0.9999


def test_auto_is_the_precision_that_the_store_began_with(tiny):
    """With precision auto, the hash of an existing store chooses the precision."""
    for precision in ("float32", "bfloat16", "int8"):
        began = tiny(precision=precision).hash
        again = tiny(precision="auto", known=half_precision_hash(began))
        assert (again.precision, again.hash) == (precision, began)
