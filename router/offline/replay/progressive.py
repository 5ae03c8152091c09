"""A candidate that learns while it goes, scored on each row before it learns it.

Two lives. In the first it learns every row, as the log has them, and is scored by the estimator that was asked for. In
the second it learns, and is scored on, only the rows that it would have lived itself: a row is accepted with
probability q / (c p), p and q the logged and its own probability of the arm that was drawn, c the largest 1 / p that
the log could have given (rejection sampling; Li et al. 2011 for uniform logs, Dudik et al. 2012). What is accepted is
traffic as the candidate would have made it, so the plain mean is unbiased; there is little of it where c is large.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ragbandit.router.offline.estimation.bandit_log import Flags, Log, mixed
from ragbandit.router.offline.estimation.moments import Vector
from ragbandit.router.offline.replay.candidates import Asked, Judged, Student, notes_of
from ragbandit.router.offline.replay.plan import Progress

__all__ = ["Lived", "lived"]

#: rows between two reports of progress
STEP = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Lived:
    """What became of it."""

    judged: Judged
    #: rows of the second life, shape (n,)
    accepted: Flags


def lived(asked: Asked, *, make: Callable[[], Student], log: Log, progress: Progress) -> Lived:
    """Both lives, row by row; make: a new student of the candidate."""
    all_rows, own_rows = make(), make()
    pmf = np.zeros(log.pmf.shape)
    accepted: Flags = np.zeros(len(log), dtype=np.bool_)
    draws, propensity = uniform(log), log.propensity
    bound = 1.0 / float(log.pmf[log.pmf > 0.0].min())
    for index in range(len(log)):
        row = np.array([index])
        pmf[index] = all_rows.ask(row)[0]
        all_rows.learn(index)
        chance = own_rows.ask(row)[0, log.action[index]] / (bound * propensity[index])
        if draws[index] < chance:
            accepted[index] = True
            own_rows.learn(index)
        if index % STEP == 0:
            progress(f"{asked.name} lives", index, len(log))
    progress(f"{asked.name} lives", len(log), len(log))
    notes = (
        *notes_of(all_rows),
        f"rejection accepted {np.count_nonzero(accepted)} of {len(log)} rows (least probability {1.0 / bound:.3g})",
    )
    return Lived(
        judged=Judged(described=f"{asked.what}, learning while it goes", pmf=pmf, notes=notes), accepted=accepted
    )


def uniform(log: Log) -> Vector:
    """A number in [0, 1) per row that depends on its decision id only, and on no draw of the log's; shape (n,)."""
    salt = np.full(len(log), 0x5EED, dtype=np.uint64)
    return np.asarray((mixed(log.keys, salt) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)
