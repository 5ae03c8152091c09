"""The questions of a table as features, made once and kept on disk.

One safetensors file per encoder, named by the encoder's hash: sha256 of a text -> its features. It is a cache: a file
that is damaged, or cannot be written, costs time and nothing else.
"""

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from ragbandit.router.encoders.base import Encoder
from ragbandit.router.storage.files import write_file
from ragbandit.router.types import FeatureRows

__all__ = ["embedded"]

log = logging.getLogger("ragbandit.simulation")

#: texts encoded between two reports of progress
BATCH = 32


def embedded(
    texts: Sequence[str],
    *,
    encoder: Encoder,
    folder: Path,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> FeatureRows:
    """Features of every text, shape (n, d), float32; only what the folder does not have is encoded.

    progress: texts encoded, and how many are to be.
    """
    file = folder / f"{encoder.hash}.safetensors"
    known = _read(file, dimension=encoder.dimension)
    missing = sorted({text for text in texts if _key(text) not in known})
    for start in range(0, len(missing), BATCH):
        batch = missing[start : start + BATCH]
        for text, row in zip(batch, encoder.encode(batch), strict=True):
            known[_key(text)] = row
        progress(start + len(batch), len(missing))
    if missing:
        _write(file, known)
    return np.array([known[_key(text)] for text in texts], dtype=np.float32).reshape(len(texts), encoder.dimension)


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _read(file: Path, *, dimension: int) -> dict[bytes, FeatureRows]:
    """sha256 of a text -> its features, shape (d,). Empty where the file is missing or not what we wrote."""
    try:
        tensors = load_tensors(file.read_bytes())
        keys, features, checksum = tensors["keys"], tensors["features"], tensors["checksum"]
        if keys.shape != (len(features), 32) or features.shape != (len(keys), dimension):
            raise ValueError(f"shapes {keys.shape} and {features.shape}")
        if features.dtype != np.float32 or checksum.tobytes() != _checksum(keys.tobytes(), features.tobytes()):
            raise ValueError("the checksum does not fit")
    except FileNotFoundError:
        return {}
    except Exception as error:  # whatever a damaged file does to its reader, the features can be made again
        log.warning(
            "cached features cannot be read; they are computed again",
            extra={"action": "cache", "file": str(file), "reason": str(error)},
        )
        return {}
    return {key.tobytes(): row for key, row in zip(keys, features, strict=True)}


def _write(file: Path, known: dict[bytes, FeatureRows]) -> None:
    """All at once: a reader finds the old file or the new one."""
    keys = np.array([np.frombuffer(key, dtype=np.uint8) for key in known])
    features = np.array(list(known.values()), dtype=np.float32)
    checksum = np.frombuffer(_checksum(keys.tobytes(), features.tobytes()), dtype=np.uint8)
    data = save_tensors({"keys": keys, "features": features, "checksum": checksum})
    try:
        write_file(file, data, durable=False)
    except OSError as error:
        log.warning(
            "features cannot be written to the cache",
            extra={"action": "cache", "file": str(file), "reason": str(error)},
        )


def _checksum(keys: bytes, features: bytes) -> bytes:
    return hashlib.sha256(keys + features).digest()
