"""From a log in memory and the names of candidates to their probabilities on its rows, and to the replay."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.encoders.feature_cache import embedded
from ragbandit.router.errors import ConfigError, InvalidInput
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline.estimation.intervals import cressie_read, extreme_rows
from ragbandit.router.offline.estimation.moments import Moments
from ragbandit.router.offline.estimation.reward_models import folds_of
from ragbandit.router.offline.logs.records import Logged
from ragbandit.router.offline.replay.candidates import (
    Asked,
    Judged,
    Student,
    check_trained,
    crossfitted,
    frozen,
    load,
    row_pmf,
)
from ragbandit.router.offline.replay.judge import judge
from ragbandit.router.offline.replay.plan import Plan, Progress
from ragbandit.router.offline.replay.progressive import Lived, lived
from ragbandit.router.offline.replay.results import Candidate, Measured, Replayed, Skipped
from ragbandit.router.offline.replay.sources import Held, segment_of
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy
from ragbandit.router.types import FeatureRows, SnapshotInfo

__all__ = ["Prepared", "prepared", "replay"]

MakeEncoder = Callable[[], Encoder]

#: a log with a smaller share of different questions says so
FRESH = 0.8


def replay(
    log: Held,
    *,
    candidates: Sequence[Asked],
    plan: Plan | None = None,
    settings: Settings | None = None,
    encoder: MakeEncoder | None = None,
    described: str = "a log in memory",
    since: float | None = None,
    notes: Sequence[str] = (),
    skipped: Sequence[Skipped] = (),
    progress: Progress = lambda _what, _done, _total: None,
) -> Replayed:
    """Judge these candidates on this log.

    settings: floor, fallback and bounds; folders of snapshots and of cached features. encoder: makes the encoder, for
    rows without features or with another encoder's. since: rows decided before were left out, seconds since the epoch.
    Raises InvalidInput, ConfigError or SnapshotError for what cannot be judged.
    """
    plan, settings = plan or Plan(), settings or Settings()
    plan = replace(plan, floor=settings.policy.floor if plan.floor is None else plan.floor)
    ready = prepared(log, candidates=candidates, plan=plan, settings=settings, encoder=encoder, progress=progress)
    found = judge(
        ready.log.pieces([one.pmf for one in ready.judged]),
        candidates=candidates,
        judged=ready.judged,
        plan=plan,
        log=described,
        since=since,
        notes=(*notes, *ready.notes),
        skipped=skipped,
        progress=progress,
    )
    return _with_rejection(found, log=ready.log, lives=ready.lives, plan=plan)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """The rows that can be judged, and what each candidate would do on them."""

    log: Held
    judged: Sequence[Judged]
    #: of candidates that learn while they go, by their place
    lives: Mapping[int, Lived]
    notes: Sequence[str]


def prepared(
    log: Held,
    *,
    candidates: Sequence[Asked],
    plan: Plan,
    settings: Settings,
    encoder: MakeEncoder | None = None,
    progress: Progress = lambda _what, _done, _total: None,
) -> Prepared:
    """All of `replay` but the judging: probabilities of every candidate on every row. Raises as `replay` does."""
    preparing = _Preparing(plan=plan, settings=settings, encoder=encoder, progress=progress)
    for asked in candidates:
        if asked.learns:
            check_trained(asked, arms=log.log.arms)
    snapshots = {
        asked.name: load(asked, files=SnapshotFiles(settings.snapshot_root))
        for asked in candidates
        if asked.kind == "snapshot"
    }
    log, notes = _unseen(log, snapshots=[info for _, info in snapshots.values()], in_sample=plan.in_sample)
    if plan.weight is not None:
        log = replace(log, log=log.log.weighted(plan.weight))
    fields = {name: segment_of(log.rows, name) for name in plan.segments}
    log = replace(log, log=replace(log.log, fields={**log.log.fields, **fields}))
    log = preparing.with_features(log, candidates=candidates)
    judged: list[Judged] = []
    lives: dict[int, Lived] = {}
    for index, asked in enumerate(candidates):
        made = preparing.judged(asked, log=log, snapshot=snapshots.get(asked.name))
        if isinstance(made, Lived):
            lives[index] = made
        judged.append(made.judged if isinstance(made, Lived) else made)
    return Prepared(log=log, judged=judged, lives=lives, notes=[*notes, *_repeated(log)])


def _repeated(log: Held) -> list[str]:
    """A word on questions that come again and again."""
    texts = [row.decision.query.text for row in log.rows if row.decision.query.text.strip()]
    different = len(set(texts))
    if not texts or different > FRESH * len(texts):
        return []
    word = "the intervals speak of more traffic with these questions, not of new ones"
    return [f"{different} different questions in {len(texts)} rows: {word}"]


def _unseen(log: Held, *, snapshots: Sequence[SnapshotInfo], in_sample: bool) -> tuple[Held, list[str]]:
    """The rows that no snapshot has learned: what is judged on its own lessons looks better than it is."""
    learned = np.zeros(len(log.rows), dtype=np.bool_)
    for info in snapshots:
        learned |= np.array([_has_learned(info, row, ledger=log.ledger) for row in log.rows])
    count = int(np.count_nonzero(learned))
    if not count:
        return log, []
    if in_sample:
        return log, [f"{count} rows were learned by a snapshot that is judged on them: it looks better than it is"]
    if count == len(log.rows):
        raise InvalidInput(
            f"all {count} rows were learned by a snapshot",
            field="policy",
            remedy="judge an older version, log more traffic, or give --in-sample to judge it on its own lessons",
        )
    kept = np.flatnonzero(~learned)
    left = replace(log, rows=[log.rows[int(index)] for index in kept], log=log.log.part(kept))
    return left, [f"{count} rows are left out: a snapshot has learned them, or may have"]


def _has_learned(info: SnapshotInfo, row: Logged, *, ledger: str | None) -> bool:
    """Whether the snapshot has learned this row: of its own ledger by the seq, of any other if it was there in time.

    A new label learns all decisions of its store, so another ledger's snapshot is not innocent of the older rows.
    """
    if (ledger or row.decision.policy) == info.policy:
        return row.seq <= info.last_seq
    return row.decision.made_at <= info.made_at


@dataclass(frozen=True, kw_only=True)
class _Preparing:
    plan: Plan
    settings: Settings
    encoder: MakeEncoder | None
    progress: Progress

    def with_features(self, log: Held, *, candidates: Sequence[Asked]) -> Held:
        """The rows' features; where they are missing or of several encoders and a policy needs them, encoded again."""
        hashes = {row.decision.encoder_hash for row in log.rows}
        needed = any(
            asked.kind == "policy" and "features" in make_policy(asked.what, params=asked.params).needs
            for asked in candidates
        )
        if log.log.features is not None and len(hashes) == 1:
            return log
        if not needed:
            # Features of several encoders are not of one kind: a model of rewards must not mix them.
            return replace(log, log=replace(log.log, features=None))
        return replace(log, log=replace(log.log, features=self.encoded(log)[0]))

    def encoded(self, log: Held) -> tuple[FeatureRows, str]:
        """The questions by the configured encoder, and its hash."""
        for row in log.rows:
            if not row.decision.query.text.strip():
                raise InvalidInput(
                    f"{row.decision.id} has no question, and its features are missing or another encoder's",
                    field="text",
                    remedy="log the questions or the features, or judge candidates that read neither",
                )
        if self.encoder is None:
            raise ConfigError("a policy needs features", field="encoder", remedy="give what makes the encoder")
        made = self.encoder()
        folder = Path(self.settings.data_dir) / "cache" / "features"
        texts = [row.decision.query.text for row in log.rows]
        return embedded(
            texts, encoder=made, folder=folder, progress=partial(self.progress, "questions encoded")
        ), made.hash

    def judged(self, asked: Asked, *, log: Held, snapshot: tuple[Policy, SnapshotInfo] | None) -> Judged | Lived:
        """This candidate on all rows."""
        if not asked.needs_rows:
            return row_pmf(asked, held=log)
        if snapshot is not None:
            policy, info = snapshot
            features = self._features_for(policy, info, log=log)
            return frozen(info, student=self._student(policy, log=log, features=features))
        make = partial(self._student, log=log, features=log.log.features)
        if self.plan.learn:
            fresh = partial(make_policy, asked.what, params=asked.params)
            return lived(asked, make=lambda: make(fresh()), log=log.log, progress=self.progress)
        folds = folds_of(log.log.keys, folds=self.plan.folds)
        return crossfitted(asked, make=make, folds_of_rows=folds, folds=self.plan.folds, progress=self.progress)

    def _features_for(self, policy: Policy, info: SnapshotInfo, *, log: Held) -> FeatureRows | None:
        """As the snapshot's encoder makes them."""
        if "features" not in policy.needs:
            return None
        if log.log.features is not None and {row.decision.encoder_hash for row in log.rows} == {info.encoder_hash}:
            return log.log.features
        features, made_by = self.encoded(log)
        if made_by != info.encoder_hash:
            raise InvalidInput(
                f"{info.version} was made with encoder {info.encoder_hash[:12]}, not {made_by[:12]}",
                field="encoder",
                remedy="configure the encoder that the snapshot was made with",
            )
        return features

    def _student(self, policy: Policy, *, log: Held, features: FeatureRows | None) -> Student:
        floor = self.settings.policy.floor if self.plan.floor is None else self.plan.floor
        return Student(
            policy, held=log, features=features, settings=self.settings, floor=floor, weight=self.plan.weight
        )


def _with_rejection(found: Replayed, *, log: Held, lives: Mapping[int, Lived], plan: Plan) -> Replayed:
    """The second lives' own means, among the other estimates."""
    if not lives:
        return found
    candidates = list(found.candidates)
    for index, life in lives.items():
        candidates[index] = _rejected(candidates[index], log=log, life=life, plan=plan)
    return replace(found, candidates=tuple(candidates))


def _rejected(candidate: Candidate, *, log: Held, life: Lived, plan: Plan) -> Candidate:
    rewards = log.log.reward[life.accepted]
    if not len(rewards):
        return candidate
    bounds = (log.log.minimum, log.log.maximum)
    moments = Moments.of(rewards, np.ones(len(rewards)))
    value = float(rewards.mean())
    extremes = extreme_rows([1.0], rewards=bounds)
    low, high = cressie_read(moments, confidence=plan.confidence, extremes=extremes, value=value)
    # It holds for one look.
    found = Measured(value=value) if plan.anytime else Measured(value=value, low=low, high=high)
    return replace(candidate, others={**candidate.others, "rejection": found})
