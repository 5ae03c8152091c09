"""The judge: from pieces of a log with the candidates' probabilities to results."""

from collections.abc import Iterator, Mapping, Sequence

from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.estimation.bandit_log import BY_FEATURES, BY_ID
from ragbandit.router.offline.estimation.diagnostics import ALPHA
from ragbandit.router.offline.estimation.estimators import ESTIMATORS, Estimator
from ragbandit.router.offline.replay.anytime import sequences
from ragbandit.router.offline.replay.assemble import ResultAssembler, arms_of, others_largest
from ragbandit.router.offline.replay.candidates import CandidatePmf, CandidateSpec
from ragbandit.router.offline.replay.passes.measure import EstimationPlan, Views, measure, tuned
from ragbandit.router.offline.replay.passes.reward_model import Model, RewardModelFit
from ragbandit.router.offline.replay.passes.summary import LogSummary, summarize
from ragbandit.router.offline.replay.plan import Plan
from ragbandit.router.offline.replay.results import ReplayResult, Skipped, instant
from ragbandit.router.offline.replay.sources.pieces import Piece, Pieces
from ragbandit.router.offline.replay.sources.service import LoggedPolicies
from ragbandit.router.offline.types import Progress, no_progress
from ragbandit.router.types import ArmName

__all__ = [
    "ALPHA",
    "CLIP",
    "Plan",
    "alpha_of",
    "baseline_of",
    "check_summary",
    "judge",
    "middles_of",
    "notes_on",
    "other_estimators",
    "result_of",
]

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
    candidates: Sequence[CandidateSpec],
    candidate_pmfs: Sequence[CandidatePmf],
    plan: Plan,
    log: str,
    logged: LoggedPolicies | None = None,
    since: float | None = None,
    notes: Sequence[str] = (),
    skipped: Sequence[Skipped] = (),
    progress: Progress = no_progress,
) -> ReplayResult:
    """Judge these candidates, whose probabilities are in the pieces.

    candidate_pmfs: descriptions and notes of the candidates, in the same order. log: description of the source. logged:
    the policies of its store, where it has one. since: rows decided before this time are not in the pieces, seconds
    since the epoch.
    Raises InvalidInput for a row that cannot be true, an empty log, a baseline that is no candidate.
    """
    baseline = baseline_of(plan, candidates)
    checked, model_fit = _Checked(pieces), RewardModelFit(plan=plan)
    summary = summarize(checked, candidates=len(candidates), clip=CLIP, learn=model_fit.learn, progress=progress)
    check_summary(summary, plan=plan, since=since)
    if model_fit.one_fold:
        plan, model_fit = _by_decision(checked, plan=plan)
    model = model_fit.model(checked)
    return result_of(
        _assembler(checked, summary=summary, model=model, plan=plan, baseline=baseline, progress=progress),
        candidates=candidates,
        candidate_pmfs=candidate_pmfs,
        log=log,
        logged=logged,
        since=since,
        notes=(*notes, *notes_on(summary, plan=plan, featureless=checked.featureless)),
        skipped=skipped,
    )


def _by_decision(pieces: "_Checked", *, plan: Plan) -> tuple[Plan, RewardModelFit]:
    """The plan and the fit with each row in a fold for itself; takes a pass of its own."""
    plan = plan.by_decision()
    fit = RewardModelFit(plan=plan)
    for piece in pieces:
        fit.learn(piece.log, piece.candidates)
    return plan, fit


def _assembler(
    pieces: "_Checked", *, summary: LogSummary, model: Model, plan: Plan, baseline: int | None, progress: Progress
) -> ResultAssembler:
    """The later passes."""
    views = Views(pieces=pieces, model=model, middles=middles_of(summary))
    estimation = EstimationPlan(
        estimators=_estimators(plan, views=views, summary=summary, progress=progress),
        others=other_estimators(plan, modelled=summary.rows >= FEWEST_ROWS * plan.folds),
        baseline=baseline,
    )
    return ResultAssembler(
        plan=plan,
        estimators=estimation.estimators,
        summary=summary,
        accumulators=measure(views, summary=summary, estimation=estimation, fields=plan.segments, progress=progress),
        arms=pieces.arms,
        baseline=baseline,
        alpha=alpha_of(summary, arms=pieces.arms),
        sequences=sequences(pieces, summary=summary, plan=plan, baseline=baseline, progress=progress),
    )


def middles_of(summary: LogSummary) -> list[float]:
    """Middles of the ranges of reward, quality and cost."""
    return [(low + high) / 2.0 for low, high in (summary.bounds(target) for target in range(3))]


def alpha_of(summary: LogSummary, *, arms: Sequence[ArmName]) -> float:
    """The chance that one of the checks of a log calls a right one wrong."""
    return ALPHA / (1 + len(arms) + len(summary.weights))


def result_of(
    assembler: ResultAssembler,
    *,
    candidates: Sequence[CandidateSpec],
    candidate_pmfs: Sequence[CandidatePmf],
    log: str,
    logged: LoggedPolicies | None,
    since: float | None,
    notes: Sequence[str],
    skipped: Sequence[Skipped],
) -> ReplayResult:
    """The result of accumulated sums."""
    plan, summary = assembler.plan, assembler.summary
    versions: Mapping[str, int] = summary.fields.get("version", {})
    reward, quality, cost = assembler.baseline_values()
    timed = summary.begin <= summary.end
    return ReplayResult(
        log=log,
        rows=summary.rows,
        begin=summary.begin if timed else None,
        end=summary.end if timed else None,
        since=since,
        plan=plan,
        baseline="the logged policy" if assembler.baseline is None else plan.baseline,
        baseline_reward=reward,
        baseline_quality=quality,
        baseline_cost=cost,
        comparisons=assembler.compared,
        arms=arms_of(summary, arms=assembler.arms, alpha=assembler.alpha),
        sources=_sources(summary),
        versions=others_largest({name: rows for name, rows in versions.items() if name}),
        logged=() if logged is None else logged.of(versions),
        candidates=tuple(
            assembler.candidate(index, spec=spec, described=described)
            for index, (spec, described) in enumerate(zip(candidates, candidate_pmfs, strict=True))
        ),
        pairs=assembler.pairs([spec.name for spec in candidates]),
        skipped_rows=len(skipped),
        skipped=tuple(skipped[:MOST_NAMED]),
        faults=_faults(summary, arms=assembler.arms, candidates=candidates, alpha=assembler.alpha),
        notes=tuple(notes),
    )


def check_summary(summary: LogSummary, *, plan: Plan, since: float | None) -> None:
    """Raises InvalidInput for a log without rows, and for a segment that no row has."""
    if not summary.rows:
        raise InvalidInput(
            "has no rows" if since is None else f"has no rows decided since {instant(since)}",
            field="log",
            remedy="feedback must have been learned before it can be replayed",
        )
    for name in plan.segments:
        if not any(summary.fields[name]):
            raise InvalidInput(
                "no row has it", field=f"segment {name}", remedy="use tenant, version, policy or a key of the context"
            )


def _estimators(plan: Plan, *, views: Views, summary: LogSummary, progress: Progress) -> Sequence[Estimator]:
    """The estimator of each candidate."""
    if plan.tuned:
        tries = tuned(views, name=plan.estimator, rows=summary.rows, progress=progress)
        return [one.chosen("mse") for one in tries]
    return [Estimator.parse(plan.estimator)] * len(summary.weights)


def other_estimators(plan: Plan, *, modelled: bool) -> list[Estimator]:
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


def baseline_of(plan: Plan, candidates: Sequence[CandidateSpec]) -> int | None:
    """The place of the candidate that is the baseline. Raises InvalidInput where it, or what is asked, cannot be."""
    if plan.anytime and not plan.learn and any(spec.learns for spec in candidates):
        raise InvalidInput(
            "a policy that learned later rows too has no interval that holds at every look",
            field="anytime",
            remedy="give --learn as well, or judge snapshots",
        )
    names = [spec.name for spec in candidates]
    if plan.baseline == "logged":
        return None
    if plan.baseline not in names:
        raise InvalidInput(
            f"{plan.baseline!r} is not judged", field="baseline", remedy=f"use logged, or one of {', '.join(names)}"
        )
    return names.index(plan.baseline)


def _faults(
    summary: LogSummary, *, arms: Sequence[ArmName], candidates: Sequence[CandidateSpec], alpha: float
) -> tuple[str, ...]:
    """Faults of the log; the checks share ALPHA."""
    faults = []
    for arm, plausible, drawn, expected in zip(
        arms, summary.arms.plausible(alpha=alpha), summary.arms.drawn, summary.arms.expected, strict=True
    ):
        if not plausible:
            less = "less" if drawn < expected else "more"
            faults.append(
                f"{arm} has {drawn:.0f} rows where the logged probabilities give {expected:.1f}: it was not drawn as "
                f"logged, or its answers were judged {less} often than others"
            )
    if not summary.arms.likely(alpha=alpha):
        more = "more" if summary.arms.surplus > 0.0 else "less"
        faults.append(f"the arms that were drawn are {more} likely by the logged probabilities than chance allows")
    for spec, tally in zip(candidates, summary.weights, strict=True):
        if not tally.plausible(alpha=alpha):
            low, high = tally.mean_interval(alpha=alpha)
            faults.append(
                f"the weights of {spec.name} average {tally.total / tally.rows:.3f} ({low:.3f} to {high:.3f}), "
                f"where true probabilities give {1.0 - tally.unsupported_mass:.3f}"
            )
    return tuple(faults)


def _sources(summary: LogSummary) -> Mapping[str, int]:
    counts = {"explicit": summary.rows - summary.defaulted, "default": summary.defaulted, "late": summary.late}
    return {name: count for name, count in counts.items() if count}


def notes_on(summary: LogSummary, *, plan: Plan, featureless: bool) -> list[str]:
    """What the reader must know of the log."""
    notes = _notes_on_questions(summary, plan=plan)
    if featureless and plan.reward_model != "mean":
        notes.append("the rows have no features: the reward model knows the arms' means only")
    if plan.weight is not None and summary.raw:
        notes.append(f"{summary.raw} rewards came whole: they keep their value whatever the weight of cost")
    if summary.defaulted:
        notes.append(f"{summary.defaulted} of {summary.rows} rewards are the default: nobody judged those answers")
    return notes


def _notes_on_questions(summary: LogSummary, *, plan: Plan) -> list[str]:
    """How repeated questions are recognised, where not by their text: the folds hang on it."""
    notes = []
    if summary.known_by[BY_FEATURES]:
        told = "those with the same features count as the same question in the folds"
        notes.append(f"{summary.known_by[BY_FEATURES]:,} rows have no text: {told}")
    if summary.known_by[BY_ID]:
        told = "a question that occurs several times is not recognised, and may lie in several folds"
        notes.append(f"{summary.known_by[BY_ID]:,} rows have neither text nor features: {told}")
    if plan.folds_by == "decision":
        told = "the folds are by decision, so a question may be judged by what was learned from it"
        notes.append(f"the log has too few different questions: {told}")
    return notes
