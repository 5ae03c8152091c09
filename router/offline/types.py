"""Types that the offline tools share: arrays by their contents, and the progress callback.

A Matrix has shape (n, K) where nothing else is said: a row per decision, a column per arm.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ragbandit.shared.types import Matrix, Vector

__all__ = ["Choices", "Flags", "Keys", "Matrix", "Progress", "Strings", "Vector", "no_progress"]

#: indices of arms
Choices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
#: text, as Python strings
Strings = npt.NDArray[np.object_]
#: hashes of decision ids
Keys = npt.NDArray[np.uint64]

#: (name of the work, done, total); total 0 is not known
Progress = Callable[[str, int, int], None]


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Progress that nobody watches."""
