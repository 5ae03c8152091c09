"""From pieces of a log with its candidates' probabilities to a whole replay."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from router.errors import ConfigError, InvalidInput
from router.evaluation.diagnostics import DOUBT
from router.evaluation.estimators import Estimator
from router.evaluation.log import Log
from router.evaluation.moments import Matrix
from router.evaluation.reward_models import Ridge, cross_fitted, folds_of, mrdr_weights, regressor_named
from router.policies.base import FeatureRows
from router.replay.assembling import Assembling, arms_of, others_largest
from router.replay.candidates import Asked, Judged, Progress
from router.replay.measuring import Measuring, Model, Survey, measure, survey
from router.replay.results import Replayed, Skipped
from router.replay.sequences import sequences
from router.replay.source import Piece, Pieces
from router.types import ArmName

__all__ = ["Plan", "judge"]

#: beside the estimator that was asked for, where it is not one of them
OTHERS = ("ips", "snips", "dm", "dr", "sndr")
#: reward models of our own
RIDGES = ("ridge", "mean", "mrdr")
#: rows per fold from which on estimators with a model are shown unasked
FEWEST_ROWS = 2
#: weights above it are counted
CLIP = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How to judge.

    Raises InvalidInput for a confidence outside (0, 1), fewer than two folds, an unknown estimator.
    """

    estimator: str = "dr"
    #: of cost, put on every row; None: each row's own
    weight: float | None = None
    #: name of a candidate, or "logged"
    baseline: str = "logged"
    confidence: float = 0.95
    anytime: bool = False
    #: fields of the rows to judge by
    segments: tuple[str, ...] = ()
    #: parts of the log: no reward model, and no policy of the registry, is asked about a row that it learned
    folds: int = 5
    #: "ridge"; "mean" (the arms' means, whatever the features); "mrdr" (ridge, fitted for each candidate); or
    #: "package.module:Class" of a regressor with scikit-learn's fit and predict
    reward_model: str = "ridge"
    #: least probability of every arm of a policy, as it would be served; None: policy.floor of the settings
    floor: float | None = None
    #: policies of the registry learn while they go, instead of from the other folds
    learn: bool = False
    #: judge snapshots also on rows that they have learned
    in_sample: bool = False

    def __post_init__(self) -> None:
        estimator = Estimator.parse(self.estimator)
        if self.anytime and estimator.facts.biased:
            raise InvalidInput(
                f"{estimator} is biased: no interval holds at every look",
                field="estimator",
                remedy="use ips, snips, dr or sndr with --anytime",
            )
        if not 0.0 < self.confidence < 1.0:
            raise InvalidInput(f"{self.confidence!r}", field="confidence", remedy="use a number in (0, 1), as 0.95")
        if self.reward_model not in RIDGES:
            regressor_named(self.reward_model)
        if self.folds < 2:
            raise InvalidInput(f"{self.folds!r}", field="folds", remedy="use 2 or more")
        if self.weight is not None and not (math.isfinite(self.weight) and self.weight >= 0.0):
            raise InvalidInput(f"{self.weight!r} is no weight of cost", field="lambda", remedy="use 0 or more")
        if self.floor is not None and not 0.0 <= self.floor <= 0.5:
            raise InvalidInput(f"{self.floor!r}", field="floor", remedy="use 0 to 0.5")


@dataclass(kw_only=True)
class _Fitting:
    """The cross-fitted reward model, fed in the first pass and asked in the second."""

    plan: Plan
    models: list[Ridge] = field(default_factory=list)

    def learn(self, log: Log, candidates: Sequence[Matrix]) -> None:
        """Take in a piece."""
        features = self._read(log)
        apart = self.plan.reward_model == "mrdr"
        if not self.models:
            count = len(candidates) if apart else 1
            self.models = [Ridge(arms=len(log.arms), folds=self.plan.folds) for _ in range(count)]
        targets = np.stack([log.reward, log.quality, log.cost], axis=1)
        folds = folds_of(log.keys, folds=self.plan.folds)
        for index, model in enumerate(self.models):
            weights = None
            if apart:
                weights = mrdr_weights(log.action, logged=log.pmf, candidate=candidates[index])
            model.add(features, action=log.action, targets=targets, folds=folds, weights=weights)

    def predicted(self, log: Log, index: int) -> Matrix:
        """For this candidate, shape (n, K, 3)."""
        model = self.models[index if len(self.models) > 1 else 0]
        return model.predict(self._read(log), folds=folds_of(log.keys, folds=self.plan.folds))

    def _read(self, log: Log) -> FeatureRows | None:
        return None if self.plan.reward_model == "mean" else log.features


def judge(
    pieces: Pieces,
    *,
    candidates: Sequence[Asked],
    judged: Sequence[Judged],
    plan: Plan,
    log: str,
    notes: Sequence[str] = (),
    skipped: Sequence[Skipped] = (),
    progress: Progress = lambda _what, _done, _total: None,
) -> Replayed:
    """Judge these candidates, whose probabilities are in the pieces.

    judged: their descriptions and notes, in the same order. log: where it comes from, in words.
    Raises InvalidInput for a row that cannot be true, an empty log, a baseline that is no candidate.
    """
    baseline = _baseline(plan.baseline, candidates)
    if plan.anytime and not plan.learn and any(asked.learns for asked in candidates):
        raise InvalidInput(
            "a policy that learned later rows too has no interval that holds at every look",
            field="anytime",
            remedy="give --learn as well, or judge snapshots",
        )
    checked = _Checked(pieces)
    fitting = _Fitting(plan=plan)
    found = survey(checked, candidates=len(candidates), clip=CLIP, learn=fitting.learn, progress=progress)
    if not found.rows:
        raise InvalidInput(
            "has no rows", field="log", remedy="feedback must have been learned before it can be replayed"
        )
    for name in plan.segments:
        if not any(found.fields[name]):
            raise InvalidInput(
                "no row has it", field=f"segment {name}", remedy="use tenant, version, policy or a key of the context"
            )
    estimator = Estimator.parse(plan.estimator)
    measuring = Measuring(
        estimator=estimator,
        others=_others(estimator, modelled=found.rows >= FEWEST_ROWS * plan.folds),
        baseline=baseline,
        model=_model(plan, fitting=fitting, pieces=checked),
    )
    tallies = measure(checked, survey=found, measuring=measuring, fields=plan.segments, progress=progress)
    arms = checked.arms
    assembling = Assembling(
        estimator=estimator,
        confidence=plan.confidence,
        survey=found,
        tallies=tallies,
        arms=arms,
        baseline=baseline,
        doubt=_doubt(arms, candidates),
        sequences=sequences(checked, survey=found, plan=plan, baseline=baseline, progress=progress),
    )
    reward, quality, cost = assembling.baseline_values()
    return Replayed(
        log=log,
        rows=found.rows,
        begin=found.begin,
        end=found.end,
        baseline="the logged policy" if baseline is None else plan.baseline,
        baseline_reward=reward,
        baseline_quality=quality,
        baseline_cost=cost,
        weight=plan.weight,
        confidence=plan.confidence,
        anytime=plan.anytime,
        comparisons=assembling.compared,
        arms=arms_of(found, arms=arms, doubt=_doubt(arms, candidates)),
        sources=_sources(found),
        versions=others_largest(found.fields.get("version", {})),
        candidates=tuple(
            assembling.candidate(index, asked=asked, judged=described)
            for index, (asked, described) in enumerate(zip(candidates, judged, strict=True))
        ),
        pairs=assembling.pairs([asked.name for asked in candidates]),
        skipped_rows=len(skipped),
        skipped=tuple(skipped[:20]),
        faults=_faults(found, arms=arms, candidates=candidates),
        notes=(*notes, *_notes(found, plan=plan, featureless=checked.featureless)),
    )


def _others(estimator: Estimator, *, modelled: bool) -> list[Estimator]:
    """The estimators beside; without a model where the folds are too small to fit one."""
    every = [Estimator(name=name) for name in OTHERS if name != estimator.name]
    return [one for one in every if modelled or not one.facts.needs_model]


class _Checked:
    """The pieces, every row checked before it is used, the first time."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._known = False
        self.arms: tuple[ArmName, ...] = ()
        self.featureless = False

    def __iter__(self) -> Iterator[Piece]:
        first = 1
        for piece in self._pieces:
            if not self._known:
                piece.log.check(first=first)
                if self.arms and piece.log.arms != self.arms:
                    raise InvalidInput(
                        f"has the arms {', '.join(piece.log.arms)}, the rows before {', '.join(self.arms)}",
                        field=f"row {first}",
                        remedy="replay logs of different arms apart",
                    )
                self.arms, self.featureless = piece.log.arms, piece.log.features is None
            first += len(piece.log)
            yield piece
        self._known = True


def _baseline(name: str, candidates: Sequence[Asked]) -> int | None:
    names = [asked.name for asked in candidates]
    if name == "logged":
        return None
    if name not in names:
        raise InvalidInput(
            f"{name!r} is not judged", field="baseline", remedy=f"use logged, or one of {', '.join(names)}"
        )
    return names.index(name)


def _model(plan: Plan, *, fitting: _Fitting, pieces: _Checked) -> Model:
    if plan.reward_model in RIDGES:
        return fitting.predicted
    return _regressed(plan, pieces=pieces)


def _regressed(plan: Plan, *, pieces: _Checked) -> Model:
    """Another regressor, fitted to the whole log at once; predictions are then looked up in the log's order."""
    make = regressor_named(plan.reward_model)
    logs = [piece.log for piece in pieces]
    if logs[0].features is None:
        raise ConfigError(
            f"{plan.reward_model} has nothing to read: the rows have no features",
            field="reward_model",
            remedy="use ridge, or a log with features",
        )
    predicted = cross_fitted(
        make,
        features=np.concatenate([log.features for log in logs if log.features is not None]),
        action=np.concatenate([log.action for log in logs]),
        targets=np.concatenate([np.stack([log.reward, log.quality, log.cost], axis=1) for log in logs]),
        folds=folds_of(np.concatenate([log.keys for log in logs]), folds=plan.folds),
        arms=len(logs[0].arms),
    )
    places = {log.keys[0].item(): start for log, start in zip(logs, np.cumsum([0, *map(len, logs)]), strict=False)}

    def model(log: Log, _index: int) -> Matrix:
        start = places[log.keys[0].item()]
        return predicted[start : start + len(log)]

    return model


def _doubt(arms: Sequence[ArmName], candidates: Sequence[Asked]) -> float:
    """Each check's share of DOUBT."""
    return DOUBT / (1 + len(arms) + len(candidates))


def _faults(found: Survey, *, arms: Sequence[ArmName], candidates: Sequence[Asked]) -> tuple[str, ...]:
    doubt = _doubt(arms, candidates)
    faults = []
    for arm, plausible, drawn, expected in zip(
        arms, found.arms.plausible(doubt=doubt), found.arms.drawn, found.arms.expected, strict=True
    ):
        if not plausible:
            faults.append(f"{arm} was drawn {drawn:.0f} times; the logged probabilities give {expected:.1f}")
    if not found.arms.likely(doubt=doubt):
        more = "more" if found.arms.surplus > 0.0 else "less"
        faults.append(f"the arms that were drawn are {more} likely by the logged probabilities than chance allows")
    for asked, tally in zip(candidates, found.weights, strict=True):
        if not tally.plausible(doubt=doubt):
            low, high = tally.mean_interval(doubt=doubt)
            faults.append(
                f"the weights of {asked.name} average {tally.total / tally.rows:.3f} ({low:.3f} to {high:.3f}), "
                f"where true probabilities give {1.0 - tally.hole:.3f}"
            )
    return tuple(faults)


def _sources(found: Survey) -> Mapping[str, int]:
    counts = {"explicit": found.rows - found.defaulted, "default": found.defaulted, "late": found.late}
    return {name: count for name, count in counts.items() if count}


def _notes(found: Survey, *, plan: Plan, featureless: bool) -> list[str]:
    notes = []
    if featureless and plan.reward_model != "mean":
        notes.append("the rows have no features: the reward model knows the arms' means only")
    if plan.weight is not None and found.raw:
        notes.append(f"{found.raw} rewards came whole: they keep their value whatever the weight of cost")
    if found.defaulted:
        notes.append(f"{found.defaulted} of {found.rows} rewards are the default: nobody judged those answers")
    return notes
