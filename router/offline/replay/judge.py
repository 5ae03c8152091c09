"""From pieces of a log with its candidates' probabilities to a whole replay."""

from collections.abc import Iterator, Mapping, Sequence

from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.estimation.diagnostics import DOUBT
from ragbandit.router.offline.estimation.estimators import ESTIMATORS, Estimator
from ragbandit.router.offline.replay.anytime import sequences
from ragbandit.router.offline.replay.assemble import Assembling, arms_of, others_largest
from ragbandit.router.offline.replay.candidates import Asked, Judged
from ragbandit.router.offline.replay.measure import Measuring, Survey, Views, measure, survey, tuned
from ragbandit.router.offline.replay.plan import Plan, Progress
from ragbandit.router.offline.replay.results import Replayed, Skipped
from ragbandit.router.offline.replay.reward_model import Fitting, Model
from ragbandit.router.offline.replay.sources import Piece, Pieces
from ragbandit.router.offline.replay.times import instant
from ragbandit.router.types import ArmName

__all__ = ["Plan", "judge"]

#: beside the estimator that was asked for, where it is not one of them
OTHERS = ("ips", "snips", "dm", "dr", "sndr")
#: rows per fold from which on estimators with a model are shown unasked
FEWEST_ROWS = 2
#: weights above it are counted
CLIP = 10.0
#: bad rows that are named
MOST_NAMED = 20


def judge(
    pieces: Pieces,
    *,
    candidates: Sequence[Asked],
    judged: Sequence[Judged],
    plan: Plan,
    log: str,
    since: float | None = None,
    notes: Sequence[str] = (),
    skipped: Sequence[Skipped] = (),
    progress: Progress = lambda _what, _done, _total: None,
) -> Replayed:
    """Judge these candidates, whose probabilities are in the pieces.

    judged: their descriptions and notes, in the same order. log: where it comes from, in words. since: rows decided
    before are not in the pieces, seconds since the epoch.
    Raises InvalidInput for a row that cannot be true, an empty log, a baseline that is no candidate.
    """
    baseline = _baseline(plan, candidates)
    checked, fitting = _Checked(pieces), Fitting(plan=plan)
    found = survey(checked, candidates=len(candidates), clip=CLIP, learn=fitting.learn, progress=progress)
    _check(found, plan=plan, since=since)
    model = fitting.model(checked)
    return _replayed(
        _assembling(checked, found=found, model=model, plan=plan, baseline=baseline, progress=progress),
        candidates=candidates,
        judged=judged,
        log=log,
        since=since,
        notes=(*notes, *_notes(found, plan=plan, featureless=checked.featureless)),
        skipped=skipped,
    )


def _assembling(
    pieces: "_Checked", *, found: Survey, model: Model, plan: Plan, baseline: int | None, progress: Progress
) -> Assembling:
    """The later passes."""
    ranges = [found.bounds(target) for target in range(3)]
    views = Views(pieces=pieces, model=model, middles=[(low + high) / 2.0 for low, high in ranges])
    measuring = Measuring(
        estimators=_estimators(plan, views=views, found=found, progress=progress),
        others=_others(plan, modelled=found.rows >= FEWEST_ROWS * plan.folds),
        baseline=baseline,
    )
    return Assembling(
        plan=plan,
        estimators=measuring.estimators,
        survey=found,
        tallies=measure(views, survey=found, measuring=measuring, fields=plan.segments, progress=progress),
        arms=pieces.arms,
        baseline=baseline,
        doubt=DOUBT / (1 + len(pieces.arms) + len(found.weights)),
        sequences=sequences(pieces, survey=found, plan=plan, baseline=baseline, progress=progress),
    )


def _replayed(
    assembling: Assembling,
    *,
    candidates: Sequence[Asked],
    judged: Sequence[Judged],
    log: str,
    since: float | None,
    notes: Sequence[str],
    skipped: Sequence[Skipped],
) -> Replayed:
    plan, found = assembling.plan, assembling.survey
    reward, quality, cost = assembling.baseline_values()
    timed = found.begin <= found.end
    return Replayed(
        log=log,
        rows=found.rows,
        begin=found.begin if timed else None,
        end=found.end if timed else None,
        since=since,
        plan=plan,
        baseline="the logged policy" if assembling.baseline is None else plan.baseline,
        baseline_reward=reward,
        baseline_quality=quality,
        baseline_cost=cost,
        comparisons=assembling.compared,
        arms=arms_of(found, arms=assembling.arms, doubt=assembling.doubt),
        sources=_sources(found),
        versions=others_largest({name: rows for name, rows in found.fields.get("version", {}).items() if name}),
        candidates=tuple(
            assembling.candidate(index, asked=asked, judged=described)
            for index, (asked, described) in enumerate(zip(candidates, judged, strict=True))
        ),
        pairs=assembling.pairs([asked.name for asked in candidates]),
        skipped_rows=len(skipped),
        skipped=tuple(skipped[:MOST_NAMED]),
        faults=_faults(found, arms=assembling.arms, candidates=candidates, doubt=assembling.doubt),
        notes=tuple(notes),
    )


def _check(found: Survey, *, plan: Plan, since: float | None) -> None:
    if not found.rows:
        raise InvalidInput(
            "has no rows" if since is None else f"has no rows decided since {instant(since)}",
            field="log",
            remedy="feedback must have been learned before it can be replayed",
        )
    for name in plan.segments:
        if not any(found.fields[name]):
            raise InvalidInput(
                "no row has it", field=f"segment {name}", remedy="use tenant, version, policy or a key of the context"
            )


def _estimators(plan: Plan, *, views: Views, found: Survey, progress: Progress) -> Sequence[Estimator]:
    """The estimator of each candidate."""
    if plan.tuned:
        return tuned(views, name=plan.estimator, rows=found.rows, progress=progress)
    return [Estimator.parse(plan.estimator)] * len(found.weights)


def _others(plan: Plan, *, modelled: bool) -> list[Estimator]:
    """The estimators beside; without a model where the folds are too small to fit one."""
    names = [name for name in OTHERS if name != plan.estimator]
    return [Estimator(name=name) for name in names if modelled or not ESTIMATORS[name].needs_model]


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


def _baseline(plan: Plan, candidates: Sequence[Asked]) -> int | None:
    """The place of the candidate that is the baseline. Raises InvalidInput where it, or what is asked, cannot be."""
    if plan.anytime and not plan.learn and any(asked.learns for asked in candidates):
        raise InvalidInput(
            "a policy that learned later rows too has no interval that holds at every look",
            field="anytime",
            remedy="give --learn as well, or judge snapshots",
        )
    names = [asked.name for asked in candidates]
    if plan.baseline == "logged":
        return None
    if plan.baseline not in names:
        raise InvalidInput(
            f"{plan.baseline!r} is not judged", field="baseline", remedy=f"use logged, or one of {', '.join(names)}"
        )
    return names.index(plan.baseline)


def _faults(found: Survey, *, arms: Sequence[ArmName], candidates: Sequence[Asked], doubt: float) -> tuple[str, ...]:
    """Each check has its share of DOUBT."""
    faults = []
    for arm, plausible, drawn, expected in zip(
        arms, found.arms.plausible(doubt=doubt), found.arms.drawn, found.arms.expected, strict=True
    ):
        if not plausible:
            less = "less" if drawn < expected else "more"
            faults.append(
                f"{arm} has {drawn:.0f} rows where the logged probabilities give {expected:.1f}: it was not drawn as "
                f"logged, or its answers were judged {less} often than others"
            )
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
