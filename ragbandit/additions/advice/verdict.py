"""Advice: whether learned routing pays, on questions that the policy has not learned.

- The questions are split into folds. A copy of the policy learns every row of the other folds, and then decides the
  questions of its fold, as after a warm start.
- Paired outcomes: if questions have the outcomes of every arm (a table, a run, or what a store has imported of them),
  routing is compared with each fixed arm on these questions.
- Logged draws: if these questions are missing, or too few to decide, replay estimates the same comparisons from the
  questions that have the outcome of one drawn arm. The estimate with the narrower interval is taken.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, Final, Literal

import numpy as np

from ragbandit.additions.advice.gains import (
    Gains,
    gains_on_draws,
    gains_on_outcomes,
    memory_log_of,
    paired_outcomes,
)
from ragbandit.additions.evaluation.warm import question_numbers
from ragbandit.router.comparison import CONFIDENCE, NOT_KNOWN, WORTH, forecast_ends, words
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.estimation import Progress, no_progress
from ragbandit.router.offline.estimation.bandit_log import folds_of
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.replay.candidates import settings_in_force
from ragbandit.router.offline.replay.opening import MemoryLog
from ragbandit.router.offline.replay.plan import Plan
from ragbandit.router.offline.replay.policy_pmfs import cross_fit, row_updates
from ragbandit.router.policies import make_policy, untrained_policy
from ragbandit.router.policies.algorithms.conservative import learner_of
from ragbandit.router.policies.base import Policy
from ragbandit.router.reporting.report import FEWEST_TO_FIX
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Indices, finite_json

Kind = Literal["route", "fix", "not enough", "wrong log"]
#: largest number of further questions that a forecast names
_FARTHEST: Final = 1_000_000
_TOO_CLOSE: Final = "more labelled questions than anybody has: the gain is too close to the limit"

_PROBABILITIES: Final = "the probabilities that the arms were drawn with; `ragbandit replay` shows each arm"


@dataclass(frozen=True, kw_only=True, slots=True)
class Criteria:
    folds: int = 5
    worth: float = WORTH  #: smallest gain in reward per question that justifies a router
    #: confidence of the comparisons of paired outcomes; logged draws always have CONFIDENCE
    confidence: float = CONFIDENCE


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice(Gains):
    verdict: Kind
    sentence: str = ""
    missing: str | None = None  #: missing evidence; None if the verdict is route or fix
    progress: float = 1.0  #: existing share of the evidence that a verdict needs, in [0, 1]
    ask: Criteria = field(default_factory=Criteria)

    def as_json(self) -> dict[str, Any]:
        values: dict[str, Any] = finite_json(asdict(self))
        return values


def advice_of(
    rows: Sequence[Logged],
    *,
    source: str,
    settings: Settings,
    ask: Criteria | None = None,
    progress: Progress = no_progress,
) -> Advice:
    """Compute the verdict on the configured policy from logged rows, which must have features if the policy needs them.

    Raises InvalidInput if there are fewer questions than folds, or if all rows offer the same only arm.
    """
    arms = {arm for row in rows for arm in row.decision.arms}
    if len(arms) == 1:
        remedy = "add another arm or pipeline: with one there is nothing to route"
        raise InvalidInput(f"has only the arm {', '.join(arms)}", field=source, remedy=remedy)
    policy = learner_of(untrained_policy(settings.policy_definition))
    adviser = _Adviser(policy=policy, settings=settings, ask=ask or Criteria(), progress=progress)
    return adviser.advice(rows, source=source)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Adviser:
    policy: Policy  #: untrained policy; new policies with its params learn the folds
    settings: Settings
    ask: Criteria
    progress: Progress

    def advice(self, rows: Sequence[Logged], *, source: str) -> Advice:
        outcomes, drawn = paired_outcomes([row for row in rows if row.reward.has_parts] or rows)
        judged = [*(outcomes.rows if outcomes is not None else ()), *drawn]
        log = memory_log_of(judged, source=source)
        settings, reward = settings_in_force(self.settings.policy, arms=log.log.arms), self.settings.reward
        pmf, notes = cross_fit(
            log,
            name=settings.name,
            make=partial(make_policy, self.policy.algorithm, params=self.policy.params),
            updates=row_updates(log, plan=Plan(usual_weight=reward.weight)),
            folds=self._folds(judged, log=log),
            settings=settings,
            progress=self.progress,
        )
        common: dict[str, Any] = {"log": log, "pmf": pmf, "reward": reward}
        about: dict[str, Any] = {"verdict": "not enough", "ask": self.ask}
        advice = None
        if outcomes is not None:
            gains = gains_on_outcomes(outcomes, schema=self.settings.context, confidence=self.ask.confidence, **common)
            advice = decide_verdict(Advice(**_gain_fields(gains, notes=notes), **about))
            if not drawn or advice.comparisons[0].verdict in ("better", "worse"):
                return advice
        estimate = gains_on_draws(drawn, folds=self.ask.folds, progress=self.progress, **common)
        if not isinstance(estimate, Gains):
            return _wrong_log(estimate, rows=drawn)
        estimated = decide_verdict(Advice(**_gain_fields(estimate, notes=notes), **about))
        return advice if advice is not None and _width(advice) <= _width(estimated) else estimated

    def _folds(self, rows: Sequence[Logged], *, log: MemoryLog) -> Indices:
        question, folds = question_numbers(rows), self.ask.folds
        check_question_count(int(question.max()) + 1, folds=folds, source=log.opened.described)
        return _folds_by_text(log, question=question, folds=folds)


def _folds_by_text(log: MemoryLog, *, question: Indices, folds: int) -> Indices:
    """The fold of each row, by its question's text without context.

    question: number of each row's question; the same text with another context or tenant is another question. If there
    are fewer texts than folds, the numbers of the questions decide the folds.
    """
    by_hash = folds_of(log.log.questions, folds=folds)
    if len(np.unique(by_hash)) == folds:
        return by_hash
    texts, numbers = np.unique(log.log.questions, return_inverse=True)
    return np.asarray((question if len(texts) < folds else numbers) % folds, dtype=np.intp)


def check_question_count(questions: int, *, folds: int, source: str) -> None:
    """Raise InvalidInput if there are fewer different questions than folds."""
    if questions < folds:
        message = f"{questions} different questions cannot be cut in {folds} folds"
        raise InvalidInput(message, field=source, remedy="give more questions, or fewer folds (--folds)")


def _gain_fields(gains: Gains, *, notes: Sequence[str]) -> dict[str, Any]:
    return {each.name: getattr(gains, each.name) for each in fields(gains)} | {"notes": (*notes, *gains.notes)}


def _width(advice: Advice) -> float:
    gain = advice.comparisons[0].reward
    return math.inf if gain.low is None or gain.high is None else gain.high - gain.low


def _wrong_log(faults: Sequence[str], *, rows: Sequence[Logged]) -> Advice:
    sentence = f"this log is wrong: {'; '.join(faults)}"
    questions = len({row.decision.query.text for row in rows})
    return Advice(verdict="wrong log", sentence=sentence, questions=questions, missing=_PROBABILITIES, progress=0.0)


def decide_verdict(advice: Advice) -> Advice:
    """Set the verdict, from the comparison with the best fixed arm."""
    best, ask = advice.comparisons[0], advice.ask
    gain, on = best.reward, f"; {advice.on}"
    if best.verdict == "better":
        sentence = f"route: {words.sentence(best)}{on}"
        return replace(advice, verdict="route", sentence=sentence)
    is_small = gain.high is not None and gain.high < ask.worth
    if is_small and advice.questions >= FEWEST_TO_FIX and not advice.untried:
        adds = f"routing adds {words.interval_words(gain)} reward a question, less than {ask.worth:g}"
        return replace(advice, verdict="fix", sentence=f"fix: {best.second}: {adds}; do not route{on}")
    missing, progress = _missing_evidence(advice)
    if best.verdict == NOT_KNOWN:
        best = replace(best, missing=missing, progress=progress)
        sentence = words.sentence(best)
    else:
        sentence = f"{words.sentence(best)}, and may be better; to know that: {missing}"
    changes: dict[str, Any] = {"missing": missing, "progress": progress}
    comparisons = (best, *advice.comparisons[1:])
    return replace(advice, sentence=f"not enough: {sentence}{on}", comparisons=comparisons, **changes)


def _missing_evidence(advice: Advice) -> tuple[str, float]:
    """Returns (evidence that the verdict route or fix needs, existing share of this evidence).

    Assumes that the gain stays, and that its interval narrows like 1 / sqrt(questions).
    """
    best, worth, questions = advice.comparisons[0], advice.ask.worth, advice.questions
    gain = best.reward
    if advice.untried:
        reasons = "; ".join(f"{arm} {why}" for arm, why in advice.untried.items())
        return f"{reasons}: offer {', '.join(advice.untried)} for a while, with a probability that is logged", 0.0
    if gain.estimate is None or gain.low is None or gain.high is None:
        return best.missing or "", best.progress
    half, routes = (gain.high - gain.low) / 2.0, gain.estimate > worth - gain.estimate
    # Half width at which the verdict is certain: "route" needs an interval above 0, "fix" an interval below `worth`.
    room = gain.estimate if routes else worth - gain.estimate
    lacking = 0 if routes else FEWEST_TO_FIX - questions
    if not half < _FARTHEST * room:
        return _TOO_CLOSE, 0.0
    further = max(questions * ((half / room) ** 2 - 1.0), lacking, 1.0)
    if further > _FARTHEST:
        return _TOO_CLOSE, 0.0
    # A rounded number must not be below the `lacking` questions.
    text = f"at least {lacking:,} more labelled questions" if further < 1.5 * lacking else None
    least, most = forecast_ends(further)
    text = text or f"about {least:,.0f} to {most:,.0f} more labelled questions"
    return text, questions / (questions + further)
