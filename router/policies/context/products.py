"""Products of a question's features and its context: what lets a policy on linear heads learn that they interact.

All products x_i c_j would be thousands of columns. A sketch has SKETCHED: column k is (s_k . x) (t_k . c), s_k of signs
and t_k of uniform numbers, both with variance 1 and drawn once for all from hashes. The mean of products of two
sketches is (x . x') (c . c'), the product kernel (random features for it: Kar and Karnick 2012; Pham and Pagh 2013).
"""

import functools
import hashlib
import math
from typing import Final

import numpy as np

from ragbandit.shared.types import Features, Matrix, Vector

#: columns of the sketch
SKETCHED: Final = 128


def sketch(features: Features, columns: Vector, *, size: int = SKETCHED) -> Vector:
    """The sketch of x / sqrt(d) times c, shape (SKETCHED,); its squared length is about |x|^2 / d * |c|^2."""
    signs, weights = _drawn(features.size, columns.size, size)
    question = np.einsum("ki,i->k", signs, features.astype(np.float64))
    context = np.einsum("kj,j->k", weights, columns)
    products: Vector = question * context / math.sqrt(features.size * size)
    return products


@functools.lru_cache(maxsize=4)
def _drawn(features: int, columns: int, size: int) -> tuple[Matrix, Matrix]:
    """The s_k as rows (size, d), 1 or -1; the t_k as rows (size, columns), uniform with variance 1."""
    bits = np.unpackbits(np.frombuffer(_bytes("signs", size * ((features + 7) // 8)), dtype=np.uint8))
    signs: Matrix = bits.reshape(size, -1)[:, :features].astype(np.float64) * 2.0 - 1.0
    words = np.frombuffer(_bytes("weights", 4 * size * columns), dtype="<u4").astype(np.float64)
    weights: Matrix = ((words + 0.5) * 2.0**-31 - 1.0).reshape(size, columns) * math.sqrt(3.0)
    return signs, weights


def _bytes(what: str, count: int) -> bytes:
    return hashlib.shake_256(f"ragbandit context sketch v1, {what}".encode()).digest(count)
