"""Replies about decisions: what was decided, what came of it, and the record of both."""

from typing import (
    Any,
    Literal,
    NotRequired,  # pydantic reads no other before Python 3.12
)

from typing_extensions import TypedDict

from ragbandit.shared.types import (
    DecisionState,
    FeedbackKind,
    FeedbackSource,
    JudgedBy,
    OutcomeStatus,
    RewardSource,
    RunBy,
)


class ErrorDetail(TypedDict):
    """What is wrong, and what to do."""

    code: str
    """Stable name of the kind of error."""
    message: str
    """What is wrong."""
    field: str | None
    """The input that is wrong; null if it is none."""
    remedy: str | None
    """What to do; null if nothing can be said."""


class ErrorReply(TypedDict):
    """Every error has this shape."""

    error: ErrorDetail
    """What is wrong, and what to do."""


# Every endpoint names it ten times: pydantic reads it when somebody asks for the OpenAPI document, not at each start.
ErrorReply.__pydantic_config__ = {"defer_build": True}  # type: ignore[attr-defined] # pydantic's own name


class ReceiptReply(TypedDict):
    """Confirmation that a feedback is stored: the fields of `ragbandit.Receipt`."""

    feedback_id: str
    """Id of the feedback; yours if you sent one."""
    duplicate: bool
    """Whether the same feedback was stored before."""
    late: bool
    """Whether it came after the decision was closed; it is then stored, and not learned."""
    waiting_for: Literal["outcome"] | None
    """What has to be reported before the feedback can be learned; null if nothing."""


class ClientFeedbackReply(ReceiptReply, total=False):
    """Receipt of a feedback, as a client gives it."""

    degraded: bool
    """Its decision was made without the service: nothing was sent."""


class BatchReply(TypedDict):
    """One entry per item, in order."""

    items: list[ReceiptReply | ErrorReply]
    """A receipt or an error for each item, in order."""


class KeptFeedback(TypedDict):
    """One judgement of a decision."""

    id: str
    """Id of the feedback."""
    decision_id: str
    """Id of the decision."""
    kind: FeedbackKind
    """Kind of feedback."""
    value: float | tuple[str, ...] | None
    """The gold answers, the rating on [0, 1], or the reward; null for what takes a judgement back, and for an event
    that is only counted."""
    source: FeedbackSource
    """Who judged."""
    rater: str | None
    """Which person or model of that source judged; null where it is unknown."""
    event: str | None
    """Name of the event; null for other feedback."""
    facts: dict[str, Any]
    """What else the rater reported, for example a judge's model, rubric and reasons."""
    received_at: float
    """When it was stored, seconds since 1970."""
    late: bool
    """Whether it came after the decision was closed; it is then not learned."""


class KeptReward(TypedDict):
    """The reward that was learned: value = quality - weight * cost, clipped to [minimum, maximum]."""

    value: float | None
    """The reward."""
    quality: float | None
    """Quality on [0, 1]; of a raw reward the reward itself."""
    cost: float | None
    """The priced sum of the cost terms."""
    weight: float
    """Weight of cost (lambda)."""
    minimum: float
    """Least reward; below it is clipped."""
    maximum: float
    """Largest reward; above it is clipped."""
    terms: dict[str, float]
    """Price per unit of each cost term."""
    preset: str
    """How the judgements became quality: a quality measure, `rating`, `mixed`, or `reward` for a raw reward."""
    source: RewardSource
    """Whether it was made of feedback, or is the default reward."""
    judged_by: JudgedBy | None
    """The most trusted feedback in it: label, human, judge or event; null for a default reward."""
    surrogates: dict[str, float]
    """Quality by less trusted sources of scores that judged the same answer, such as `{"judge": 0.8}`."""
    sample_weight: float
    """How many rows it counts as when the policy learns it."""
    clipped: bool
    """Whether the reward was outside its bounds."""


class DecisionFields(TypedDict):
    """Fields of a decision."""

    decision_id: str
    """Id of the decision; yours if you sent one."""
    arm: str
    """The arm that was drawn."""
    propensity: float
    """Probability with which it was drawn."""
    pmf: dict[str, float]
    """Probability of every offered arm, floors included; they sum to 1."""
    scores: dict[str, float] | None
    """The policy's value of every offered arm; null if it has none."""
    policy: str
    """Label of the ledger that the policy learns from (setting `policy.label`)."""
    version: str
    """Snapshot of the policy that decided."""
    explored: bool
    """Whether another arm was at least as likely as the one drawn."""
    fault: str | None
    """Why the fallback arm was played instead of the policy's choice; null if it was not."""
    cost_weight: float | None
    """Weight of cost that it was served at, and that its reward is read at; null: that of `reward.weight`."""
    price: str | None
    """Name of that price (setting `cost_weights`): the one that was wanted, or the default of the key or tenant."""


class RouteReply(DecisionFields):
    """A decision that was just made."""

    route_ms: float
    """Milliseconds from the request to the stored decision."""
    question: NotRequired[str]
    """The question that was decided on, where messages came with the one that was sent."""
    trace_id: NotRequired[str]
    """The trace that the decision is in, 32 hex digits; only where telemetry is on."""
    failover: NotRequired[dict[str, Any]]
    """Only of an answer by another arm in place of one that failed: `first`, the decision that was drawn; `arm`, which
    failed; `reason`; `attempt`, from 2."""


class ClientRouteReply(RouteReply, total=False):
    """A decision, as a client gives it."""

    degraded: bool
    """The service was away: the arm is the client's `default_arm`, and nothing is stored."""


class RouteBatchReply(TypedDict):
    """One entry per item, in order."""

    items: list[RouteReply | ErrorReply]
    """A decision or an error for each item, in order."""


class CostReply(TypedDict):
    """Resources that one answer used: the fields of `ragbandit.Cost`."""

    retriever_calls: int
    """Searches."""
    passages: int
    """Distinct passages shown to the model."""
    llm_calls: int
    """Calls of the language model."""
    prompt_tokens: int
    """Tokens read by the model."""
    completion_tokens: int
    """Tokens written by the model."""
    cached_tokens: int
    """Of the tokens read: out of the provider's cache of prompts."""
    cache_write_tokens: int
    """Of the tokens read: written into that cache."""
    reasoning_tokens: int
    """Of the tokens written: a reasoning model's thoughts."""
    seconds_retrieve: float
    """Seconds of searching."""
    seconds_generate: float
    """Seconds of the model's calls."""
    seconds_total: float
    """Seconds from the start of the arm to its end."""
    dollars: float
    """Price of the tokens, where the generator has prices."""


class SourceReply(TypedDict):
    """A passage that the model was shown: the fields of `ragbandit.shared.types.Source`."""

    id: str
    """Id of the passage."""
    title: str
    """Its title."""
    text: str
    """The beginning of the passage (`log.source_chars`)."""
    url: str | None
    """Where it can be read; null where its corpus has no addresses."""
    score: float | None
    """Score in the search that found it; scores compare within one search only."""


class OutcomeFields(TypedDict):
    """Fields of an outcome."""

    status: OutcomeStatus
    """How the arm ended: `answered`, `exhausted` (its budget was spent) or `failed`."""
    answer: str | None
    """The answer; after `exhausted` a draft, if there is one."""
    stop_reason: str
    """Why the arm stopped, for example `answered`, `budget_seconds`, `cancelled`."""
    error: str | None
    """What failed, without secrets; null if nothing did."""
    steps: float
    """Rounds of search and generation."""
    cost: CostReply
    """What the answer used."""
    sources: list[SourceReply]
    """The passages that the model was shown, in the order first shown; only of answers by our workers."""


class SavedFields(TypedDict, total=False):
    """What an answer saved; missing where there is no holdback, or its arm's dollars are not known."""

    saved: float
    """Estimate: mean dollars of an answer by the arm of `policy.holdback` so far, less this answer's."""


class LabelTask(TypedDict):
    """An answer that waits for a label."""

    decision_id: str
    """Id of the decision."""
    question: str
    """What was asked."""
    answer: str
    """The answer to judge."""
    sources: list[SourceReply]
    """The passages that the model was shown."""
    made_at: float
    """When it was asked, seconds since 1970."""


class LabelQueueReply(TypedDict):
    """Answers whose label would teach most."""

    items: list[LabelTask]
    """The newest first."""


class AnswerReply(RouteReply, OutcomeFields, SavedFields):
    """A decision and its outcome."""


class PendingReply(RouteReply):
    """A decision without an outcome yet: ask /v1/decisions/{id}, or send the same request again."""

    status: Literal["pending"]
    """The outcome is not there yet."""
    answer: None
    """Not there yet."""


class OutcomeReply(SavedFields):
    """Confirmation that an outcome is stored."""

    decision_id: str
    """Id of the decision."""
    duplicate: bool
    """Whether this very outcome was stored before."""


class ClientOutcomeReply(OutcomeReply, total=False):
    """Confirmation of an outcome, as a client gives it."""

    degraded: bool
    """Its decision was made without the service: nothing was sent."""


class CancellationReply(TypedDict):
    """State of a decision whose answer is not wanted any more."""

    decision_id: str
    """Id of the decision."""
    cancelled: bool | None
    """Whether the decision ended by being cancelled; null while it has not ended."""
    status: OutcomeStatus | Literal["pending"]
    """How the arm ended; `pending` while it has not."""


class KeptOutcome(OutcomeFields):
    """The outcome of a decision, with its trace."""

    trace: list[dict[str, Any]]
    """Calls of the arm, in order."""
    run_by: RunBy
    """Who ran the arm: our workers, or your own stack."""
    made_by: dict[str, Any]
    """Arm, params, generator, retriever and budget that made the outcome."""
    made_at: float
    """When it was stored, seconds since 1970."""


class MessageReply(TypedDict):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    """Who wrote it."""
    content: str
    """Its text."""


class RecordReply(DecisionFields):
    """All that is stored about a decision. A number that is not finite (in a damaged row) is null."""

    question: str
    """The question that was decided on: as it was sent, or rewritten to stand alone."""
    asked: str | None
    """What the user wrote, where the question was rewritten from a conversation; else null."""
    session_id: str | None
    """The conversation that it belongs to; null where none was named."""
    messages: list[MessageReply]
    """What is stored of the conversation before the question, the oldest first."""
    context: dict[str, Any]
    """Facts of yours, as sent."""
    tenant: str
    """Whose question it is."""
    budget: dict[str, float]
    """Caps that the question asked for."""
    seed: str
    """Seed of the draw, made from the decision's id and a secret of the store."""
    floor: float
    """Exploration floor in force, per arm."""
    encoder_hash: str
    """Fingerprint of the encoder that made the features."""
    run_by: RunBy
    """Who runs the arm: our workers, or your own stack."""
    forced: bool
    """Whether the caller chose the arm; nothing is then learned from it."""
    aim: dict[str, float]
    """What the caller wanted in place of a weight of cost: a share of the best quality, or a mean cost; {}: nothing."""
    request: dict[str, Any]
    """What else is known of the request: parameters that were ignored, ids of other systems."""
    facts: dict[str, Any]
    """What the policy noted about this decision."""
    made_at: float
    """When it was stored, seconds since 1970."""
    state: DecisionState
    """State of the decision on its way to the ledger: see docs/glossary.md."""
    reason: str | None
    """Why it is in this state; null if there is nothing to say."""
    outcome: KeptOutcome | None
    """What came of it; null while there is none."""
    feedback: list[KeptFeedback]
    """All feedback of the decision."""
    reward: KeptReward | None
    """The reward that was learned; null while none was."""
    learned_seq: int | None
    """Number of its update in the ledger; null while it is not learned."""
