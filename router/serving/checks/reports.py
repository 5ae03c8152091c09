"""Checks of feedback and outcomes. Checked values can be stored, learned and printed."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast, get_args

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.checks.questions import check_type, checked_id, checked_number, checked_text, new_id
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import known_choices
from ragbandit.shared.texts.plain_values import plain
from ragbandit.shared.texts.text_forms import name_form
from ragbandit.shared.types import (
    MAX_ERROR,
    MAX_TEXT,
    OWN_BEGINNINGS,
    REPORTED_COSTS,
    Cost,
    DecisionId,
    Feedback,
    FeedbackId,
    FeedbackKind,
    FeedbackSource,
    Json,
    Outcome,
    OutcomeStatus,
)

MAX_ANSWERS: Final = 100
MAX_RATER: Final = 64
#: scales that error messages propose, the most usual first; every other WORST-BEST is accepted, too
USUAL_SCALES: Final = ("0-1", "1-5", "-1-1", "0-5", "0-10", "1-7", "1-10", "0-100")
_SCALE: Final = re.compile(r"(-?\d{1,9}(?:\.\d{1,9})?)-(-?\d{1,9}(?:\.\d{1,9})?)", re.ASCII)
_KINDS: Final = ("label", "rating", "reward")
_SOURCES: Final = ("human", "label", "judge", "code")


def bounds_of(scale: object) -> tuple[float, float]:
    """The worst and the best rating of a scale WORST-BEST, such as 1-5, -1-1 or 6-1. Raises InvalidInput."""
    ends = _SCALE.fullmatch(scale) if isinstance(scale, str) else None
    if ends is None or float(ends[1]) == float(ends[2]):
        remedy = f"use WORST-BEST, the worst and the best rating: {', '.join(USUAL_SCALES)}, ..."
        raise InvalidInput(f"unknown scale {scale!r:.80}", field="scale", remedy=remedy)
    return float(ends[1]), float(ends[2])


def make_feedback(
    *,
    decision_id: str,
    settings: Settings,
    now: float,
    feedback_id: str | None = None,
    label: Sequence[str] | None = None,
    rating: bool | float | None = None,
    scale: str = "0-1",
    reward: float | None = None,
    event: str | None = None,
    source: str | None = None,
    rater: str | None = None,
    retract: str | None = None,
) -> Feedback:
    """Make a Feedback of exactly one of label, rating, reward, event and retract. Raises InvalidInput.

    rating: a bool, or a number on `scale`; it is stored as a number in [0, 1]
    scale: WORST-BEST, the worst and the best rating, such as 1-5, -1-1 or 6-1 (1 is the best)
    event: a name of the setting feedback_events
    source: "human", "label", "judge" or "code"; None means "human". It must be None for an event
    retract: kind ("label", "rating" or "reward") of an earlier judgement that the same source and rater take back
    """
    label, rating, reward, rater = map(plain, (label, rating, reward, rater))
    checked_id(decision_id, field="decision_id")
    identity = checked_id(feedback_id, field="feedback_id") if feedback_id is not None else new_id()
    kind = _kind_of({"label": label, "rating": rating, "reward": reward, "event": event, "retract": retract})
    bounds = bounds_of(scale)
    value: float | tuple[str, ...] | None = None
    if event is not None:
        value = _event_value(event, known=settings.feedback_events, source=source)
    elif source not in (None, *_SOURCES):
        raise InvalidInput(f"unknown source {source!r}", field="source", remedy=known_choices(_SOURCES, given=source))
    elif label is not None:
        value = _checked_label(label, log_text=settings.log.text)
    elif rating is not None:
        value = _scaled_rating(rating, *bounds)
    elif reward is not None:
        value = checked_number(reward, field="reward", low=settings.reward.minimum, high=settings.reward.maximum)
    if rater is not None:
        # Checked also before it is normalised, since normalising a very long text takes long.
        rater = _checked_rater(name_form(_checked_rater(rater)))
    return Feedback(
        id=FeedbackId(identity),
        decision_id=DecisionId(decision_id),
        kind=cast("FeedbackKind", kind),
        value=value,
        source="event" if event is not None else cast("FeedbackSource", source or "human"),
        received_at=now,
        rater=rater,
        event=event,
    )


def check_feedback_id(feedback_id: str | None) -> None:
    """Raises InvalidInput for an id that begins like the service's own ids of feedback."""
    own = next((one for one in OWN_BEGINNINGS if isinstance(feedback_id, str) and feedback_id.startswith(one)), None)
    if own is not None:
        message = f"ids that begin with {own!r} are those of feedback that the service makes"
        raise InvalidInput(message, field="feedback_id", remedy="begin the id with another word, or leave it out")


def _checked_rater(name: object) -> str:
    return checked_text(name, field="rater", most=MAX_RATER, advice=", an id and no name")


def _kind_of(parts: Mapping[str, object]) -> str:
    """The kind of the judgement or retraction. Raises InvalidInput unless exactly one of `parts` is given."""
    names = [name for name, value in parts.items() if value is not None]
    if len(names) != 1:
        message = f"{' and '.join(names)} were given" if names else "no label, rating, reward or event was given"
        remedy = "send exactly one of label, rating, reward and event, or retract"
        raise InvalidInput(message, field="feedback", remedy=remedy)
    retract = parts["retract"]
    if retract is None:
        return names[0]
    if retract not in _KINDS:
        message = f"{retract!r:.80} cannot be retracted"
        raise InvalidInput(message, field="retract", remedy="name the kind to take back: label, rating or reward")
    return str(retract)


def _event_value(event: object, *, known: Mapping[str, float | None], source: str | None) -> float | None:
    if not isinstance(event, str) or event not in known:
        remedy = known_choices(sorted(known), given=event) if known else "name it in the setting feedback_events"
        raise InvalidInput(f"unknown event {event!r:.80}", field="event", remedy=remedy)
    if source is not None:
        message = f"an event has the source event, not {source!r:.80}"
        raise InvalidInput(message, field="source", remedy="leave source out")
    return known[event]


def _checked_label(label: Sequence[str], *, log_text: str) -> tuple[str, ...]:
    if log_text != "full":
        message = f"a label is compared with the answer, which log.text: {log_text} does not store"
        remedy = "compare label and answer yourself, and send a rating or a reward"
        raise InvalidInput(message, field="label", remedy=remedy)
    answers = tuple(label) if isinstance(label, Sequence) and not isinstance(label, str) else (label,)
    if not answers or len(answers) > MAX_ANSWERS:
        remedy = f"send between 1 and {MAX_ANSWERS}"
        raise InvalidInput(f'"label" has {len(answers)} gold answers', field="label", remedy=remedy)
    return tuple(checked_text(answer, field="label") for answer in answers)


def _scaled_rating(rating: float, worst: float, best: float) -> float:
    if isinstance(rating, bool):
        return float(rating)
    hint = "; for a rating from 1 to 5 set scale to 1-5 (--scale 1-5)" if (worst, best) == (0.0, 1.0) else ""
    low, high = sorted((worst, best))
    return (checked_number(rating, field="rating", low=low, high=high, hint=hint) - worst) / (best - worst)


def unrun_outcome(
    decision_id: DecisionId, *, stop_reason: str, error: str, now: float, made_by: Mapping[str, Json] | None = None
) -> Outcome:
    """Make the failed outcome, without cost, of a decision whose arm no worker has run."""
    outcome = make_outcome(decision_id=decision_id, now=now, status="failed", stop_reason=stop_reason)
    return replace(outcome, error=error, run_by="worker", made_by=made_by or {})


def make_outcome(
    *,
    decision_id: str,
    now: float,
    status: OutcomeStatus,
    answer: str | None = None,
    steps: float = 0.0,
    cost: Mapping[str, float] | None = None,
    stop_reason: str = "",
    error: str | None = None,
) -> Outcome:
    """Make the Outcome that the caller's own stack reports. Raises InvalidInput."""
    checked_id(decision_id, field="decision_id")
    statuses = get_args(OutcomeStatus)
    if status not in statuses:
        raise InvalidInput(f"unknown status {status!r}", field="status", remedy=known_choices(statuses, given=status))
    if isinstance(error, str) and len(error) > MAX_ERROR:
        error = f"{error[: MAX_ERROR - 3]}..."  # cut, not refused, so that every failure can be reported
    check_type(stop_reason, str, field="stop_reason", wanted="text")
    texts = (("answer", answer, MAX_TEXT), ("error", error, MAX_TEXT), ("stop_reason", stop_reason, 64))
    for field, text, limit in texts:
        if text is not None:
            checked_text(text, field=field, most=limit, blank=True)
    return Outcome(
        decision_id=DecisionId(decision_id),
        status=status,
        answer=answer,
        trace=(),
        cost=_checked_cost({} if cost is None else cost),
        steps=checked_number(steps, field="steps"),
        stop_reason=stop_reason,
        error=error,
        run_by="caller",
        made_by={},
        made_at=now,
    )


def _checked_cost(cost: Mapping[str, float]) -> Cost:
    check_type(cost, Mapping, field="cost", wanted="a mapping")
    amounts: dict[str, float | int] = {}
    for name, value in cost.items():
        if name not in REPORTED_COSTS:
            remedy = known_choices(REPORTED_COSTS, given=name)
            raise InvalidInput(f"unknown cost {name!r}", field="cost", remedy=remedy)
        amount = checked_number(value, field=f"cost.{name}")
        is_count = isinstance(getattr(Cost(), name), int)
        if is_count and amount != int(amount):
            remedy = "send a whole number"
            raise InvalidInput(f"{value!r} is not a whole number", field=f"cost.{name}", remedy=remedy)
        amounts[name] = int(amount) if is_count else amount
    return Cost(**amounts)  # type: ignore[arg-type] # counts are int here


def check_charged(
    outcome: Outcome, *, cost: Mapping[str, float], reward: RewardSettings, is_stored: Callable[[Outcome], bool]
) -> None:
    """Refuse an outcome without steps if the reward charges for none of its costs: its arm would look free.

    cost: the reported fields of Cost. is_stored: whether the same outcome is stored already. A repeated outcome is
    accepted, since the settings may have changed after the first report.
    """
    charged = sorted(term for term, price in reward.cost.items() if price > 0.0)
    free = cost and reward.weight > 0.0 and charged and not set(charged) & set(cost)
    if free and not is_stored(outcome):
        reported = ", ".join(cost)
        message = f"the reward charges {', '.join(charged)}, but the cost has only {reported}: it would count as 0"
        remedy = f"send {charged[0]} (0 if there is none), or charge for {reported} by the setting reward.cost"
        raise InvalidInput(message, field="steps" if "steps" in charged else "cost", remedy=remedy)
