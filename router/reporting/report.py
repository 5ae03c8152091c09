"""Makes the report of a period: reward, quality and cost of what was served, compared with always using one arm.

All comparisons are of live traffic: their intervals hold at every look (`estimates.compared`).
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from ragbandit.router.comparison import NOT_KNOWN, WORTH, Comparison, Difference, compare
from ragbandit.router.comparison.assessment import CURVE_POINTS, LearningCurve
from ragbandit.router.comparison.words import assumption_words, signed
from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.learning.monitoring.diagnosis import read_diagnosis
from ragbandit.router.learning.monitoring.drifts import Change, drifts_of
from ragbandit.router.learning.monitoring.price import dollars_of_reward, price_words
from ragbandit.router.learning.monitoring.sample_ratio import recent_sample_ratio
from ragbandit.router.learning.status import diagnosis_text
from ragbandit.router.reporting import words
from ragbandit.router.reporting.before_start import before_start
from ragbandit.router.reporting.changes import changes_in
from ragbandit.router.reporting.deciders import UNSTEADY, state_of
from ragbandit.router.reporting.estimates import Compared, Possible, compared
from ragbandit.router.reporting.left_out import UndrawnQuestions, Unit
from ragbandit.router.reporting.next_steps import AS_ASKED
from ragbandit.router.reporting.paired_comparison import ROUTING, with_stored_comparison
from ragbandit.router.reporting.reading import Report, ReportRows, ReportScope, read_log
from ragbandit.router.reporting.unrated_answers import unrated_answers
from ragbandit.router.storage.sql.counters import day_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.errors import InvalidInput, NotFound
from ragbandit.shared.texts.formats import NOTHING, money, number, percent
from ragbandit.shared.types import ArmName, Flags, Indices, Matrix, Vector

#: smallest number of questions for the advice "fix": with fewer questions a policy has learned too little
FEWEST_TO_FIX: Final = 300
#: ratings and the judge's sample are compared if each of them has this number of answers of each way
FEWEST_TO_AGREE: Final = 30
#: maximum number of tenants, prices or weeks; if there are more, the smallest are left out
MOST_GROUPS: Final = 20
#: if this share of questions goes to the compared arm, a report says that little can differ
_MOSTLY: Final = 0.9
#: an arm that was offered on fewer questions than this, after this number without it, is new: the policy still learns
#: it, so its share of the questions says nothing about how long a verdict takes
_NEW: Final = 250
_WEEK_S: Final = 7 * 86_400.0
#: a Monday, 1970-01-05 00:00 UTC, in seconds since 1970
_MONDAY_S: Final = 4 * 86_400.0


def report(
    database: Database,
    scope: ReportScope,
    *,
    policy: PolicySettings,
    against: str | None = None,
    now: float | None = None,
) -> Report:
    """Make the report of a period. Nothing has a verdict if draws, outcomes or ratings seem to favour an arm.

    against: arm to compare with. If None: the arm of the holdback; without a holdback, the incumbent; without both,
        the best arm by the ratings; if too few are rated, the most expensive arm, or else the most used one
    now: time of the report, seconds since 1970; None for the end of the period

    Raises InvalidInput for an impossible period, NotFound for an arm that was never offered and is not in
    `scope.configured`, StoreError.
    """
    if not (math.isfinite(scope.since) and math.isfinite(scope.until) and 0.0 <= scope.since < scope.until < 1e11):
        message = f"{scope.since:g} to {scope.until:g} is not a period"
        raise InvalidInput(message, field="since", remedy="give seconds since 1970, the earlier time first")
    uneven = recent_sample_ratio(database, policy=scope.label, now=scope.until, since=scope.since)
    alarm = None if uneven is None else uneven.sentence
    drifts = _drifts(database, scope)
    log = read_log(database, scope)
    result = report_of(log, scope, policy=policy, against=against, alarm=alarm, now=now, drifts=drifts)
    arm = result.compared_arm
    if result.total is None or arm is None or scope.reward is None:
        return result
    weight = scope.reward.weight
    before = before_start(database, result.total, label=scope.label, weight=weight)
    if before is not None:
        result = replace(result, before=before, sentence=f"{result.sentence} {before}")
    if result.to_rate is not None:
        with database.read() as connection:
            can_rate = len(unrated_answers(connection, scope, arm=arm)) >= result.to_rate
        result = replace(result, to_rate=result.to_rate if can_rate else None)
    return with_stored_comparison(database, result, scope)


def _drifts(database: Database, scope: ReportScope) -> list[Change]:
    """Drifts of the period's ledger that began within the period."""
    with database.read() as connection:
        learning = read_diagnosis(diagnosis_text(connection, label=scope.label), unlabelled=0)
        found = drifts_of(connection, learning, label=scope.label)
    return [one for one in found if scope.since < one.at < scope.until]


def report_of(
    log: ReportRows,
    scope: ReportScope,
    *,
    policy: PolicySettings,
    against: str | None = None,
    alarm: str | None = None,
    now: float | None = None,
    drifts: Sequence[Change] = (),
) -> Report:
    """Make the report from rows.

    alarm: why the rows seem to favour an arm; None if they do not. drifts: arms whose rewards changed within the period
    """
    log = log.without_paced()
    unit = traffic_cost_unit(log)
    state = state_of(log.deciders) if len(log.arm) else None
    unsteady = None if state is None else UNSTEADY
    groups = _Groups(log, unit=unit, until=scope.until, alarm=alarm, unsteady=unsteady)
    everything = np.ones(len(log.arm), dtype=np.bool_)
    pairs = [groups.comparison(ROUTING, everything, against=place) for place in range(len(log.arms))]
    arms = [pair.comparison for pair in pairs]
    is_new = against is not None and against not in log.arms and against in scope.configured
    chosen, why = (None, AS_ASKED) if is_new else _arm_to_compare(log, arms, policy=policy, against=against)
    if chosen is not None:
        arms[chosen] = _with_retracted(arms[chosen], log=log, groups=groups, arm=chosen)
        groups = replace(groups, alarm=alarm or pairs[chosen].disagreement)
    total = None if chosen is None else arms[chosen]
    if is_new:
        total = _without_questions(ArmName(str(against)))
    left_out = {reason: round(count * log.scale) for reason, count in log.left_out.items()}
    if chosen is not None:
        left_out |= {reason: round(count * log.scale) for reason, count in _not_comparable(log, chosen) if count}
    curve = None
    if chosen is not None and alarm is None:
        comparable = log.part(log.comparable(chosen))
        curve = _curve(comparable, arms[chosen], scores=pairs[chosen].scores, arm=chosen)
    changes = tuple(sorted((*drifts, *changes_in(log)), key=lambda one: -one.at))
    if curve is not None and chosen is not None:
        times = log.made_at[log.comparable(chosen)]
        marks = [(round(int((times < one.at).sum()) * log.scale), one.what.partition(";")[0]) for one in changes]
        curve = replace(curve, marks=tuple(mark for mark in marks if mark[0]))
    used = np.bincount(log.arm, minlength=len(log.arms))
    week = ((log.made_at - _MONDAY_S) // _WEEK_S).astype(np.intp)
    weeks = {number: day_of(number * _WEEK_S + _MONDAY_S) for number in np.unique(week).tolist()}
    result = Report(
        state=state,
        advice=None if state is not None or alarm is not None else _fix(arms, assumed=assumption_words(log.judged)),
        since=scope.since,
        until=scope.until,
        tenant=scope.tenant,
        unit=unit,
        why=why,
        price=None if scope.reward is None else price_words(scope.reward),
        dollars_per_reward=None if scope.reward is None else dollars_of_reward(scope.reward),
        sample=log.sample,
        total=total,
        to_rate=None if chosen is None or unsteady or alarm else _to_rate(log, pairs[chosen], arm=chosen),
        changes=changes,
        untried=None if chosen is None else _untried(log, arms[chosen], arm=chosen),
        curve=curve,
        arms=tuple(
            arms[place] for place in sorted(range(len(arms)), key=lambda place: (-used[place], log.arms[place]))
        ),
        tenants=groups.of(log.tenant, names=dict(enumerate(log.tenants)), against=chosen),
        prices=groups.of(log.price, names=dict(enumerate(log.prices)), against=chosen),
        weeks=groups.of(week, names=weeks, against=chosen),
        retracted=dict(_retracted_by_arm(log)),
        questions=round(log.scale * log.read),
        spent=log.scale * log.spent(unit),
        unpriced={arm: round(log.scale * count) for arm, count in sorted(log.unpriced.items())},
        undrawn=_undrawn(log, unit=unit),
        left_out=left_out,
        notes=(),
    )
    notes = tuple(_notes(result, log, policy=policy))
    return replace(result, sentence=words.report_sentence(result, now=scope.until if now is None else now), notes=notes)


def _without_questions(arm: ArmName) -> Comparison:
    """The comparison with an arm that was never offered: live traffic shows nothing about it."""
    nothing: dict[str, Any] = {"design": "live traffic", "questions": 0, "rated": 0, "reward": Difference()}
    missing = "answers of both to the same questions"
    return replace(compare(ROUTING, f"always {arm}", second_arm=arm, **nothing), missing=missing)


def _undrawn(log: ReportRows, *, unit: Unit) -> tuple[UndrawnQuestions, ...]:
    shown = [sums.shown(decided_by=by, unit=unit, scale=log.scale) for by, sums in log.undrawn.items()]
    return tuple(sorted(shown, key=lambda one: (-one.questions, one.by)))


def traffic_cost_unit(log: ReportRows) -> Unit:
    if log.spent("dollars") > 0.0:
        return "dollars"
    steps = log.costs["steps"][~np.isnan(log.costs["steps"])]
    return "seconds" if len(steps) and np.ptp(steps) == 0.0 and np.nansum(log.costs["seconds"]) > 0.0 else "steps"


def _arm_to_compare(
    log: ReportRows, arms: Sequence[Comparison], *, policy: PolicySettings, against: str | None
) -> tuple[int | None, str | None]:
    """Returns (index of the arm to compare with, reason for this arm), or (None, None) without questions."""
    if against is not None:
        if against not in log.arms:
            remedy = f"use one of {', '.join(sorted(log.arms))}" if log.arms else "ask for a longer period"
            raise NotFound(f"no question of this period was offered {against!r}", field="against", remedy=remedy)
        return log.arms.index(against), AS_ASKED
    if policy.holdback is not None and policy.holdback.arm in log.arms:
        return log.arms.index(policy.holdback.arm), "the arm of policy.holdback"
    if policy.incumbent in log.arms:
        return log.arms.index(policy.incumbent), "policy.incumbent"
    tried = [(one.reward.high, place) for place, one in enumerate(arms) if one.reward.high is not None]
    if tried:
        return min(tried)[1], "the best arm, as far as the ratings show"
    costly = [(one.cost.second, place) for place, one in enumerate(arms) if one.cost.second is not None]
    if costly:
        return max(costly)[1], "the most expensive arm, since too few ratings show which is best"
    if not len(log.arm):
        return None, None
    return int(np.bincount(log.arm).argmax()), "the most used arm, since too few answers show which is best"


def _fix(arms: Sequence[Comparison], *, assumed: str | None) -> str | None:
    ends = [(one.reward.high, one.second_arm) for one in arms if one.reward.high is not None]
    end, arm = min(ends, default=(math.inf, ""))
    questions = max((one.questions for one in arms), default=0)
    if end >= WORTH or questions < FEWEST_TO_FIX:
        return None
    text = f"fix: always {arm} earns as much{'' if assumed is None else f' ({assumed})'}"
    return f"{text}; `ragbandit advise` says whether a policy that has learned earns more"


class ComparedWays(NamedTuple):
    comparison: Comparison
    #: `Compared.scores` of both ways
    scores: Matrix | None
    #: questions that a verdict takes / questions so far; None if this is not known
    outlook: float | None
    #: why there is no verdict if ratings and the judge's sample exclude each other; None if they agree
    disagreement: str | None = None


@dataclass(frozen=True, slots=True)
class _Groups:
    log: ReportRows
    unit: Unit
    until: float  #: end of the period, seconds since 1970
    alarm: str | None
    unsteady: str | None  #: why it is not known how long a verdict takes

    def of(self, group: Indices, *, names: Mapping[int, str], against: int | None) -> tuple[Comparison, ...]:
        if against is None:
            return ()
        numbers, counts = np.unique(group[self.log.comparable(against)], return_counts=True)
        if len(numbers) < 2:
            return ()
        largest = numbers[np.argsort(-counts, kind="stable")][:MOST_GROUPS].tolist()
        return tuple(self.comparison(names[number], group == number, against=against)[0] for number in largest)

    def comparison(self, name: str, rows: Flags, *, against: int) -> ComparedWays:
        """Compare what was served in these rows with the arm `against`, in rows that offered it."""
        log = self.log.part(rows & self.log.comparable(against))
        arm = np.tile(np.arange(len(log.arms)) == against, (len(log.arm), 1)).astype(np.float64)
        names = name, f"always {log.arms[against]}"
        compared = compared_ways(
            log,
            names=names,
            second=arm,
            second_arm=ArmName(log.arms[against]),
            unit=self.unit,
            seconds=self.until - log.made_at.min(initial=self.until),
            blocked=self.alarm,
            unsteady=self.unsteady,
        )
        comparison = compared.comparison
        if comparison.verdict != NOT_KNOWN or self.alarm is not None:
            return compared
        if self.log.whole is not None:
            missing = "more than this sample; `ragbandit replay` reads every question"
            return compared._replace(comparison=replace(comparison, missing=missing))
        offered, is_foreseen = self.log.is_offered(against), self.unsteady is None and compared.outlook is not None
        if is_foreseen and offered.sum() < _NEW <= offered[::-1].argmax():
            missing = f"not known how long: {log.arms[against]} is new"
            return compared._replace(comparison=replace(comparison, missing=missing), outlook=None)
        return compared


def _to_rate(log: ReportRows, compared: ComparedWays, *, arm: int) -> int | None:
    """Number of unrated answers of the arm that would probably settle the verdict; None if too few, or not known.

    Most of the error comes from the arm's answers, since each of them stands for many questions.
    """
    if compared.comparison.verdict != NOT_KNOWN or compared.outlook is None or log.whole is not None:
        return None
    answers = log.quality[(log.arm == arm) & log.could_draw(arm)]
    unrated = int(np.isnan(answers).sum())
    needed = math.ceil((len(answers) - unrated) * (compared.outlook - 1.0))
    return needed if 0 < needed <= unrated else None


def _untried(log: ReportRows, total: Comparison, *, arm: int) -> str | None:
    """Names the arms with hardly any rated answer, which a verdict does not cover; None if there are none."""
    rows = log.part(log.comparable(arm))
    if total.verdict == NOT_KNOWN:
        return None
    few = list[str]()
    for place, name in enumerate(log.arms):
        rated = int((~np.isnan(rows.quality[rows.arm == place])).sum())
        if rows.is_offered(place).any() and rated < FEWEST_EFFECTIVE:
            few.append(f"{name} is {f'hardly tried ({rated} rated)' if rated else 'not tried yet'}")
    if not few:
        return None
    share = float((rows.arm == arm).mean())
    most = f"{percent(round(share, 2))} of the questions go to {log.arms[arm]}, so little can differ"
    return "; ".join([most, *few] if share >= _MOSTLY else few)


def _curve(log: ReportRows, comparison: Comparison, *, scores: Matrix | None, arm: int) -> LearningCurve | None:
    """Running means of the scores (shape (2, n), the newest first), from the tenth rated draw of the arm on.

    A break-even is not mere noise: the verdict must be "better", and an earlier mean difference must have been surely
    below 0, by an interval that narrows like 1 / sqrt(questions) to the width of the comparison's interval.
    """
    reward, count, is_rated = comparison.reward, len(log.arm), ~np.isnan(log.quality[::-1])
    if scores is None or reward.low is None or reward.high is None or reward.tells_nothing:
        return None
    tried = np.cumsum(is_rated & (log.arm[::-1] == arm))
    first = min(int(np.searchsorted(tried, FEWEST_EFFECTIVE)), count - 1)
    served, always = np.cumsum(scores[:, ::-1], axis=1)
    ahead, at = (served - always)[first:], np.arange(first + 1, count + 1)
    was_behind = (ahead < -(reward.high - reward.low) / 2.0 * np.sqrt(count * at)).any()
    even = None
    if comparison.verdict == "better" and was_behind:
        even = int(float(f"{log.scale * (at[ahead <= 0.0].max() + 1):.2g}"))
    at, level = np.unique(np.linspace(first + 1, count, CURVE_POINTS).astype(np.intp)), float(always[-1]) / count
    return LearningCurve(
        name="live",
        against=comparison.second,
        questions=np.round(at * log.scale).astype(int).tolist(),
        policy=(served[at - 1] / at).tolist(),
        fixed=(always[at - 1] / at).tolist(),
        rated=np.cumsum(is_rated)[at - 1].tolist(),
        break_even=even,
        last=(level + reward.low, level + reward.high),
        note=words.curve_words(comparison, break_even=even, is_sample=log.whole is not None),
    )


def compared_ways(
    log: ReportRows,
    *,
    names: tuple[str, str],
    second: Matrix,
    first: Matrix | None = None,
    second_arm: ArmName | None = None,
    unit: Unit,
    seconds: float,
    blocked: str | None,
    unsteady: str | None = None,
) -> ComparedWays:
    """Compare two ways of choosing arms in these rows.

    first, second: see `compared`. second_arm: see `Comparison`. seconds: age of the oldest row.
    blocked: why the rows are not evidence; None if they are.
    unsteady: why it is not known how long a verdict takes; None if it is
    """
    ways: dict[str, Any] = {"arm": log.arm, "pmf": log.pmf, "first": first, "second": second}
    # A cost has no upper bound, so the costs are compared only on questions that could have drawn the second way.
    priced = np.ones(len(log.arm), dtype=np.bool_) if first is not None else _could_draw(log, second)
    (quality, *_), (reward, scores, outlook) = _measured(log, first=first, second=second)
    disagreement = None if blocked is not None else _disagreement(log, first=first, second=second)
    if disagreement is not None:
        reward, quality = (replace(one, estimate=None, low=None, high=None, second=None) for one in (reward, quality))
        scores = outlook = None
    spent, chosen = log.costs[unit], (second if first is None else first + second)[np.arange(len(log.arm)), log.arm]
    most = float(np.nanmax(spent[priced & (chosen > 0.0)], initial=0.0))
    of_priced: dict[str, Any] = {name: None if value is None else value[priced] for name, value in ways.items()}
    cost = Difference(first=float(np.nanmean(spent)) if (spent >= 0.0).any() else None)
    if unit == "dollars" and log.unpriced:
        cost = Difference()
    elif priced.any():
        cost, *_ = compared(spent[priced], predicted=log.expected_cost[priced], least=0.0, most=most, **of_priced)
    # The difference is largest if the second way costs nothing, and smallest if the first way costs nothing.
    ends = (-math.inf, cost.first or 0.0) if first is None else (-(cost.second or 0.0), math.inf)
    comparison = compare(
        *names,
        second_arm=second_arm,
        design="live traffic",
        questions=round(len(log.arm) * log.scale),
        bounded=round(int((~priced).sum()) * log.scale),
        rated=int((~np.isnan(log.quality)).sum()),
        reward=reward,
        quality=quality,
        cost=_clipped(cost, *ends),
        unit=unit,
        seconds=seconds,
        needed=FEWEST_EFFECTIVE,
        blocked=blocked or disagreement,
        outlook=None if first is not None else outlook or math.inf,
        unsteady=unsteady,
        assumption=assumption_words(log.judged),
    )
    return ComparedWays(comparison, scores, outlook, disagreement)


def _measured(log: ReportRows, *, first: Matrix | None, second: Matrix) -> list[Compared]:
    """Quality and reward. first, second: see `compared`."""
    options: dict[str, Any] = {"arm": log.arm, "pmf": log.pmf, "first": first, "second": second}
    options |= {"predicted": log.expected_quality, "counts": log.counts, "cluster": log.cluster}
    measured = []
    for values, possible in _valued(log):
        least, most = float(np.nanmin(values, initial=0.0)), float(np.nanmax(values, initial=1.0))
        found = compared(values, least=least, most=most, possible=possible, **options)
        measured.append(found._replace(difference=_clipped(found.difference, least - most, most - least)))
    return measured


def _disagreement(log: ReportRows, *, first: Matrix | None, second: Matrix) -> str | None:
    """What is missing for a verdict if the intervals by ratings and by the judge's drawn sample do not overlap. None if
    they overlap, or if one of them has too few answers of a way.
    """
    if log.score is None or log.by_judge is None:
        return None
    is_first = (second if first is None else first - second)[np.arange(len(log.arm)), log.arm] > 0.0
    ratings = log.rated_as(np.where(log.by_judge, np.nan, log.quality), counts=log.counts)
    ends = list[tuple[float, float]]()
    for one in (ratings, log.rated_as(log.score, counts=log.score_counts)):
        is_known = ~np.isnan(one.quality)
        if min((is_known & is_first).sum(), (is_known & ~is_first).sum()) < FEWEST_TO_AGREE:
            return None
        reward = _measured(one, first=first, second=second)[-1].difference
        if reward.low is None or reward.high is None:
            return None
        ends.append((reward.low, reward.high))
    (low, high), (other_low, other_high) = ends
    if low <= other_high and other_low <= high:
        return None
    by_ratings, by_judge = (f"{signed(start)} to {signed(end)}" for start, end in ends)
    return f"ratings and the judge's drawn sample that agree: {by_ratings} by ratings, {by_judge} by the sample"


def _with_retracted(total: Comparison, *, log: ReportRows, groups: _Groups, arm: int) -> Comparison:
    """The comparison; if retracted ratings changed the verdict, its `assumption` names this."""
    if log.retracted is None or total.verdict == NOT_KNOWN:
        return total
    is_unrated = np.isnan(log.quality)
    # Answers newer than the newest learned one may have no learned rating yet, so nothing was lost by a retraction.
    is_due = log.made_at <= log.made_at[~is_unrated].max(initial=0.0)
    given = log.rated_as(np.where(is_unrated & is_due, log.retracted, log.quality), counts=log.counts)
    everything = np.ones(len(log.arm), dtype=np.bool_)
    verdict = replace(groups, log=given).comparison(ROUTING, everything, against=arm).comparison.verdict
    if verdict == total.verdict:
        return total
    turned = f"retracted ratings turned this verdict: with them it is {verdict}"
    return replace(total, assumption=turned if total.assumption is None else f"{total.assumption}; {turned}")


def _retracted_by_arm(log: ReportRows) -> Iterator[tuple[str, dict[str, int]]]:
    if log.retracted is None:
        return
    for place, arm in enumerate(log.arms):
        ratings = log.retracted[(log.arm == place) & ~np.isnan(log.retracted)]
        if len(ratings):
            good = round(int((ratings >= 0.5).sum()) * log.scale)
            yield arm, {"good": good, "bad": round(len(ratings) * log.scale) - good}


def _not_comparable(log: ReportRows, arm: int) -> Iterator[tuple[str, int]]:
    offered, comparable = log.is_offered(arm), log.comparable(arm)
    yield f"{log.arms[arm]} was not offered", int((~offered).sum())
    yield f"{log.arms[arm]} could not be drawn, and rewards have no bounds", int((offered & ~comparable).sum())


def _could_draw(log: ReportRows, second: Matrix) -> Flags:
    return log.could_draw(int(second[0].argmax())) if len(second) else np.ones(0, dtype=np.bool_)


def _valued(log: ReportRows) -> Iterator[tuple[Vector, Possible | None]]:
    """Yields (qualities, possible values of unrated answers), then the same for rewards, or the first pair again."""
    quality = None if log.limits is None else Possible(best=1.0, worst=0.0, least=0.0, most=1.0)
    yield log.quality, quality
    if log.reward is None or log.limits is None:
        yield (log.quality, quality) if log.reward is None else (log.reward, None)
        return
    least, most = log.limits
    best = most if log.best is None else log.best
    worst = least if log.worst is None else log.worst
    yield log.reward, Possible(best=best, worst=worst, least=least, most=most, cost=log.expected_cost)


def _clipped(value: Difference, low: float, high: float) -> Difference:
    if value.low is None or value.high is None:
        return value
    return replace(value, low=max(value.low, low), high=min(value.high, high))


def _notes(report: Report, log: ReportRows, *, policy: PolicySettings) -> Iterator[str]:
    unit = report.unit
    if report.total is not None:
        yield from _about_total(report.total, report, log)
    if report.left_out:
        parts = ", ".join(f"{count:,} ({reason})" for reason, count in sorted(report.left_out.items()))
        yield f"questions that are in no comparison: {parts}"
    for name, count in sorted(log.rules.items()):
        yield f"the rule {name} limited the arms of {round(log.scale * count):,} of {report.questions:,} questions"
    if log.stopped is not None and log.stopped.any():
        answered, stopped = (Counter(log.arms[at] for at in arm) for arm in (log.arm, log.arm[log.stopped]))
        shares = (f"{arm} {count:,} of {answered[arm]:,}" for arm, count in sorted(stopped.items()))
        yield f"tasks that a budget stopped, by arm: {'; '.join(shares)}. Their quality is unknown"
    yield from _limited(log)
    yield from _late(log, unit=unit)
    if report.sample is not None:
        yield f"comparisons are {words.sample_words(report.sample)}, drawn by their ids; sums are scaled to all of them"
    yield from _of_prices(report, log)
    if np.nansum(log.costs["seconds"]) > 0.0:
        yield f"shares of the compared questions, and mean seconds of an answer: {'; '.join(_arm_shares(log))}"
    if policy.holdback is None:
        yield "no holdback is set: policy.holdback would make verdicts come sooner"


def _of_prices(report: Report, log: ReportRows) -> Iterator[str]:
    costs = log.costs[report.unit]
    outcomes, free = int((~np.isnan(costs)).sum()), int((costs == 0.0).sum())
    if free and report.unit == "dollars" and not report.unpriced:
        yield f"{free:,} of {outcomes:,} compared outcomes report no dollars, and count as 0"
    if report.unpriced:
        yield (
            f"{words.unpriced_words(report)} have no price: sums of dollars do not include them, and no dollars are "
            "compared. Set their token_prices, then `ragbandit data reprice`"
        )
    if log.refused:
        told = ", ".join(f"{round(log.scale * one):,} answers of {arm}" for arm, one in log.refused.items())
        yield f"the server told an implausible price, which does not count, for {told}: see `ragbandit status`"


def _limited(log: ReportRows) -> Iterator[str]:
    for kind, what in (("task", "tasks"), ("session", "questions of sessions")):
        parts = [f"{arm} {n:,} of {of:,}" for (of_kind, arm), (n, of) in sorted(log.limited.items()) if of_kind == kind]
        if parts:
            yield f"{what} that have reached a limit, by arm: {'; '.join(parts)}. They may have ended too early"


def _about_total(total: Comparison, report: Report, log: ReportRows) -> Iterator[str]:
    yield f"compared with {total.second}: {report.why}"
    if not len(log.arm):
        return
    yield (
        "costs include all outcomes, reward and quality only rated answers; 95 % intervals stay valid however "
        "often you look"
    )
    yield (
        f"rated: {'; '.join(_rated_shares(log))}. Labels and scores that were drawn here count by their probabilities"
    )
    if report.retracted:
        parts = (f"{arm} {one['good']:,} and {one['bad']:,}" for arm, one in sorted(report.retracted.items()))
        yield f"ratings that were retracted, good (0.5 or more) and bad: {'; '.join(parts)}"
    if total.bounded:
        yield (
            f"{total.bounded:,} of these questions offered {report.compared_arm}, but could not draw it: "
            "its reward there lies between its bounds, and costs are compared without them"
        )


def _rated_shares(log: ReportRows) -> Iterator[str]:
    for place in np.argsort(-np.bincount(log.arm, minlength=len(log.arms)), kind="stable"):
        quality = log.quality[log.arm == place]
        if len(quality):
            yield f"{log.arms[place]} {percent(round(float((~np.isnan(quality)).mean()), 2))}"


def _late(log: ReportRows, *, unit: Unit) -> Iterator[str]:
    late = {arm: log.scale * amount for (arm, of), amount in sorted(log.late.items()) if of == unit}
    if late:
        start = f"of what was spent, {money(math.fsum(late.values()), unit)} came after the decision was closed"
        spent = (money(log.scale * log.spent(unit, arm=arm), unit) for arm in late)
        shares = (f"{arm} {money(late[arm], unit)} of {of}" for arm, of in zip(late, spent, strict=True))
        yield f"{start}, so that no reward has it: {'; '.join(shares)}"


def _arm_shares(log: ReportRows) -> Iterator[str]:
    for place in np.argsort(-np.bincount(log.arm, minlength=len(log.arms)), kind="stable"):
        seconds = log.costs["seconds"][log.arm == place]
        known = seconds[~np.isnan(seconds)]
        mean = f"{number(float(known.mean()))} s" if len(known) else NOTHING
        yield f"{log.arms[place]} {percent(round(len(seconds) / len(log.arm), 3))}, {mean}"
