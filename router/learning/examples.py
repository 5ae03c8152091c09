"""Training examples: a decision with its outcome and feedback becomes an update, or waits, or is closed."""

import math
from dataclasses import dataclass

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import InvalidInput
from ragbandit.router.learning.reward import default_reward, explicit_reward
from ragbandit.router.storage.ledger import Closure, Joined
from ragbandit.router.types import Decision, Feedback, PolicyLabel, Reward, Update

__all__ = ["Lesson", "judge", "made_update"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """A joined decision that can be learned: its reward and the feedback that made it."""

    reward: Reward
    feedback: tuple[Feedback, ...]


def judge(
    joined: Joined,
    *,
    settings: Settings,
    needs_features: bool,
    encoder_hash: str,
    now: float,
    width: int | None = None,
) -> Lesson | Closure | None:
    """What is to be done with a waiting decision: learn it, close it, quarantine it, or None to wait on.

    width: the number of features of what was learned before; None while nothing was.
    """
    learning = settings.learning
    decision, outcome = joined.decision, joined.outcome
    key = decision.id
    if needs_features and decision.encoder_hash != encoder_hash:
        return Closure(decision_id=key, state="closed", reason="made with another encoder")
    due = decision.made_at + learning.wait_s
    expired = now >= decision.made_at + learning.wait_s + learning.expire_s
    alone = decision.run_by == "caller"  # a raw reward needs no outcome where no worker will bring one
    usable = [f for f in joined.feedback if outcome is not None or (alone and f.kind == "reward")]
    in_time = [f for f in usable if f.received_at <= due]
    usable = in_time if learning.wait_s > 0 else usable[:1]
    if not (expired or (usable and learning.wait_s == 0) or (learning.wait_s > 0 and now >= due)):
        return None
    if not usable:
        if outcome is None and not expired and (not alone or joined.feedback):
            return None  # the outcome may still come
        if outcome is None and joined.feedback:
            return Closure(decision_id=key, state="closed", reason="feedback without outcome")
        if learning.default_reward is None:
            return Closure(decision_id=key, state="closed", reason="no feedback in time")
    try:
        if usable:
            reward = explicit_reward(usable, outcome=outcome, settings=settings.reward, how=learning.aggregate)
        else:
            assert learning.default_reward is not None
            reward = default_reward(learning.default_reward, outcome=outcome, settings=settings.reward)
        _validate(joined, needs_features=needs_features, width=width)
    except InvalidInput as error:
        return Closure(decision_id=key, state="quarantined", reason=error.message, field=error.field)
    return Lesson(reward=reward, feedback=tuple(usable))


def _validate(joined: Joined, *, needs_features: bool, width: int | None) -> None:
    """What no policy may be fed. Raises InvalidInput naming the field."""
    decision = joined.decision
    if not (math.isfinite(decision.propensity) and 0.0 < decision.propensity <= 1.0):
        raise InvalidInput(f"propensity {decision.propensity} is outside (0, 1]", field="propensity")
    if decision.arm not in decision.arms:
        raise InvalidInput(f"arm {decision.arm!r} is not among {decision.arms}", field="arm")
    if not decision.query.text.strip():
        raise InvalidInput("the question has no text", field="text")
    if needs_features and (decision.features is None or not np.isfinite(decision.features).all()):
        raise InvalidInput("features are missing or not finite", field="features")
    if needs_features and width is not None and decision.features is not None and decision.features.size != width:
        raise InvalidInput(f"{decision.features.size} features, not {width}", field="features")


def made_update(decision: Decision, lesson: Lesson, *, label: PolicyLabel, seq: int, now: float) -> Update:
    """The ledger's row for a lesson."""
    return Update(
        policy=label,
        seq=seq,
        decision_id=decision.id,
        query=decision.query,
        arm=decision.arm,
        arms=decision.arms,
        pmf=decision.pmf,
        scores=decision.scores,
        propensity=decision.propensity,
        reward=lesson.reward,
        feedback_ids=tuple(f.id for f in lesson.feedback),
        features=decision.features,
        made_at=now,
    )
