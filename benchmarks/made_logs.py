"""Logs and rows of reports of simulated decisions, as replay and report read them from a store."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ragbandit.router.offline.estimation.bandit_log import BY_TEXT, Log
from ragbandit.router.offline.logs.columns import keys_of_bytes
from ragbandit.router.reporting.reading import ReportRows
from ragbandit.shared.types import ArmName, Matrix


def made_log(
    *, arms: Sequence[str], action: npt.NDArray[np.intp], pmf: Matrix, question: npt.NDArray[np.intp], **more: Any
) -> Log:
    """A log of decisions that could draw every arm. question: number of the question. more: further fields of Log."""
    count = len(action)
    no = np.zeros(count, dtype=np.bool_)
    known: dict[str, Any] = {
        "recognised_by": np.full(count, BY_TEXT, dtype=np.intp),
        "raw": no,
        "defaulted": no,
        "made_at": np.zeros(count),
    }
    return Log(
        arms=tuple(map(ArmName, arms)),
        keys=_keys(np.arange(count)),
        questions=_keys(question),
        action=action,
        pmf=pmf,
        offered=np.ones(pmf.shape, dtype=np.bool_),
        **known,
        **more,
    )


def _keys(numbers: npt.NDArray[np.intp]) -> npt.NDArray[np.uint64]:
    return keys_of_bytes(numbers.astype("<i8").view(np.uint8), lengths=np.full(len(numbers), 8))


def made_rows(
    *, arms: tuple[str, ...], arm: npt.NDArray[np.intp], pmf: Matrix, dollars: Any, **more: Any
) -> ReportRows:
    """Rows of one tenant and one price that could draw every arm. more: further fields of ReportRows."""
    zero = np.zeros(len(arm))
    groups: dict[str, Any] = {"tenants": ("default",), "prices": ("as configured",), "left_out": {}}
    return ReportRows(
        arms=arms,
        tenant=zero.astype(np.intp),
        price=zero.astype(np.intp),
        arm=arm,
        pmf=pmf,
        costs={"dollars": dollars, "steps": zero, "seconds": zero},
        offered=np.ones(pmf.shape, dtype=np.bool_),
        **groups,
        **more,
    )
