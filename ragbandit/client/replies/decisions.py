"""Replies about decisions, outcomes and feedback."""

from typing import Any, Literal, NotRequired  # before Python 3.12, pydantic reads only this NotRequired

from typing_extensions import TypedDict

from ragbandit.shared.types import (
    ArmBy,
    DecisionState,
    FeedbackKind,
    FeedbackSource,
    JudgedBy,
    OutcomeStatus,
    RewardSource,
    RunBy,
)


class LimitReply(TypedDict):
    """A limit of the question's session or task, with the amount left before this turn."""

    of: Literal["session", "task"]
    """Whether the session or the task has this limit."""
    unit: Literal["dollars", "turns"]
    """Unit of the limit."""
    limit: float
    """Largest allowed amount."""
    remaining: float
    """Amount that was left before this turn."""


class ErrorDetail(TypedDict):
    """An error: code, message, field and remedy."""

    code: str
    """Stable name of the kind of error."""
    message: str
    """What is wrong."""
    field: str | None
    """The wrong input; null if the error is not about an input."""
    remedy: str | None
    """What to do; null if no remedy is known."""


class ErrorReply(TypedDict):
    """Body of every error."""

    error: ErrorDetail
    """What is wrong, and what to do."""
    limits: NotRequired[list[LimitReply]]
    """Limits of the session and the task, if one of them was reached."""


# The validator is built when the OpenAPI document is requested. Building it for all endpoints would delay every start.
ErrorReply.__pydantic_config__ = {"defer_build": True}  # type: ignore[attr-defined] # pydantic's own name


class ReceiptReply(TypedDict):
    """Confirmation that feedback is stored: the fields of `ragbandit.Receipt`."""

    feedback_id: str
    """Id of the feedback: yours if you sent one, else generated."""
    duplicate: bool
    """Whether the same feedback was already stored."""
    late: bool
    """Whether the decision was already closed; the feedback is then stored, but not learned."""
    waiting_for: Literal["outcome"] | None
    """`outcome`: the decision is learned only after its outcome is reported; null if nothing is missing."""


class ClientFeedbackReply(ReceiptReply, total=False):
    """Receipt of feedback, as returned by the client library."""

    degraded: bool
    """Whether the decision was made without the service; nothing was sent then."""


class SessionEndReply(TypedDict):
    """The end of a conversation's task."""

    decision_id: str
    """The decision of the task, for which the judgement counts."""
    ended: int
    """Number of tasks that were open, and are ended now."""
    feedback: ReceiptReply | None
    """The receipt of the judgement; null if none was sent."""


class BatchReply(TypedDict):
    """Reply to a batch."""

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
    """The gold answers, the rating in [0, 1], or the reward; null if the rater withdrew the judgement, or for an event
    that is not learned."""
    source: FeedbackSource
    """Class of the rater."""
    rater: str | None
    """The person or model that judged; null if unknown."""
    event: str | None
    """Name of the event; null for other kinds."""
    facts: dict[str, Any]
    """Further facts, for example a judge's model, rubric and reasons."""
    received_at: float
    """Time of receipt, seconds since 1970."""
    late: bool
    """Whether the decision was already closed; the feedback is then not learned."""


class KeptReward(TypedDict):
    """The learned reward: value = quality - weight * cost, clipped to [minimum, maximum]."""

    value: float | None
    """The reward."""
    quality: float | None
    """Quality in [0, 1]; for a raw reward the reward itself."""
    cost: float | None
    """Sum of the cost terms times their prices."""
    weight: float
    """Cost weight (lambda)."""
    minimum: float
    """Smallest reward; lower values are raised to it."""
    maximum: float
    """Largest reward; higher values are lowered to it."""
    terms: dict[str, float]
    """Price per unit of each cost term."""
    preset: str
    """How the judgements became quality: a quality measure, `rating`, `mixed`, or `reward` for a raw reward."""
    source: RewardSource
    """`explicit`: computed from feedback; `default`: the default reward."""
    judged_by: JudgedBy | None
    """The most trusted class of feedback that the reward was computed from; null for a default reward."""
    surrogates: dict[str, float]
    """Quality that less trusted classes gave to the same answer, such as `{"judge": 0.8}`."""
    sample_weight: float
    """Number of rows that the reward counts as when the policy learns it."""
    clipped: bool
    """Whether `minimum` or `maximum` changed the value."""


class DecisionFields(TypedDict):
    """Fields of a decision."""

    decision_id: str
    """Id of the decision: yours if you sent one, else generated."""
    arm: str
    """The drawn arm."""
    propensity: float
    """Probability with which the arm was drawn."""
    pmf: dict[str, float]
    """Probability of every offered arm after the exploration floor; the probabilities sum to 1."""
    scores: dict[str, float] | None
    """The policy's value of every offered arm; null if the policy has no values."""
    policy: str
    """Label of the ledger that the policy learns from (setting `policy.label`)."""
    version: str
    """Version of the snapshot that decided."""
    explored: bool
    """Whether another arm was at least as likely as the drawn one."""
    fault: str | None
    """Why the fallback arm was used instead of the policy's choice; null if the policy chose."""
    cost_weight: float | None
    """Cost weight of the decision and of its reward; null for the setting `reward.weight`."""
    price: str | None
    """Name of the cost weight in the setting `cost_weights`: the requested one, or the default of the key or tenant."""


class RouteReply(DecisionFields):
    """A new decision."""

    route_ms: float
    """Milliseconds from the request to the stored decision."""
    question: NotRequired[str]
    """The question that was routed; present if the request had messages."""
    trace_id: NotRequired[str]
    """Trace id, 32 hex digits; present if telemetry is on."""
    limits: NotRequired[list[LimitReply]]
    """Limits of the session and the task (`conversation.session_limit`, `task_limit`)."""
    failover: NotRequired[dict[str, Any]]
    """Present if another arm answered because the drawn one failed: `first`, the id of the drawn decision; `arm`, the
    failed arm; `reason`; `attempt`, from 2."""


class PreviewArm(TypedDict):
    """An arm that the question may get."""

    arm: str
    """Name of the arm."""
    probability: float
    """Probability of the arm, floors included."""
    score: float | None
    """Expected reward by the policy; null if the policy has no scores."""


class PreviewReply(TypedDict):
    """The decision that a request would get. Nothing is drawn or stored, and the reply does not predict a draw."""

    arms: list[PreviewArm]
    """The arms on offer."""
    turn_of: str | None
    """The decision that the request would be a turn of; null if it would be a decision of its own."""
    policy: str
    """Label of the policy."""
    version: str
    """Snapshot of the policy."""
    reasons: list[str]
    """Why these arms are on offer, in sentences."""


class ClientRouteReply(RouteReply, total=False):
    """A decision, as returned by the client library."""

    degraded: bool
    """Whether the client decided without the service; the arm is then its `default_arm`, and nothing is stored."""


class RouteBatchReply(TypedDict):
    """Reply to a batch of questions."""

    items: list[RouteReply | ErrorReply]
    """A decision or an error for each item, in order."""


class CostReply(TypedDict):
    """Resources used by one answer: the fields of `ragbandit.Cost`."""

    retriever_calls: int
    """Number of searches."""
    passages: int
    """Distinct passages in the model's prompts."""
    llm_calls: int
    """Number of calls of the language model."""
    prompt_tokens: int
    """Tokens of the prompts."""
    completion_tokens: int
    """Tokens of the completions."""
    cached_tokens: int
    """Prompt tokens read from the provider's prompt cache; included in `prompt_tokens`."""
    cache_write_tokens: int
    """Prompt tokens written to the provider's prompt cache; included in `prompt_tokens`."""
    reasoning_tokens: int
    """Reasoning tokens; included in `completion_tokens`."""
    seconds_retrieve: float
    """Seconds of searching."""
    seconds_generate: float
    """Seconds of the model's calls."""
    seconds_total: float
    """Seconds from the start of the arm to its end."""
    dollars: float
    """Price of all calls that have a price."""
    assumed_dollars: float
    """Price of the calls without a price, at the most expensive listed price; `dollars` does not include it."""
    turns: int
    """Further turns of the decision: results of tools, and later requests of its task."""
    price: dict[str, Any]
    """How the newest call was priced: by its server ("by"), or the model, row and tier of its list."""


class SourceReply(TypedDict):
    """A passage in the model's prompt: the fields of `ragbandit.shared.types.Source`."""

    id: str
    """Id of the passage."""
    title: str
    """Title of the passage's document."""
    text: str
    """First characters of the passage; their number is the setting `log.source_chars`."""
    url: str | None
    """Address of the document; null if the corpus has none."""
    score: float | None
    """Score of the search; only scores of the same search can be compared."""


class OutcomeFields(TypedDict):
    """Fields of an outcome."""

    status: OutcomeStatus
    """How the arm ended: `answered`, `exhausted` (its budget was spent) or `failed`."""
    answer: str | None
    """The answer; after `exhausted` the draft, or null if there is none."""
    stop_reason: str
    """Why the arm stopped, for example `answered`, `budget_seconds`, `cancelled`."""
    error: str | None
    """Error message, without secrets; null if nothing failed."""
    steps: float
    """Rounds of search and generation."""
    cost: CostReply
    """Resources used."""
    sources: list[SourceReply]
    """Passages in the model's prompts, in the order of their first use; empty if the caller ran the arm."""


class SavedFields(TypedDict, total=False):
    """Savings of an answer; missing without `policy.holdback`, or if mean dollars of the holdback's arm are unknown."""

    saved: float
    """Estimate: mean dollars per answer of the arm of `policy.holdback`, minus the dollars of this answer."""


class LabelTask(TypedDict):
    """An answer that waits for a label."""

    item: str
    """Id of the answer, for `POST /v1/label-queue`; the id does not show the arm."""
    kind: Literal["decision", "verdict"]
    """`decision`: its label is learned; `verdict`: one of two answers to the same question, for a bought verdict."""
    decision_id: str | None
    """Id of the decision; null for an answer of a verdict, which was not served."""
    question: str
    """The question."""
    answer: str
    """The answer to judge."""
    sources: list[SourceReply]
    """Passages in the model's prompts; empty for an answer of a verdict, since they could show the arm."""
    made_at: float
    """Time of the decision, seconds since 1970."""


class LabelQueueReply(TypedDict):
    """Answers that wait for a label."""

    items: list[LabelTask]
    """Answers of a verdict first, in a random order within each question; then answers of decisions, newest first."""


class LabelReply(TypedDict):
    """Confirmation that a label is stored."""

    duplicate: bool
    """Whether the answer had this label before."""


class AnswerReply(RouteReply, OutcomeFields, SavedFields):
    """A decision and its outcome."""


class PendingReply(RouteReply):
    """A decision without an outcome yet. Read /v1/decisions/{id}, or send the same request again."""

    status: Literal["pending"]
    """Always `pending`."""
    answer: None
    """Always null."""


class OutcomeReply(SavedFields):
    """Confirmation that an outcome is stored."""

    decision_id: str
    """Id of the decision."""
    duplicate: bool
    """Whether the same outcome was already stored."""


class ClientOutcomeReply(OutcomeReply, total=False):
    """Confirmation of an outcome, as returned by the client library."""

    degraded: bool
    """Whether the decision was made without the service; nothing was sent then."""


class CancellationReply(TypedDict):
    """State of a decision after its cancellation was requested."""

    decision_id: str
    """Id of the decision."""
    cancelled: bool | None
    """Whether the cancellation ended the run; null while the arm is still running."""
    status: OutcomeStatus | Literal["pending"]
    """How the arm ended; `pending` while the arm is still running."""


class KeptOutcome(OutcomeFields):
    """The outcome of a decision, with its trace."""

    trace: list[dict[str, Any]]
    """Events of the run, in order."""
    run_by: RunBy
    """`worker`: RagBandit ran the arm. `caller`: your own code ran it."""
    made_by: dict[str, Any]
    """Definition of the arm: params, generator, retriever and budget."""
    made_at: float
    """End of the run, seconds since 1970."""


class MessageReply(TypedDict):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    """Author of the message."""
    content: str
    """Text of the message."""


class RecordReply(DecisionFields):
    """Everything that is stored about a decision. Numbers that are not finite (in a damaged row) are null."""

    question: str
    """The question that was routed: as sent, or rewritten from its conversation."""
    asked: str | None
    """The user's own words, if the question was rewritten; else null."""
    session_id: str | None
    """Id of the question's conversation; null if there is none."""
    messages: list[MessageReply]
    """Stored messages before the question, oldest first."""
    context: dict[str, Any]
    """Context of the question, as sent."""
    tenant: str
    """The tenant that asked."""
    budget: dict[str, float]
    """Limits in the request."""
    seed: str
    """Seed of the draw, computed from the decision's id and a secret of the store."""
    floor: float
    """Smallest probability of every arm."""
    encoder_hash: str
    """Hash of the encoder that computed the features."""
    run_by: RunBy
    """`worker`: RagBandit runs the arm. `caller`: your own code runs it."""
    forced: bool
    """Whether the caller chose the arm; the decision is then not learned."""
    arm_by: ArmBy | None
    """Who chose the arm: `caller` (it named one, or its request or key allows no other), `calls` (results of tools go
    to the arm of their calls), `failover`, `limit` (of the session or task), `kill switch`, or `task` (it is a later
    turn). `rule`, `needs`, `breaker` and `only arm` left one arm on offer. null: the policy drew it."""
    aim: dict[str, float]
    """Target instead of a cost weight: a share of the best quality, or a mean cost; {} without one."""
    request: dict[str, Any]
    """Further facts about the request: ignored parameters, ids of other systems."""
    facts: dict[str, Any]
    """Further facts that the policy logged."""
    made_at: float
    """Time of the decision, seconds since 1970."""
    turn_of: str | None
    """The decision that this turn belongs to; null for a decision. `state`, `reason`, `feedback` and `reward` are then
    those of that decision."""
    state: DecisionState
    """State of the decision in the ledger; see docs/glossary.md."""
    reason: str | None
    """Why the decision is in this state; null without a reason."""
    outcome: KeptOutcome | None
    """The decision's outcome; null while there is none."""
    feedback: list[KeptFeedback]
    """All feedback on the decision."""
    reward: KeptReward | None
    """The learned reward; null while it is not learned."""
    learned_seq: int | None
    """Number of the decision's update in the ledger; null while it is not learned."""
