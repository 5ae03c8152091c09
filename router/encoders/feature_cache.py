"""A cache of features in memory, and a function that encodes many texts."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from ragbandit.router.encoders.base import Encoder, WrappingEncoder, refuse_string
from ragbandit.shared.types import FeatureRows

#: number of texts encoded between two reports of progress
BATCH = 32


class CachingEncoder(WrappingEncoder):
    """Caches the features of the latest questions. Safe to call from several threads.

    entries: maximum number of cached questions; the least recently asked one is dropped first. A question takes about
    250 bytes plus 4 per feature.
    """

    def __init__(self, encoder: Encoder, *, entries: int) -> None:
        super().__init__(encoder)
        self.entries = entries
        self._cached: OrderedDict[bytes, FeatureRows] = OrderedDict()
        self._lock = threading.Lock()

    def has_features(self, text: str) -> bool:
        """Whether `encode` needs no forward pass for this text: its features are cached, or take no noticeable time."""
        return self.is_immediate or _key(text) in self._cached

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
        if new:
            computed = self.encoder.encode([texts[places[0]] for places in new.values()])
            for row, places in zip(computed, new.values(), strict=True):
                rows[places] = row
            self._add(list(new), computed)
        return rows

    def _add(self, keys: Sequence[bytes], rows: FeatureRows) -> None:
        first = max(0, len(keys) - self.entries)
        with self._lock:
            for key, row in zip(keys[first:], rows[first:], strict=True):
                self._cached[key] = row.copy()  # a view would keep the whole batch in memory
                self._cached.move_to_end(key)
            while len(self._cached) > self.entries:
                self._cached.popitem(last=False)


def embed_texts(
    texts: Sequence[str],
    *,
    encoder: Encoder,
    progress: Callable[[str, int, int], object] = lambda _what, _done, _total: None,
) -> FeatureRows:
    """Features of every text, shape (n, d), float32. Each distinct text is encoded once.

    progress: called with (name of the step, texts encoded so far, texts to encode).
    """
    rows: dict[str, FeatureRows] = {}
    distinct = sorted(set(texts))
    for start in range(0, len(distinct), BATCH):
        batch = distinct[start : start + BATCH]
        rows |= zip(batch, encoder.encode(batch), strict=True)
        progress("questions encoded", start + len(batch), len(distinct))
    return np.array([rows[text] for text in texts], dtype=np.float32).reshape(len(texts), encoder.dimension)


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
