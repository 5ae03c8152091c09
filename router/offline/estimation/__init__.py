"""The doubly robust scores of rows, and the types that the offline tools share.

A Matrix has shape (n, K) unless stated otherwise: a row per decision, a column per arm.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ragbandit.shared.confidence_sequences import doubly_robust
from ragbandit.shared.types import Indices, Matrix, Vector

Strings = npt.NDArray[np.object_]
#: hashes of ids or questions
Keys = npt.NDArray[np.uint64]

#: called with (name of the work, done, total); total is 0 if it is not known
Progress = Callable[[str, int, int], None]


def no_progress(_work: str, _done: int, _total: int) -> None:
    """A `Progress` that shows nothing."""


class Tally:
    """Base of dataclasses that hold sums over rows. Fields are merged by +, or by "merge" in the field's metadata."""

    def merged(self, other: Self) -> Self:
        tally: Any = self
        sums = {
            part.name: part.metadata.get("merge", _sum)(getattr(self, part.name), getattr(other, part.name))
            for part in fields(tally)
        }
        return type(self)(**sums)


def _sum(first: Any, second: Any) -> Any:
    if type(first) is dict:
        shared = {name: _sum(value, second[name]) for name, value in first.items() if name in second}
        return {**first, **second, **shared}
    return first.merged(second) if hasattr(first, "merged") else first + second


def scores(*, reward: Vector, action: Indices, logged: Matrix, candidate: Matrix, predicted: Matrix) -> Matrix:
    """Terms of the doubly robust estimate for each row (Dudik, Langford and Li 2011), from arrays of a checked `Log`.

    r is a row's reward, a its drawn arm, P the logged and Q the candidate's probabilities, and M the predictions of a
    reward model. Returns shape (3, n): the weight w = Q[a] / P[a]; the correction w (r - M[a]); the baseline, the sum
    of Q M over the arms. Correction + baseline estimates the candidate's mean reward. It is unbiased if P > 0
    for every arm with Q > 0, whatever the model.
    """
    drawn = np.arange(len(action)) * logged.shape[1] + action
    weight = np.take(candidate, drawn) / np.take(logged, drawn)
    return np.stack([weight, *doubly_robust(weight, share=candidate, arm=action, value=reward, guess=predicted)])
