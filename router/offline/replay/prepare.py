"""Replay: candidates and a log to results. A log in memory is prepared first: probabilities of every candidate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.encoders.feature_cache import embedded
from ragbandit.router.errors import ConfigError, InvalidInput
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline.estimation.intervals import cressie_read, extreme_rows
from ragbandit.router.offline.estimation.moments import Moments
from ragbandit.router.offline.estimation.rated_rewards import RatingFacts
from ragbandit.router.offline.logs.ledger_arrays import UnevenFeatures
from ragbandit.router.offline.logs.place import Place, check_shared
from ragbandit.router.offline.logs.records import Logged
from ragbandit.router.offline.replay.candidates import (
    CandidatePmf,
    CandidatePolicy,
    CandidateSpec,
    ProgressiveResult,
    baselines,
    check_candidate,
    crossfitted,
    described,
    frozen,
    load,
    not_offered,
    parse_candidates,
    progressive_validation,
    row_pmf,
)
from ragbandit.router.offline.replay.judge import judge
from ragbandit.router.offline.replay.open_log import OpenLog
from ragbandit.router.offline.replay.parts.engines import Engine, SerialEngine
from ragbandit.router.offline.replay.parts.map_reduce import replay_parts
from ragbandit.router.offline.replay.plan import Plan
from ragbandit.router.offline.replay.results import Candidate, EstimateWithInterval, ReplayResult
from ragbandit.router.offline.replay.served import served_policy, service_note, settings_in_force, with_sides
from ragbandit.router.offline.replay.sources.ledger import LedgerPieces
from ragbandit.router.offline.replay.sources.pieces import MemoryLog, check_choice, segment_of, stayed_note
from ragbandit.router.offline.replay.sources.ratings import (
    check_judged,
    judged_log,
    judged_note,
    judged_rewards,
    rating_notes,
)
from ragbandit.router.offline.replay.sources.service import logged_policies
from ragbandit.router.offline.types import Progress, no_progress
from ragbandit.router.policies.base import Policy
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.router.types import FeatureRows, SnapshotInfo

__all__ = ["PreparedLog", "prepare", "replay"]

MakeEncoder = Callable[[], Encoder]

#: a log with a smaller share of different questions says so
FRESH = 0.8


def replay(
    log: OpenLog | MemoryLog,
    *,
    candidates: Sequence[str | CandidateSpec] | None = None,
    plan: Plan | None = None,
    settings: Settings | None = None,
    encoder: MakeEncoder | None = None,
    engine: Engine | None = None,
    notes: Sequence[str] = (),
    progress: Progress = no_progress,
) -> ReplayResult:
    """Judge candidates on a log.

    log: of `open_log`, or rows in memory (`memory_log`). A Parquet file is read in pieces where no candidate reads
    questions, so that it need not fit in memory. candidates: names as of `ragbandit replay --policy`, or specs; None:
    each arm of the log, and uniform. settings: the service's, by which policies and snapshots are served (floors, cold
    start, incumbent, fallback), and folders of snapshots and of cached features; default those of the opened log.
    encoder: makes the encoder, for rows without features or with another encoder's; default the configured one for an
    opened log. engine: judges the files of a folder or a pattern, for example by `DaskEngine`; default one after the
    other, in this process. notes: for the report.
    Raises InvalidInput, ConfigError, StoreError or SnapshotError for what cannot be judged.
    """
    if isinstance(log, OpenLog):
        settings = settings or log.settings
        encoder = encoder or partial(make_encoder, settings.encoder)
    plan, settings = plan or Plan(), settings or Settings()
    specs = None if candidates is None else _specs(candidates)
    judged = isinstance(log, OpenLog) and log.judged
    if isinstance(log, OpenLog) and log.judged:
        check_judged(several=log.several, anytime=plan.anytime)
    elif isinstance(log, OpenLog):
        result = _replay_in_pieces(log, specs=specs, plan=plan, engine=engine, notes=notes, progress=progress)
        if result is not None:
            return result
    if isinstance(log, OpenLog):
        log = log.read(progress)
    facts: RatingFacts | None = None
    if judged:
        found = judged_log(log, plan=plan)
        log, facts = found.log, found.facts
        notes = (*rating_notes(facts), *notes)
    specs = baselines(log.log.arms) if specs is None else specs
    ready = prepare(log, candidates=specs, plan=plan, settings=settings, encoder=encoder, progress=progress)
    result = judge(
        ready.log.pieces([one.pmf for one in ready.candidate_pmfs]),
        candidates=specs,
        candidate_pmfs=ready.candidate_pmfs,
        plan=plan,
        log=log.described,
        logged=log.service.logged,
        since=log.since,
        notes=(*notes, *ready.notes),
        skipped=log.skipped,
        progress=progress,
    )
    result = replace(result, ratings=facts)
    result = _with_rejection(result, log=ready.log, progressive=ready.progressive, plan=plan)
    return with_sides(result, served=ready.served)


def _replay_in_pieces(
    log: OpenLog,
    *,
    specs: list[CandidateSpec] | None,
    plan: Plan,
    engine: Engine | None,
    notes: Sequence[str],
    progress: Progress,
) -> ReplayResult | None:
    """The result of a log that need not fit in memory; None for one that must be read whole."""
    parts = log.parts()
    if parts is not None:
        if engine is not None and not isinstance(engine, SerialEngine):
            check_shared(parts)
        return replay_parts(
            parts,
            candidates=specs,
            plan=plan,
            defaults=log.defaults,
            mixed_arms=log.mixed_arms,
            since=log.since,
            log=log.described,
            engine=engine or SerialEngine(),
            notes=notes,
            progress=progress,
        )
    path = log.parquet(specs or ())
    if path is not None:
        return _replay_parquet(log, path, specs=specs, plan=plan, notes=notes, progress=progress)
    if log.streams_ledger(specs or ()):
        return _replay_ledger(log, specs=specs, plan=plan, notes=notes, progress=progress)
    return None


def _specs(candidates: Sequence[str | CandidateSpec]) -> list[CandidateSpec]:
    """Names parsed, specs as they are. Raises InvalidInput for a name that is given twice."""
    parsed = {spec.name: spec for spec in candidates if isinstance(spec, CandidateSpec)}
    names = [one if isinstance(one, str) else one.name for one in candidates]
    return [parsed.get(spec.name, spec) for spec in parse_candidates(names)]


def _replay_parquet(
    log: OpenLog,
    path: Place,
    *,
    specs: list[CandidateSpec] | None,
    plan: Plan,
    notes: Sequence[str],
    progress: Progress,
) -> ReplayResult:
    """Judge candidates on a Parquet file without reading it whole."""
    log.check_since(path)
    specs = log.baselines(path, plan=plan) if specs is None else specs
    return judge(
        log.pieces(path, candidates=specs, plan=plan),
        candidates=specs,
        candidate_pmfs=[CandidatePmf(described=described(spec)) for spec in specs],
        plan=plan,
        log=str(path),
        since=log.since,
        notes=notes,
        progress=progress,
    )


def _replay_ledger(
    log: OpenLog,
    *,
    specs: list[CandidateSpec] | None,
    plan: Plan,
    notes: Sequence[str],
    progress: Progress,
) -> ReplayResult:
    """Judge candidates on a ledger of the store without reading it whole."""
    with log.ledger() as reader:
        check_choice(reader.arms)
        specs = baselines(reader.arms) if specs is None else specs
        pieces = LedgerPieces(reader=reader, candidates=specs, plan=plan, features=plan.reward_model != "mean")
        candidate_pmfs = [CandidatePmf(described=described(spec)) for spec in specs]
        run = partial(
            judge, candidates=specs, candidate_pmfs=candidate_pmfs, plan=plan, log=log.described, since=log.since,
            logged=logged_policies(reader.ledger.database), progress=progress,
        )  # fmt: skip
        try:
            result = run(pieces)
        except UnevenFeatures:
            pieces = replace(pieces, features=False)
            result = run(pieces)
        from_judge, stayed = reader.judged(), reader.stayed()
    found = [
        replace(each, notes=(*not_offered(spec, missing=pieces.missing.get(spec.name, 0)), *each.notes))
        for spec, each in zip(specs, result.candidates, strict=True)
    ]
    different, rows = pieces.questions
    judged = judged_note(from_judge, rows=result.rows)
    said = (*notes, *stayed_note(stayed), *repeated(different, rows=rows), *judged, *result.notes)
    return replace(result, candidates=tuple(found), notes=said)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedLog:
    """The rows that can be judged, and what each candidate would do on them."""

    log: MemoryLog
    candidate_pmfs: Sequence[CandidatePmf]
    #: of candidates that learn along the log, by index
    progressive: Mapping[int, ProgressiveResult]
    #: the policy that each candidate of the registry is, by its name
    served: Mapping[str, Policy]
    notes: Sequence[str]


def prepare(
    log: MemoryLog,
    *,
    candidates: Sequence[CandidateSpec],
    plan: Plan,
    settings: Settings,
    encoder: MakeEncoder | None = None,
    progress: Progress = no_progress,
) -> PreparedLog:
    """All of `replay` but the judging: probabilities of every candidate on every row. Raises as `replay` does."""
    settings = settings_in_force(settings, log=log, floor=plan.floor)
    preparation = _Preparation(
        plan=plan, settings=settings, registered=log.service.registered, encoder=encoder, progress=progress
    )
    for spec in candidates:
        if spec.learns:
            check_candidate(spec, arms=log.log.arms)
    served = {spec.name: preparation.policy_of(spec) for spec in candidates if spec.learns}
    snapshots = {
        spec.name: load(spec, files=SnapshotFiles(settings.snapshot_root))
        for spec in candidates
        if spec.kind == "snapshot"
    }
    log, notes = _unseen(log, snapshots=[info for _, info in snapshots.values()], in_sample=plan.in_sample)
    if plan.weight is not None:
        log = replace(log, log=log.log.weighted(plan.weight))
    fields = {name: segment_of(log.rows, name) for name in plan.segments}
    log = replace(log, log=replace(log.log, fields={**log.log.fields, **fields}))
    log = preparation.with_features(log, needed=any("features" in policy.needs for policy in served.values()))
    candidate_pmfs: list[CandidatePmf] = []
    progressive: dict[int, ProgressiveResult] = {}
    for index, spec in enumerate(candidates):
        made = preparation.candidate_pmf(spec, log=log, snapshot=snapshots.get(spec.name))
        if isinstance(made, ProgressiveResult):
            progressive[index] = made
        candidate_pmfs.append(made.pmf if isinstance(made, ProgressiveResult) else made)
    notes = [*notes, *_repeated(log), *judged_note(judged_rewards(log), rows=len(log.rows))]
    if served or snapshots:
        notes.append(service_note(settings))
    return PreparedLog(log=log, candidate_pmfs=candidate_pmfs, progressive=progressive, served=served, notes=notes)


def _repeated(log: MemoryLog) -> list[str]:
    texts = [row.decision.query.text for row in log.rows if row.decision.query.text.strip()]
    return repeated(len(set(texts)), rows=len(texts))


def repeated(different: int, *, rows: int) -> list[str]:
    """A word on questions that come again and again."""
    if not rows or different > FRESH * rows:
        return []
    word = "the intervals speak of more traffic with these questions, not of new ones"
    return [f"{different} different questions in {rows} rows: {word}"]


def _unseen(log: MemoryLog, *, snapshots: Sequence[SnapshotInfo], in_sample: bool) -> tuple[MemoryLog, list[str]]:
    """The rows that no snapshot has learned: an estimate on training rows is too optimistic."""
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
            remedy="judge an older version, log more traffic, or give --in-sample to judge it on its training rows",
        )
    kept = np.flatnonzero(~learned)
    left = replace(log, rows=[log.rows[int(index)] for index in kept], log=log.log.part(kept))
    return left, [f"{count} rows are left out: a snapshot has learned them, or may have"]


def _has_learned(info: SnapshotInfo, row: Logged, *, ledger: str | None) -> bool:
    """True if the snapshot has learned this row: of its own ledger by the seq, of any other if it was there in time.

    A new label learns all decisions of its store, so another ledger's snapshot is not innocent of the older rows.
    """
    if (ledger or row.decision.policy) == info.policy:
        return row.seq <= info.last_seq
    return row.decision.made_at <= info.made_at


@dataclass(frozen=True, kw_only=True)
class _Preparation:
    plan: Plan
    #: with the floors in force
    settings: Settings
    #: the row of the service's ledger; None: a ledger that begins now
    registered: Mapping[str, Any] | None
    encoder: MakeEncoder | None
    progress: Progress

    def policy_of(self, spec: CandidateSpec) -> Policy:
        """A candidate of the registry, fresh. Raises ConfigError."""
        return served_policy(spec, settings=self.settings, registered=self.registered)

    def with_features(self, log: MemoryLog, *, needed: bool) -> MemoryLog:
        """The rows' features; where they are missing or of several encoders and a policy needs them, encoded again."""
        hashes = {row.decision.encoder_hash for row in log.rows}
        if log.log.features is not None and len(hashes) == 1:
            return log
        if not needed:
            # Features of several encoders are not of one kind: a model of rewards must not mix them.
            return replace(log, log=replace(log.log, features=None))
        return replace(log, log=replace(log.log, features=self.encoded(log)[0]))

    def encoded(self, log: MemoryLog) -> tuple[FeatureRows, str]:
        """The questions by the configured encoder, and its hash."""
        for row in log.rows:
            if not row.decision.query.text.strip():
                raise InvalidInput(
                    f"{row.decision.id} has no question, and its features are missing or another encoder's",
                    field="text",
                    remedy="log the questions or the features, or judge candidates that read neither",
                )
        if self.encoder is None:
            raise ConfigError(
                "a policy needs features", field="encoder", remedy="pass encoder=, a function that makes one"
            )
        made = self.encoder()
        folder = Path(self.settings.data_dir) / "cache" / "features"
        texts = [row.decision.query.text for row in log.rows]
        return embedded(
            texts, encoder=made, folder=folder, progress=partial(self.progress, "questions encoded")
        ), made.hash

    def candidate_pmf(
        self, spec: CandidateSpec, *, log: MemoryLog, snapshot: tuple[Policy, SnapshotInfo] | None
    ) -> CandidatePmf | ProgressiveResult:
        """This candidate on all rows."""
        if not spec.needs_rows:
            return row_pmf(spec, log=log)
        if snapshot is not None:
            policy, info = snapshot
            features = self._features_for(policy, info, log=log)
            return frozen(info, candidate=self._candidate_policy(policy, log=log, features=features))

        def make() -> CandidatePolicy:
            return self._candidate_policy(self.policy_of(spec), log=log, features=log.log.features)

        if self.plan.learn:
            return progressive_validation(spec, make=make, log=log, progress=self.progress)
        return crossfitted(
            spec,
            make=make,
            folds_of_rows=self.plan.folds_of_whole(log.log),
            folds=self.plan.folds,
            progress=self.progress,
        )

    def _features_for(self, policy: Policy, info: SnapshotInfo, *, log: MemoryLog) -> FeatureRows | None:
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

    def _candidate_policy(self, policy: Policy, *, log: MemoryLog, features: FeatureRows | None) -> CandidatePolicy:
        return CandidatePolicy(policy, log=log, features=features, settings=self.settings, weight=self.plan.weight)


def _with_rejection(
    found: ReplayResult, *, log: MemoryLog, progressive: Mapping[int, ProgressiveResult], plan: Plan
) -> ReplayResult:
    """Adds the means of rejection-sampling replay to the other estimates."""
    if not progressive:
        return found
    candidates = list(found.candidates)
    for index, result in progressive.items():
        candidates[index] = _rejected(candidates[index], log=log, result=result, plan=plan)
    return replace(found, candidates=tuple(candidates))


def _rejected(candidate: Candidate, *, log: MemoryLog, result: ProgressiveResult, plan: Plan) -> Candidate:
    rewards = log.log.reward[result.accepted]
    if not len(rewards):
        return candidate
    bounds = (log.log.minimum, log.log.maximum)
    moments = Moments.of(rewards, np.ones(len(rewards)))
    value = float(rewards.mean())
    extremes = extreme_rows([1.0], rewards=bounds)
    low, high = cressie_read(moments, confidence=plan.confidence, extremes=extremes, value=value)
    # It holds for one look.
    found = EstimateWithInterval(value=value) if plan.anytime else EstimateWithInterval(value=value, low=low, high=high)
    return replace(candidate, others={**candidate.others, "rejection": found})
