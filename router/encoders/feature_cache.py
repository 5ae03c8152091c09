"""Caches of features, in memory and on disk."""

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load as load_tensors, save as save_tensors

from ragbandit.router.encoders.base import Encoder, EncoderAround, refuse_string
from ragbandit.shared.files import write_file
from ragbandit.shared.types import FeatureRows

log = logging.getLogger("ragbandit.encoder")

#: number of texts encoded between two reports of progress
BATCH = 32


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
