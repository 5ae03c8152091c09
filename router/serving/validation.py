"""Validation of input: the checks that the library, HTTP and the command line share.

What passes can be stored, encoded, learned and printed. What does not is refused as InvalidInput, with the field and
the remedy, before anything is written.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import cast

import uuid_utils

from ragbandit.router.config.context_schema import ContextSchema, check_declared
from ragbandit.router.config.settings import BudgetSettings, RewardSettings, Settings
from ragbandit.router.serving.conversations.checks import check_conversation
from ragbandit.router.serving.field_checks import checked_id, checked_text, checked_type
from ragbandit.router.serving.link_checks import check_links
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import (
    MAX_ERROR,
    ArmName,
    Budget,
    Cost,
    DecisionId,
    Feedback,
    FeedbackId,
    FeedbackSource,
    Json,
    Outcome,
    OutcomeStatus,
    Query,
)

__all__ = [
    "capped",
    "check_charged",
    "checked_id",
    "checked_query",
    "checked_rater",
    "checked_seconds",
    "checked_text",
    "checked_type",
    "made_feedback",
    "made_outcome",
    "new_id",
    "unrun_outcome",
]

MAX_ANSWERS = 100
#: texts in one list of a context
MAX_WORDS = 100
#: characters of a rater's id
MAX_RATER = 64
#: largest cap or count that makes sense
MAX_CAP = 1e9


def new_id() -> DecisionId:
    """A UUIDv7: unique, ordered by time."""
    return DecisionId(str(uuid_utils.uuid7()))


def checked_query(
    query: Query,
    *,
    arms: Sequence[ArmName],
    configured: Sequence[ArmName] = (),
    schema: ContextSchema = MappingProxyType({}),
) -> Query:
    """The query with an id, its context sorted by key, or InvalidInput naming field and remedy.

    arms: those that may be drawn. configured: all there are; the others among them are run by the caller's own stack.
    schema: the setting `context`.
    """
    checked_type(query, Query, field="question", wanted="a string or a Query")
    checked_text(query.text, field="question")
    if query.id is not None:
        checked_id(query.id, field="decision_id")
    checked_id(query.tenant, field="tenant")
    if not arms:
        raise InvalidInput(
            "no arm of this service is run by workers",
            field="arms",
            remedy="route the question instead (Router.route or POST /v1/route) and run the arm yourself",
        )
    if query.arms is not None:
        _checked_arms(query.arms, known=arms, configured=configured)
    checked_type(query.context, Mapping, field="context", wanted="a mapping")
    _checked_context(query.context)
    if schema:
        check_declared(query.context, schema=schema)
    checked_type(query.budget, Budget, field="budget", wanted="a Budget")
    _checked_budget(query.budget)
    # Sorted, as the log keeps it: a policy that reads the context must see the same again in a replay.
    context = {key: list(v) if isinstance(v, tuple) else v for key, v in sorted(query.context.items())}
    check_conversation(query)
    if "links" in query.request:
        check_links(query.request["links"])
    return replace(query, id=query.id or new_id(), context=context)


def _checked_arms(arms: Sequence[ArmName], *, known: Sequence[ArmName], configured: Sequence[ArmName]) -> None:
    checked_type(arms, list | tuple, field="arms", wanted="a list of names")
    for arm in arms:
        checked_type(arm, str, field="arms", wanted="a list of names")
    if not arms:
        raise InvalidInput("no arm is allowed", field="arms", remedy="name at least one, or leave it out")
    if len(set(arms)) != len(arms):
        raise InvalidInput("an arm is named twice", field="arms", remedy="name each arm once")
    for arm in arms:
        if arm in known:
            continue
        if arm in configured:
            remedy = f"use Router.route or POST /v1/route for it; our workers run {', '.join(known)}"
            raise InvalidInput(
                f"the arm {arm!r} is run by your own stack (run_by: caller)", field="arms", remedy=remedy
            )
        raise InvalidInput(f"unknown arm {arm!r}", field="arms", remedy=f"known here: {', '.join(known)}")


def _checked_budget(budget: Budget) -> None:
    for cap in ("rounds", "passages", "tokens", "seconds", "dollars"):
        asked = getattr(budget, cap)
        if asked is not None:
            whole = cap not in ("seconds", "dollars")
            if isinstance(asked, bool) or not isinstance(asked, int if whole else int | float) or not asked > 0:
                kind = "whole number" if whole else "number"
                raise InvalidInput(
                    f"{asked!r} is not a {kind} above 0", field=f"budget.{cap}", remedy="leave it out for no cap"
                )
            _number(asked, field=f"budget.{cap}", low=0, high=MAX_CAP)


def checked_seconds(value: object, *, field: str) -> float:
    """A number of seconds, 0 or more."""
    return _number(value, field=field, low=0, high=MAX_CAP)


def _checked_context(context: Mapping[str, object]) -> None:
    for key, value in context.items():
        checked_text(key, field="context")
        if isinstance(value, str):
            if value.strip():  # empty and blank values are values
                checked_text(value, field=f"context.{key}")
        elif isinstance(value, float) and not math.isfinite(value):
            raise InvalidInput(
                f'"context.{key}" is not a finite number',
                field=f"context.{key}",
                remedy="send null or leave it out",
            )
        elif isinstance(value, list | tuple):
            _checked_words(value, field=f"context.{key}")
        elif value is not None and not isinstance(value, bool | int | float):
            raise InvalidInput(
                f'"context.{key}" is a {type(value).__name__}',
                field=f"context.{key}",
                remedy="send text, numbers, booleans, lists of texts or null",
            )


def _checked_words(words: Sequence[object], *, field: str) -> None:
    if len(words) > MAX_WORDS:
        raise InvalidInput(f'"{field}" has {len(words)} texts', field=field, remedy=f"send at most {MAX_WORDS}")
    for word in words:
        checked_type(word, str, field=field, wanted="a list of texts")
        checked_text(word, field=field)


def capped(budget: Budget, *, limits: BudgetSettings) -> Budget:
    """The smaller of what a query asks and what the settings allow, cap by cap."""

    def smaller(asked: float | None, allowed: float | None) -> float | None:
        given = [value for value in (asked, allowed) if value is not None]
        return min(given, default=None)

    rounds, passages = smaller(budget.rounds, limits.rounds), smaller(budget.passages, limits.passages)
    tokens = smaller(budget.tokens, limits.tokens)
    return Budget(
        rounds=None if rounds is None else int(rounds),
        passages=None if passages is None else int(passages),
        tokens=None if tokens is None else int(tokens),
        seconds=smaller(budget.seconds, limits.seconds),
        dollars=smaller(budget.dollars, limits.dollars),
    )


def made_feedback(
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
    """A Feedback of exactly one of label, rating, reward, event and retract, or InvalidInput naming field and remedy.

    rating: a bool, a number in [0, 1], or with scale="1-5" a number in [1, 5]; it is kept on [0, 1]. event: a name of
    the setting feedback_events. source: human (also None), judge or code; None for an event. retract: the kind
    ("label", "rating" or "reward") of what the same source and rater said before, and take back.
    """
    checked_id(decision_id, field="decision_id")
    identity = checked_id(feedback_id, field="feedback_id") if feedback_id is not None else new_id()
    said = {"label": label, "rating": rating, "reward": reward, "event": event, "retract": retract}
    kind = _kind_of(said, scale=scale)
    if event is not None:
        return _event(
            event,
            known=settings.feedback_events,
            made=Feedback(
                id=FeedbackId(identity),
                decision_id=DecisionId(decision_id),
                kind="event",
                value=None,
                source="event",
                received_at=now,
                rater=checked_rater(rater),
            ),
            source=source,
        )
    if source not in (None, "human", "judge", "code"):
        raise InvalidInput(f"unknown source {source!r}", field="source", remedy="use human, judge or code")
    value: float | tuple[str, ...] | None = None
    if label is not None:
        value = _label(label, kept=settings.log.text)
    elif rating is not None:
        value = _rating(rating, scale=scale)
    elif reward is not None:
        value = _number(reward, field="reward", low=settings.reward.minimum, high=settings.reward.maximum)
    return Feedback(
        id=FeedbackId(identity),
        decision_id=DecisionId(decision_id),
        kind="label" if kind == "label" else "rating" if kind == "rating" else "reward",
        value=value,
        source=cast("FeedbackSource", source or "human"),
        received_at=now,
        rater=checked_rater(rater),
    )


def _kind_of(said: Mapping[str, object], *, scale: str) -> str:
    """The one kind of feedback that was said or, with "retract", is taken back. Raises InvalidInput."""
    given = [name for name, value in said.items() if value is not None]
    if len(given) != 1:
        message = f"{' and '.join(given)} were given" if given else "no label, rating, reward or event was given"
        remedy = "send exactly one of label, rating, reward and event, or retract"
        raise InvalidInput(message, field="feedback", remedy=remedy)
    retract = said["retract"]
    if retract not in (None, "label", "rating", "reward"):
        message = f"{retract!r:.80} cannot be retracted"
        raise InvalidInput(message, field="retract", remedy="name the kind to take back: label, rating or reward")
    if scale not in ("0-1", "1-5"):
        raise InvalidInput(f"unknown scale {scale!r}", field="scale", remedy="use 0-1 or 1-5")
    return given[0] if retract is None else str(retract)


def _event(event: object, *, known: Mapping[str, float | None], made: Feedback, source: str | None) -> Feedback:
    """The feedback `made` of this event, with what the settings say that it is worth."""
    names = ", ".join(sorted(known)) or "none: name them in the setting feedback_events"
    if not isinstance(event, str) or event not in known:
        raise InvalidInput(f"unknown event {event!r:.80}", field="event", remedy=f"known here: {names}")
    if source is not None:
        message = f"an event has the source event, not {source!r:.80}"
        raise InvalidInput(message, field="source", remedy="leave source out")
    return replace(made, event=event, value=known[event])


def checked_rater(rater: object) -> str | None:
    """The rater, or InvalidInput."""
    if rater is None:
        return None
    named = checked_text(rater, field="rater")
    if len(named) > MAX_RATER:
        message = f'"rater" has {len(named)} characters'
        raise InvalidInput(message, field="rater", remedy=f"send at most {MAX_RATER}, an id and no name")
    return named


def _label(label: Sequence[str], *, kept: str) -> tuple[str, ...]:
    if kept != "full":
        fault = f"a label is compared with the answer, and log.text: {kept} keeps none"
        raise InvalidInput(fault, field="label", remedy="compare them yourself, and send a rating or a reward")
    answers = tuple(label) if isinstance(label, Sequence) and not isinstance(label, str) else (label,)
    if not answers or len(answers) > MAX_ANSWERS:
        raise InvalidInput(
            f'"label" has {len(answers)} gold answers', field="label", remedy=f"send between 1 and {MAX_ANSWERS}"
        )
    return tuple(checked_text(answer, field="label") for answer in answers)


def _rating(rating: float, *, scale: str) -> float:
    if isinstance(rating, bool):
        return float(rating)
    if scale == "1-5":
        return (_number(rating, field="rating", low=1, high=5) - 1.0) / 4.0
    return _number(
        rating, field="rating", low=0, high=1, hint="; for a rating from 1 to 5 set scale to 1-5 (--scale 1-5)"
    )


def _number(value: object, *, field: str, low: float, high: float, hint: str = "") -> float:
    # An int may be too large for a float: isfinite would overflow, the range below refuses it.
    real = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not real:
        raise InvalidInput(f"{value!r} is not a finite number", field=field, remedy=f"send a number in [{low}, {high}]")
    if not low <= value <= high:
        raise InvalidInput(f"{value!r} is out of range", field=field, remedy=f"send a number in [{low}, {high}]{hint}")
    return float(value)


def unrun_outcome(
    decision_id: DecisionId, *, stop_reason: str, error: str, now: float, made_by: Mapping[str, Json] | None = None
) -> Outcome:
    """The failure of a decision whose arm our workers did not run: it cost nothing."""
    return Outcome(
        decision_id=decision_id,
        status="failed",
        answer=None,
        trace=(),
        cost=Cost(),
        steps=0.0,
        stop_reason=stop_reason,
        error=error,
        run_by="worker",
        made_by=made_by or {},
        made_at=now,
    )


def made_outcome(
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
    """The Outcome that the caller's own stack reports, or InvalidInput naming field and remedy."""
    checked_id(decision_id, field="decision_id")
    if status not in ("answered", "exhausted", "failed"):
        raise InvalidInput(f"unknown status {status!r}", field="status", remedy="use answered, exhausted or failed")
    if isinstance(error, str) and len(error) > MAX_ERROR:
        error = f"{error[: MAX_ERROR - 3]}..."  # what failed must come in, however much a library says about it
    for field, text in (("answer", answer), ("error", error), ("stop_reason", stop_reason)):
        if text is not None and text != "":
            checked_text(text, field=field)
    checked_type(stop_reason, str, field="stop_reason", wanted="text")
    if len(stop_reason) > 64:
        message = '"stop_reason" has more than 64 characters'
        raise InvalidInput(message, field="stop_reason", remedy="name the rule in a word or two")
    checked_type({} if cost is None else cost, Mapping, field="cost", wanted="a mapping")
    amounts: dict[str, float | int] = {}
    for name, value in (cost or {}).items():
        if name not in Cost.__dataclass_fields__:
            known = ", ".join(Cost.__dataclass_fields__)
            raise InvalidInput(f"unknown cost {name!r}", field="cost", remedy=f"known: {known}")
        amount = _number(value, field=f"cost.{name}", low=0, high=MAX_CAP)
        counted = isinstance(getattr(Cost(), name), int)
        if counted and amount != int(amount):
            raise InvalidInput(f"{value!r} is not a whole number", field=f"cost.{name}", remedy="send a count")
        amounts[name] = int(amount) if counted else amount
    return Outcome(
        decision_id=DecisionId(decision_id),
        status=status,
        answer=answer,
        trace=(),
        cost=Cost(**amounts),  # type: ignore[arg-type] # counts were made int above
        steps=_number(steps, field="steps", low=0, high=MAX_CAP),
        stop_reason=stop_reason,
        error=error,
        run_by="caller",
        made_by={},
        made_at=now,
    )


def check_charged(cost: Mapping[str, float], *, reward: RewardSettings) -> None:
    """Refuse a cost that was reported without steps, and that the reward counts as 0: the dearest arm would look free.

    cost: the amounts that were given, by the fields of Cost. Raises InvalidInput naming field and remedy.
    """
    charged = sorted(term for term, price in reward.cost.items() if price > 0.0)
    if cost and reward.weight > 0.0 and charged and not set(charged) & set(cost):
        given = ", ".join(cost)
        raise InvalidInput(
            f"the reward charges {', '.join(charged)}, and the cost has {given} alone: it would count as 0",
            field="steps" if "steps" in charged else "cost",
            remedy=f"send {charged[0]} (0 if there is none), or charge for {given} by the setting reward.cost",
        )
