"""Turns questions into feature vectors.

A transformer reads the question; every layer gives its first token and the mean over its tokens; a random projection
makes few numbers of these many; fixed reference questions say where zero lies and how long one is. Nothing is learned
from traffic, so the same question has the same features on the first day and on the thousandth.
"""

import hashlib
import importlib.resources
import itertools
import json
import logging
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from router.errors import ConfigError, InvalidInput
from router.weights import DEFAULT_ENCODER, resolve

__all__ = ["DistilBertEncoder", "Encoder", "HashingEncoder"]

log = logging.getLogger("ragbandit.encoder")

Precision = Literal["auto", "float32", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]

#: What the features are made of; it is part of the hash, so change it with the arithmetic.
_RECIPE: Final = "layers 1..L x (first token, mean of tokens); signed permutation sums; centred, one scale; v1"
# A token is rarely longer than this many characters; more text than that is cut before the tokenizer reads it.
_CHARACTERS_PER_TOKEN: Final = 32


class Encoder(Protocol):
    """Turns questions into vectors."""

    #: d
    dimension: int
    #: sha256 over weights, tokenizer, pooling and precision: two encoders with one hash give the same features
    hash: str
    #: where the weights came from, for the log
    source: str

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Shape (n, d), float32. Safe to call from several threads. Empty input gives shape (0, d)."""
        ...


class HashingEncoder:
    """Counts of hashed words with random signs, of mean square one: no model, no torch. For tests and trials.

    Questions that share words are near each other; nothing else about meaning is in it.
    """

    def __init__(self, dimension: int = 32) -> None:
        if dimension < 1:
            raise ConfigError("must be at least 1", field="encoder.dimension", remedy="use 32 or more")
        self.dimension = dimension
        self.source = "hashed words"
        self.hash = hashlib.sha256(f"hashed words v1, {dimension}".encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Shape (n, d). A text without a word gives a row of zeros."""
        _refuse_string(texts)
        found = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in zip(found, texts, strict=True):
            for word in re.findall(r"\w+", text.casefold()):
                number = int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest())
                row[(number >> 1) % self.dimension] += 1.0 if number & 1 else -1.0
            length = float(np.sqrt(np.mean(row**2)))
            if length > 0:
                row /= length
        return found


class DistilBertEncoder:
    """A Hugging Face encoder: DistilBERT by the quick road, any other model through AutoModel.

    model is a path or a hub name (see router.weights). precision "auto" is bfloat16 where the processor multiplies it
    in hardware, else float32; set it outright where several machines must agree on the hash. threads fixes torch's
    thread count for this process. At most max_tokens tokens of a question are read.
    Raises ConfigError if the weights, the packages or the device are missing.
    """

    def __init__(
        self,
        model: str = DEFAULT_ENCODER,
        *,
        dimension: int = 256,
        precision: Precision = "auto",
        device: Device = "auto",
        threads: int | None = None,
        max_tokens: int = 128,
        max_batch: int = 64,
        seed: int = 0,
        cache: Path | None = None,
    ) -> None:
        from router.transformer import load_transformer

        weights = resolve(model, setting="encoder.model", cache=cache)
        # One thread for all of torch's work: OpenMP keeps a team of helpers for every thread that calls it, and with
        # more helpers than processors they stop spinning between two pieces of work: half as long again per question.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ragbandit-encoder")
        load = partial(load_transformer, weights.folder, precision=precision, device=device, threads=threads)
        self._forward = self._thread.submit(load).result()
        if not 3 <= max_tokens <= self._forward.max_tokens:
            raise ConfigError(
                f"must be 3 to {self._forward.max_tokens} for this model, not {max_tokens}", field="encoder.max_tokens"
            )
        self._tokenizer, tokenizer_hash = _load_tokenizer(weights.folder, max_tokens=max_tokens)
        self.dimension = dimension
        self.source = weights.source
        self.precision = self._forward.precision
        self.device = self._forward.device
        self._max_tokens, self._max_batch = max_tokens, max(1, max_batch)
        self._sketch = _Sketch(self._forward.layers * 2 * self._forward.width, dimension=dimension, seed=seed)
        questions = importlib.resources.files("router").joinpath("reference_questions.txt").read_text("utf-8")
        self._mean = np.zeros(dimension, dtype=np.float32)
        self._scale = np.float32(1.0)
        self._standardise(questions.splitlines())
        made = {"weights": weights.sha256, "tokenizer": tokenizer_hash, "reference": questions, "seed": seed}
        self.hash = self._hash(made)
        log.info("encoder %s, %s on %s, from %s", self.hash[:12], self.precision, self.device, self.source)

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Shape (n, d). A row does not depend on the other texts beyond rounding; mean square near 1 per entry."""
        _refuse_string(texts)
        ids = [self._ids(text) for text in texts]
        found = np.zeros((len(ids), self.dimension), dtype=np.float32)
        # Neighbours of equal length share their attention; nothing is ever padded.
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        for start in range(0, len(order), self._max_batch):
            rows = order[start : start + self._max_batch]
            groups = [list(group) for _, group in itertools.groupby((ids[row] for row in rows), key=len)]
            pooled = self._thread.submit(self._forward.pooled, groups).result()  # (rows, layers * 2 * width)
            found[rows] = (self._sketch.apply(pooled) - self._mean) * self._scale
        return found

    def _hash(self, made: Mapping[str, object]) -> str:
        """Of all that the features depend on, but for the device and its rounding."""
        facts = {
            "recipe": _RECIPE,
            "layers": self._forward.layers,
            "dimension": self.dimension,
            "max_tokens": self._max_tokens,
            "precision": self.precision,
            **made,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _ids(self, text: str) -> list[int]:
        cut = text[: self._max_tokens * _CHARACTERS_PER_TOKEN]
        # A lone surrogate, which JSON can carry, has no UTF-8 and would raise in the tokenizer.
        ids: list[int] = self._tokenizer.encode(cut.encode("utf-8", "replace").decode()).ids
        return ids

    def _standardise(self, questions: list[str]) -> None:
        raw = self.encode(questions).astype(np.float64)  # with mean 0 and scale 1 still in place
        mean = raw.mean(axis=0)
        self._mean = mean.astype(np.float32)
        self._scale = np.float32(1.0 / np.sqrt(np.mean((raw - mean) ** 2)))


class _Sketch:
    """A sparse random projection: every input goes with a random sign into one of `dimension` sums of equal size.

    This is the count sketch (Charikar et al. 2002; Weinberger et al. 2009) with a permutation for the hash, which
    fills all buckets alike. Inner products are kept in expectation.
    """

    def __init__(self, size: int, *, dimension: int, seed: int) -> None:
        if not 1 <= dimension <= size:
            raise ConfigError(f"must be 1 to {size} for this model, not {dimension}", field="encoder.dimension")
        random = np.random.default_rng(seed)
        self._order = random.permutation(size)
        self._signs = random.choice(np.array([-1.0, 1.0], dtype=np.float32), size)
        self._dimension = dimension
        self._missing = -size % dimension

    def apply(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """(n, size) -> (n, dimension)."""
        mixed = rows[:, self._order] * self._signs
        if self._missing:
            mixed = np.pad(mixed, ((0, 0), (0, self._missing)))
        summed: npt.NDArray[np.float32] = mixed.reshape(len(rows), -1, self._dimension).sum(axis=1)
        return summed


def _load_tokenizer(folder: Path, *, max_tokens: int) -> tuple[Any, str]:
    """A tokenizers.Tokenizer that truncates and never pads, and the sha256 of its definition."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigError("the package tokenizers is missing", remedy="pip install 'ragbandit[models]'") from error
    file = folder / "tokenizer.json"
    if file.is_file():
        tokenizer = Tokenizer.from_file(str(file))
    else:  # older models bring a vocabulary only, which transformers knows how to turn into a tokenizer
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(folder)).backend_tokenizer
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=max_tokens)
    return tokenizer, hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def _refuse_string(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise InvalidInput("a list of texts is wanted, not one string", field="texts")
