"""What report and replay claim about a pass, compared with the truth."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.coverage.verdicts import Mark
from benchmarks.made_logs import made_log, made_rows
from benchmarks.tasks.passes import EPOCH, Played, Rows, settings_of
from benchmarks.tasks.worlds import ARMS
from ragbandit.router.comparison import NOT_KNOWN, Comparison
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.replay import MemoryPart, Plan, estimate_candidates, parse_candidates
from ragbandit.router.offline.replay.plan import Description
from ragbandit.router.reporting.reading import ReportRows, ReportScope
from ragbandit.router.reporting.report import report_of
from ragbandit.shared.types import Vector

#: tasks after which a report is made
EVERY: Final = 250


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A comparison with always one arm, in all reports of a pass or in its replay."""

    has_verdict: bool  #: whether the last look has one
    width: float | None  #: between the ends of the last interval; None without an interval
    is_false: bool  #: whether any verdict is false
    is_missed: bool  #: whether any interval lacks the truth


def claims(played: Played) -> Mapping[str, Claim]:
    """Name of each comparison -> what was claimed."""
    settings = settings_of(played.world, unit=played.unit)
    marks: dict[str, list[Mark]] = {}
    for tasks in range(EVERY, len(played.world.tasks) + 1, EVERY):
        for name, mark in _of_report(_part(played.rows, played.rows.task < tasks), settings=settings):
            marks.setdefault(name, []).append(mark)
    rated = _part(played.rows, played.rows.reported)
    marks |= {name: [mark] for name, mark in _of_replay(rated, settings=settings)}
    return {name: _claim(looks) for name, looks in marks.items()}


def _claim(looks: Sequence[Mark]) -> Claim:
    last = looks[-1].found
    low, high = last.reward.low, last.reward.high
    return Claim(
        has_verdict=last.verdict != NOT_KNOWN,
        width=None if low is None or high is None else high - low,
        is_false=any(mark.is_false for mark in looks),
        is_missed=any(mark.is_missed for mark in looks),
    )


def _part(rows: Rows, chosen: npt.NDArray[np.bool_]) -> Rows:
    return Rows(**{column.name: getattr(rows, column.name)[chosen] for column in fields(rows)})


def _mark(rows: Rows, found: Comparison, truth: float) -> Mark:
    return Mark(questions=len(rows.arm), rated=int(rows.reported.sum()), found=found, truth=truth)


def _of_report(rows: Rows, *, settings: Settings) -> Iterator[tuple[str, Mark]]:
    scope = ReportScope(label="main", since=0.0, until=EPOCH + 1.0, reward=settings.reward)
    for found in report_of(
        report_rows(rows, settings=settings).part(slice(None, None, -1)), scope, policy=settings.policy
    ).arms:
        assert found.second_arm is not None
        arm = found.second_arm
        truth = float((rows.served - rows.always[:, ARMS.index(arm)]).mean())
        yield f"report, routing against always {arm}", _mark(rows, found, truth)


def report_rows(rows: Rows, *, settings: Settings) -> ReportRows:
    """The rows as a report reads them from a store, but the oldest first."""
    reward = settings.reward

    def earned(quality: Vector | float) -> Vector:
        clipped: Vector = np.clip(quality - reward.weight * rows.dollars, reward.minimum, reward.maximum)
        return clipped

    quality = np.where(rows.reported, rows.solved, np.nan)
    return made_rows(
        arms=ARMS,
        arm=rows.arm,
        pmf=rows.pmf,
        dollars=rows.dollars,
        made_at=np.full(len(rows.arm), EPOCH),
        candidate=rows.pmf,
        quality=quality,
        reward=earned(quality),
        expected_quality=rows.expected_quality,
        expected_cost=rows.expected_cost,
        best=earned(1.0),
        worst=earned(0.0),
        limits=(reward.minimum, reward.maximum),
    )


def _of_replay(rows: Rows, *, settings: Settings) -> Iterator[tuple[str, Mark]]:
    candidates = parse_candidates([f"fixed:{arm}" for arm in ARMS])
    result = estimate_candidates(
        [MemoryPart(log=_log(rows, settings=settings))],
        candidates=candidates,
        descriptions=[Description(described=one.name) for one in candidates],
        plan=Plan(),
        log="a pass",
    )
    for place, (arm, found) in enumerate(zip(ARMS, result.candidates, strict=True)):
        if found.comparison is not None:
            truth = float((rows.always[:, place] - rows.served).mean())
            yield f"replay, always {arm} against the log", _mark(rows, found.comparison, truth)


def _log(rows: Rows, *, settings: Settings) -> Log:
    reward = settings.reward
    return made_log(
        arms=ARMS,
        action=rows.arm,
        pmf=rows.pmf,
        question=rows.question,
        reward=np.clip(rows.solved - reward.weight * rows.dollars, reward.minimum, reward.maximum),
        quality=rows.solved,
        cost=rows.dollars,
        minimum=reward.minimum,
        maximum=reward.maximum,
        features=np.zeros((len(rows.arm), 1), dtype=np.float32),
    )
