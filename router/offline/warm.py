"""Warm start: labelled questions or a log are learned before the first user comes, and judged on what is held out.

material: the rows of a table or of a log, with features. held_out: what the policy would do on questions that it has
not learned. entering: the rows into the ledger of the configuration, and the policy that has learned them.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder, embedded
from ragbandit.router.learning.examples import policy_of
from ragbandit.router.learning.learner import Learner
from ragbandit.router.learning.monitoring.price import Price, means_of, price_of
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline.estimation import Choices, Progress, no_progress
from ragbandit.router.offline.estimation.bandit_log import Log, folds_of
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.logs.ledger_transfer import ImportCounts, take_in
from ragbandit.router.offline.logs.tables import ORIGIN, LabelledTable, arm_rows, table_query
from ragbandit.router.offline.replay.assemble import mean_of
from ragbandit.router.offline.replay.candidates import CandidatePolicy, crossfitted
from ragbandit.router.offline.replay.engine import MemoryPart, estimate_candidates
from ragbandit.router.offline.replay.opening import MemoryLog, memory_log
from ragbandit.router.offline.replay.plan import (
    CandidatePmf,
    CandidateResult,
    CandidateSpec,
    EstimateWithInterval,
    Plan,
    ReplayResult,
    array_pmf,
    baselines,
)
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy, TableTrained
from ragbandit.router.policies.kinds.conservative import ConservativePolicy
from ragbandit.router.storage.ledgers.inheritance import register_policy
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import IMPORTED, ArmName, Decision, Matrix, Query, Vector, finite_json


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmRows:
    """Rows to learn from, in their order."""

    rows: Sequence[Logged]
    #: all arms that occur
    arms: tuple[ArmName, ...]
    #: the file, for messages
    source: str
    #: the format, kept in the facts of the decisions
    origin: str
    #: rows of a log whose features were made again, since they had none or another encoder's
    encoded: int = 0


def question_key(query: Query) -> str:
    """What makes two rows the same question to a policy."""
    return canonical([query.text, dict(query.context), query.tenant])


def learner_of(policy: Policy) -> Policy:
    """The policy that learns: the one inside, where an incumbent holds it back."""
    return policy.inner if isinstance(policy, ConservativePolicy) else policy


def check_policy(policy: Policy, *, name: str) -> None:
    """Raises ConfigError for a policy that does not learn from a ledger."""
    if isinstance(policy, TableTrained):
        raise ConfigError(
            f"{name} is trained on a table as a whole, not row by row",
            field="policy.name",
            remedy=f"use: ragbandit policy train --policy {name} --table T.jsonl --out FOLDER",
        )


def table_material(
    table: LabelledTable,
    *,
    source: str,
    settings: Settings,
    encoder: Encoder,
    now: float,
    progress: Progress = no_progress,
) -> WarmRows:
    """A row for each question and arm, the questions in an order that follows from their texts.

    A table is often sorted by where its questions come from; learned in that order it would look like drift, and a
    policy that forgets would know the last part alone. Raises ConfigError where the reward has no price for steps.
    """
    if not settings.reward.cost.get("steps", 0.0) > 0.0:
        raise ConfigError(
            "steps have no price: they are the only cost that a table knows",
            field="reward.cost",
            remedy="add steps: 1.0, or learn from the log of `ragbandit evaluate --log`, which has every cost",
        )
    queries = [table_query(row) for row in table.rows]
    features = _embedded([query.text for query in queries], encoder=encoder, settings=settings, progress=progress)
    occurrences: Counter[str] = Counter()
    rows: list[Logged] = []
    for row, query, mine in zip(table.rows, queries, features, strict=True):
        key = question_key(query)
        rows += arm_rows(
            row,
            arms=table.arms,
            features=mine,
            encoder_hash=encoder.hash,
            settings=settings,
            now=now,
            first=len(rows) + 1,
            occurrence=occurrences[key],
        )
        occurrences[key] += 1
    return WarmRows(rows=_mixed(rows, arms=len(table.arms)), arms=table.arms, source=source, origin=ORIGIN)


def log_material(
    rows: Sequence[Logged],
    *,
    source: str,
    origin: str,
    settings: Settings,
    encoder: Encoder,
    needs_features: bool,
    progress: Progress = no_progress,
) -> WarmRows:
    """The rows of a log; the features of a row that has none, or another encoder's, are made by this encoder.

    In the order of the log, unless it tells every arm of every question: then in that of a table. Their weight of cost
    is that of the settings: the policy decides by the last one that it learned.
    Raises InvalidInput for a row that has no question to make them of, where the policy needs features.
    """
    weight = settings.reward.weight
    material = [replace(row, reward=row.reward.at(weight)) for row in rows]
    blind = [at for at, row in enumerate(material) if not _has_features(row, encoder=encoder)]
    for at in blind:
        if needs_features and not material[at].decision.query.text.strip():
            raise InvalidInput(
                "has no question, and its features are missing or another encoder's",
                field=f"{source}:{material[at].line} text",
                remedy="log the questions or the features of the configured encoder, or leave the row out",
            )
    blind = [at for at in blind if material[at].decision.query.text.strip()]
    texts = [material[at].decision.query.text for at in blind]
    encoded = _embedded(texts, encoder=encoder, settings=settings, progress=progress) if texts else ()
    for at, features in zip(blind, encoded, strict=True):
        decision = material[at].decision
        # Its pmf can no longer be computed again from what is stored: it was made elsewhere.
        facts = {**decision.facts, IMPORTED: origin}
        decision = replace(decision, features=features, encoder_hash=encoder.hash, facts=facts)
        material[at] = replace(material[at], decision=decision)
    arms = tuple(dict.fromkeys(arm for row in material for arm in row.decision.arms))
    if tells_every_arm(material):
        material = _mixed(sorted(material, key=lambda row: question_key(row.decision.query)), arms=1)
    return WarmRows(rows=material, arms=arms, source=source, origin=origin, encoded=len(blind))


def tells_every_arm(rows: Sequence[Logged]) -> bool:
    """Whether every question has each offered arm equally often, each with the probability of a uniform draw."""
    counts: dict[str, Counter[ArmName]] = {}
    for row in rows:
        decision = row.decision
        share = 1.0 / len(decision.arms)
        if set(decision.arms) != set(rows[0].decision.arms) or any(abs(p - share) > 1e-9 for p in decision.pmf):
            return False
        counts.setdefault(question_key(decision.query), Counter())[decision.arm] += 1
    arms = len(rows[0].decision.arms)
    return all(len(counted) == arms and len(set(counted.values())) == 1 for counted in counts.values())


def _mixed(rows: Sequence[Logged], *, arms: int) -> list[Logged]:
    """Groups of so many rows, in the order of the sha256 of their question; equal ones stay in theirs."""
    groups = [rows[start : start + arms] for start in range(0, len(rows), arms)]
    groups.sort(
        key=lambda group: hashlib.sha256(
            question_key(group[0].decision.query).encode("utf-8", "surrogatepass")
        ).digest()
    )
    return [replace(row, seq=seq) for seq, row in enumerate((row for group in groups for row in group), start=1)]


def _has_features(row: Logged, *, encoder: Encoder) -> bool:
    return row.decision.features is not None and row.decision.encoder_hash == encoder.hash


def _embedded(
    texts: Sequence[str], *, encoder: Encoder, settings: Settings, progress: Progress
) -> npt.NDArray[np.float32]:
    folder = Path(settings.data_dir) / "cache" / "features"
    return embedded(texts, encoder=encoder, folder=folder, progress=partial(progress, "questions encoded"))


#: how long to wait for the ledger's learner, seconds
PATIENCE_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Entered:
    """What became of the rows."""

    #: in the ledger now and not before
    added: int
    #: it had them already
    known: int
    #: of the ledger, after it
    last_seq: int
    #: the snapshot that has learned them; None where a running learner makes it
    version: str | None


def enter(
    material: WarmRows,
    *,
    ledger: Ledger,
    settings: Settings,
    encoder_hash: str,
    patience_s: float | None = None,
    clock: Callable[[], float] = time.time,
    progress: Progress = no_progress,
) -> Entered:
    """Append the rows that the ledger does not have, learn them, and make a snapshot.

    Raises Conflict where a row says something else than the ledger has learned, or was made with another encoder;
    NotReady where a learner holds the ledger for longer than patience_s (default PATIENCE_S).
    """
    patience_s = PATIENCE_S if patience_s is None else patience_s
    policy = register(ledger, settings=settings, encoder_hash=encoder_hash, now=clock())
    learner = Learner(ledger, files=SnapshotFiles(settings.snapshot_root), settings=settings, clock=clock)
    learner.drain(patience_s=patience_s)  # what was there before: the rows come after it
    rows = material.rows
    if settings.log.text != "full":
        rows = [replace(row, decision=_without_texts(row.decision, settings=settings)) for row in rows]

    def show(taken: ImportCounts) -> None:
        progress("rows entered", taken.added + taken.known, len(rows))

    taken = take_in(
        ledger,
        rows,
        origin=material.origin,
        source=material.source,
        lease_s=settings.learning.lease_s,
        patience_s=patience_s,
        remade=True,
        clock=clock,
        progress=show,
    )
    progress("learning", 0, 0)
    learner.drain(patience_s=patience_s)
    last = ledger.last_seq()
    newest = ledger.latest_snapshots(
        limit=1, algorithm=policy.algorithm, params=policy.params, encoder_hash=_hash_for(policy, encoder_hash)
    )
    version = newest[0].version if newest and newest[0].last_seq == last else None
    return Entered(added=taken.added, known=taken.known, last_seq=last, version=version)


def register(ledger: Ledger, *, settings: Settings, encoder_hash: str, now: float) -> Policy:
    """Make the ledger known as a router would, with the configured policy; a fresh one of it. Raises Conflict."""
    policy = policy_of(settings)
    register_policy(
        ledger.database,
        label=ledger.label,
        algorithm=policy.algorithm,
        params=canonical(dict(policy.params)),
        encoder_hash=_hash_for(policy, encoder_hash),
        now=now,
    )
    return policy


def _hash_for(policy: Policy, encoder_hash: str) -> str:
    return encoder_hash if "features" in policy.needs else ""


def _without_texts(decision: Decision, *, settings: Settings) -> Decision:
    """As live decisions are kept under log.text: none."""
    context = {key: value for key, value in decision.query.context.items() if key in settings.context}
    return replace(decision, query=replace(decision.query, text="", context=context))


#: of the intervals
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """One way to choose, on the questions held out: means per question."""

    name: str
    reward: EstimateWithInterval
    quality: EstimateWithInterval
    cost: EstimateWithInterval
    #: share of every arm
    shares: Mapping[ArmName, float]
    #: reward of the policy minus this one's, paired; None for the policy itself
    gain: EstimateWithInterval | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """The policy after its warm start, and always each arm."""

    #: "every arm": all outcomes are known; "replay": estimated from the logged draws
    by: str
    questions: int
    rows: int
    folds: int
    #: the policy first
    standings: tuple[Standing, ...]
    #: what reward.weight says of the rows; None where fewer than two arms have a quality apart from their cost
    price: Price | None
    notes: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Plain values; None for a number that is not known."""
        values: dict[str, Any] = finite_json(asdict(self))
        return values


def held_out(
    material: WarmRows,
    *,
    policy: Policy,
    name: str,
    settings: Settings,
    folds: int = 5,
    progress: Progress = no_progress,
) -> HeldOut:
    """Cross-fitted by question. policy: a fresh one; its params are those of the copies that learn.

    Raises InvalidInput for fewer questions than folds.
    """
    log = memory_log(material.rows, mixed_arms=True, described=material.source)
    keys = [question_key(row.decision.query) for row in material.rows]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    if len(numbers) < folds:
        raise InvalidInput(
            f"{len(numbers)} different questions cannot be cut in {folds} folds",
            field=material.source,
            remedy="give more questions",
        )
    question = np.array([numbers[key] for key in keys], dtype=np.intp)
    spec = CandidateSpec(name=name, kind="policy", what=policy.algorithm, params=policy.params)
    candidate = crossfitted(
        spec,
        make=lambda: CandidatePolicy(
            make_policy(policy.algorithm, params=policy.params),
            log=log,
            features=log.log.features,
            settings=settings,
            weight=None,
        ),
        folds_of_rows=_folds(log.log, question=question, folds=folds),
        folds=folds,
        progress=progress,
    )
    if tells_every_arm(material.rows):
        standings = _counted(log, question=question, pmf=candidate.pmf, name=name)
        by, notes = "every arm", candidate.notes
    else:
        result = _replayed(log, spec=spec, candidate=candidate, folds=folds, progress=progress)
        standings, by = _estimated(result, arms=log.log.arms), "replay"
        notes = (*candidate.notes, *result.notes, *result.faults)
    parts = ((row.decision, row.reward) for row in material.rows if row.reward.has_parts)
    means = means_of((one.arm, r.quality, r.cost, r.sample_weight, one.propensity) for one, r in parts)
    return HeldOut(
        by=by,
        questions=len(numbers),
        rows=len(material.rows),
        folds=folds,
        standings=standings,
        price=price_of(means, weight=settings.reward.weight) if len(means) > 1 else None,
        notes=notes,
    )


def _folds(log: Log, *, question: Choices, folds: int) -> Choices:
    """The fold of each row: of its question alone, whatever the context, and none is empty.

    question: numbers of what is the same to a policy, context included, for a log of fewer questions than folds.
    """
    mixed = folds_of(log.questions, folds=folds)
    if len(np.unique(mixed)) == folds:
        return mixed
    texts, number = np.unique(log.questions, return_inverse=True)
    return np.asarray((question if len(texts) < folds else number) % folds, dtype=np.intp)


def _counted(log: MemoryLog, *, question: Choices, pmf: Matrix, name: str) -> tuple[Standing, ...]:
    """Means over the questions of what each arm made of them."""
    arrays = log.log
    shape = int(question.max()) + 1, len(arrays.arms)
    count, shares = np.zeros(shape), np.zeros(shape)
    sums = {key: np.zeros(shape) for key in ("reward", "quality", "cost")}
    np.add.at(count, (question, arrays.action), 1.0)
    for key, total in sums.items():
        np.add.at(total, (question, arrays.action), getattr(arrays, key))
        total /= count
    shares[question] = pmf
    ways: list[tuple[str, Matrix]] = [(name, shares)]
    for column, arm in enumerate(arrays.arms):
        always = np.zeros(shape)
        always[:, column] = 1.0
        ways.append((f"always {arm}", always))
    ours, rewards = (shares * sums["reward"]).sum(axis=1), (arrays.minimum, arrays.maximum)
    apart = rewards[0] - rewards[1], rewards[1] - rewards[0]
    return tuple(
        Standing(
            name=way,
            reward=mean_of((chosen * sums["reward"]).sum(axis=1), possible=rewards, confidence=CONFIDENCE),
            quality=_mean((chosen * sums["quality"]).sum(axis=1)),
            cost=_mean((chosen * sums["cost"]).sum(axis=1)),
            shares=dict(zip(arrays.arms, map(float, chosen.mean(axis=0)), strict=True)),
            gain=None
            if chosen is shares
            else mean_of(ours - (chosen * sums["reward"]).sum(axis=1), possible=apart, confidence=CONFIDENCE),
        )
        for way, chosen in ways
    )


def _mean(values: Vector) -> EstimateWithInterval:
    return EstimateWithInterval(value=float(values.mean()))


def _replayed(
    log: MemoryLog, *, spec: CandidateSpec, candidate: CandidatePmf, folds: int, progress: Progress
) -> ReplayResult:
    fixed = [one for one in baselines(log.log.arms) if one.kind == "fixed"]
    pmfs = [candidate, *(CandidatePmf(described=one.name, pmf=array_pmf(one, log=log.log, named=str)) for one in fixed)]
    return estimate_candidates(
        [MemoryPart(log=replace(log.log, candidates=tuple(one.pmf for one in pmfs)))],
        candidates=[spec, *fixed],
        candidate_pmfs=pmfs,
        plan=Plan(folds=folds),
        log=log.described,
        progress=progress,
    )


def _estimated(result: ReplayResult, *, arms: Sequence[ArmName]) -> tuple[Standing, ...]:
    ours, *fixed = result.candidates
    gain = {pair.second: pair.difference for pair in result.pairs if pair.first == ours.name}
    standings = [_standing(ours, name=ours.name, arms=arms)]
    standings += [
        _standing(one, name=f"always {one.name.removeprefix('fixed:')}", arms=arms, gain=gain.get(one.name))
        for one in fixed
    ]
    return tuple(standings)


def _standing(
    one: CandidateResult, *, name: str, arms: Sequence[ArmName], gain: EstimateWithInterval | None = None
) -> Standing:
    shares = {arm: one.shares[arm] for arm in arms}
    return Standing(name=name, reward=one.reward, quality=one.quality, cost=one.cost, shares=shares, gain=gain)
