"""Which rows of a log are judged: of the others a policy may learn, but nothing is estimated from them."""

from collections.abc import Sequence

import numpy as np

from ragbandit.router.offline.logs.records import Logged
from ragbandit.router.offline.replay.opening import MemoryLog
from ragbandit.router.offline.types import Flags
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import IMPORTED, SnapshotInfo


def judged_rows(log: MemoryLog, *, snapshots: Sequence[SnapshotInfo]) -> tuple[Flags, list[str]]:
    """The rows that are judged, shape (n,), and what the report says of the others.

    Not judged are rows decided before `log.since`; rows of a warm start, beside which there is traffic: no policy that
    served drew them; and rows that a snapshot has learned, or that ask a question which it has learned: an estimate on
    them is too optimistic. Raises InvalidInput where no row is left.
    """
    judged, notes = np.ones(len(log.rows), dtype=np.bool_), []
    if log.since is not None:
        judged &= log.log.made_at >= log.since
    elsewhere = judged & np.array([IMPORTED in row.decision.facts for row in log.rows], dtype=np.bool_)
    if elsewhere.any() and (judged & ~elsewhere).any():
        judged &= ~elsewhere
        notes.append(f"{np.count_nonzero(elsewhere):,} rows were imported: policies learn them, none is judged on them")
    known = np.zeros(len(log.rows), dtype=np.bool_)
    for info in snapshots:
        learned = np.array([_has_learned(info, row, ledger=log.ledger) for row in log.rows], dtype=np.bool_)
        known |= judged & np.isin(log.log.questions, log.log.questions[learned])
    if not known.any():
        return judged, notes
    count = int(np.count_nonzero(known))
    if count == np.count_nonzero(judged):
        raise InvalidInput(
            f"all {count} rows were learned by a snapshot, or ask questions that it has learned",
            field="policy",
            remedy="judge an older version, log more traffic, or name the policy instead, which is cross-fitted",
        )
    reason = "a snapshot has learned them, or may have, or has learned their question"
    return judged & ~known, [*notes, f"{count} rows are left out: {reason}"]


def _has_learned(info: SnapshotInfo, row: Logged, *, ledger: str | None) -> bool:
    """True if the snapshot has learned this row: of its own ledger by the seq, of any other if it was there in time.

    A new label learns all decisions of its store, so another ledger's snapshot is not innocent of the older rows.
    """
    if (ledger or row.decision.policy) == info.policy:
        return row.seq <= info.last_seq
    return row.decision.made_at <= info.made_at
