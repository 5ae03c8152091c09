"""Queries, decisions, outcomes and feedback."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final, Literal, get_args

from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.types.conversations import NO_CONVERSATION, Conversation
from ragbandit.shared.types.facts import decided_unit
from ragbandit.shared.types.names import (
    MAX_AMOUNT,
    NO_TEXT,
    ArmBy,
    ArmName,
    DecisionId,
    DecisionUnit,
    Features,
    FeedbackId,
    FeedbackKind,
    FeedbackSource,
    Json,
    OutcomeStatus,
    PolicyLabel,
    Role,
    RunBy,
)
from ragbandit.shared.types.request_facts import (
    NO_TERMS,
    NOTHING_CONTINUED,
    NOTHING_SENT,
    Continues,
    Sent,
    Terms,
    records_json,
)

#: key in `Outcome.reply`: whether the answer is the transcript of its audio
SPOKEN: Final = "spoken"
#: fields of the message in `Outcome.reply` with images, audio or video
MEDIA: Final = ("images", "image", "audio", "video", "videos")
#: field of that message with signed thoughts, and with all blocks of Anthropic's Messages that a chat cannot have. `at`
#: in a block is the number of characters of text before it. A block "citations" belongs to the text that ends there
BLOCKS: Final = "thinking_blocks"
#: fields of that message that may be larger than texts, with a limit of their own
LARGE_FIELDS: Final = (*MEDIA, BLOCKS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Resources used by one answer. Costs can be added.

    Every amount is clipped to [0, MAX_AMOUNT], so that a server that reports a negative cost cannot increase a reward.
    """

    retriever_calls: int = 0
    #: distinct passages in the model's prompts
    passages: int = 0
    llm_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    #: tokens read from the provider's prompt cache; included in prompt_tokens
    cached_tokens: int = 0
    #: tokens written to the provider's prompt cache; included in prompt_tokens
    cache_write_tokens: int = 0
    #: reasoning tokens; included in completion_tokens
    reasoning_tokens: int = 0
    seconds_retrieve: float = 0.0
    seconds_generate: float = 0.0
    #: duration of the whole answer, waits included
    seconds_total: float = 0.0
    #: price of all calls that have a price
    dollars: float = 0.0
    #: price of the calls without a price, at the most expensive listed price; sums of dollars do not include it
    assumed_dollars: float = 0.0
    #: further turns of a decision: results of tools, and later requests of a task
    turns: int = 0
    #: how the newest priced call was priced. "by": "told" if the server reported the price. "model": model of another
    #: list. "row": conditions of a list's row. "tier": tier of service. "refused": implausible price of the server
    price: Mapping[str, Json] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in AMOUNTS:
            amount = getattr(self, name)
            if not 0 <= amount <= MAX_AMOUNT:
                object.__setattr__(self, name, type(amount)(MAX_AMOUNT if amount > 0 else 0))

    @property
    def charged_dollars(self) -> float:
        """What rewards and limits count: dollars, and assumed dollars of calls without a price."""
        return self.dollars + self.assumed_dollars

    def __add__(self, other: "Cost") -> "Cost":
        sums = {name: getattr(self, name) + getattr(other, name) for name in AMOUNTS}
        return Cost(**sums, price=other.price if other.llm_calls or other.price else self.price)


#: fields of a cost that are numbers
AMOUNTS: Final = tuple(field.name for field in fields(Cost) if field.name != "price")


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """A round of retrieval and generation begins. The number of rounds is the papers' Step."""

    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Retrieved:
    """The retriever returned passages."""

    query: str
    ids: tuple[str, ...]
    scores: tuple[float, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """The model returned a completion."""

    purpose: str
    text: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Branch:
    """The arm applied `rule`, with the result `value`."""

    rule: str
    value: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFailed:
    """A call of the retriever or the model failed after `seconds`."""

    purpose: str
    error: str
    seconds: float


TraceEvent = Round | Retrieved | Generated | Branch | CallFailed


def count_steps(trace: tuple[TraceEvent, ...]) -> int:
    """The papers' Step: number of rounds (Adaptive-RAG, section 4; MBA-RAG, section 4.1)."""
    return sum([isinstance(event, Round) for event in trace])


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A passage in the model's prompt."""

    id: str
    title: str
    #: the first `log.source_chars` characters of the passage
    text: str
    url: str | None = None
    #: score of the passage in its search; scores of different searches cannot be compared
    score: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Outcome of a decision. Every decision has at most one, no matter who ran the arm.

    decision_id: id of the decision
    status: "answered", "exhausted" (the budget was spent) or "failed"
    answer: text of the answer; None if there is none
    trace: events of the run in order; empty if the caller ran the arm
    cost: resources used
    steps: the papers' Step; equals count_steps(trace) if RagBandit ran the arm
    stop_reason: why the arm stopped, in a word
    error: error message; None unless status is "failed"
    run_by: "worker" if RagBandit ran the arm, "caller" if the caller's own code did
    made_by: definition of the arm (params, generator, retriever, budget); distinguishes versions with the same name
    made_at: end of the run, seconds since 1970
    sources: passages in the model's prompts, in the order of their first use; empty if the caller ran the arm
    reply: for arms of the class `model`, the model's reply besides the text: {"message": {"tool_calls": ...},
        "finish_reason": ...}, and if there are any, further fields of the reply ("more"), of its choice ("choice") and
        of its usage ("usage"), and names of its fields that were left out ("omitted") or of the request's ("ignored").
        "spoken" is true if the answer is the transcript of its audio
    """

    decision_id: DecisionId
    status: OutcomeStatus
    answer: str | None
    trace: tuple[TraceEvent, ...]
    cost: Cost
    steps: float
    stop_reason: str
    error: str | None
    run_by: RunBy
    made_by: Mapping[str, Json]
    made_at: float
    sources: tuple[Source, ...] = ()
    reply: Mapping[str, Json] = field(default_factory=dict)


def call_ids(outcome: Outcome) -> list[str]:
    """Ids of the tool calls in an outcome; "" for a call without an id."""
    message = outcome.reply.get("message")
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    if not isinstance(calls, list):
        return []
    return [str(call.get("id") or "") for call in calls]


def is_textless(outcome: Outcome) -> bool:
    """Whether the answer has images, audio or video but no text, so that scorers of texts cannot judge it."""
    return outcome.stop_reason == NO_TEXT and not (outcome.answer or "").strip()


def transcript_of(reply: Mapping[str, Json]) -> str:
    """The text of the audio in a model's reply; "" if it has none."""
    message = reply.get("message")
    audio = message.get("audio") if isinstance(message, Mapping) else None
    text = audio.get("transcript") if isinstance(audio, Mapping) else None
    return text if isinstance(text, str) else ""


def spoken_answer(outcome: Outcome) -> str:
    """The transcript of an answer in audio; "" for an answer that was written."""
    return transcript_of(outcome.reply) if outcome.reply.get(SPOKEN) else ""


def written_answer(outcome: Outcome) -> str | None:
    """The answer without the transcript, which clients of chats get with the audio; None if there is no answer."""
    return None if outcome.answer is None else outcome.answer.removesuffix(spoken_answer(outcome))


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPiece:
    """A piece of a streamed answer. The joined pieces are the answer."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaPiece:
    """A piece of a streamed message other than text, for example of a tool call, in OpenAI's schema."""

    delta: Mapping[str, Json]


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusNote:
    """A note for the user about what the arm is doing, sent before the answer begins."""

    text: str


#: fields of a cost that callers and arms may report, and that a reward may price
REPORTED_COSTS: Final = tuple(name for name in AMOUNTS if name != "assumed_dollars")
COST_TERMS = ("steps", *REPORTED_COSTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Limits of one answer. None means the arm's default."""

    rounds: int | None = None
    #: distinct passages in the model's prompts
    passages: int | None = None
    #: prompt and completion tokens of all calls
    tokens: int | None = None
    #: time since the start of the arm, seconds
    seconds: float | None = None
    #: price of all calls; for a call without a price, the assumed one (`Cost.assumed_dollars`)
    dollars: float | None = None


#: prefix of `Caller.key` for people. Ids of API keys contain no colon
PERSON: Final = "proxy:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Sender of a request. The default is a caller of a service without keys, who may do everything."""

    #: public id of the API key, or "proxy:PERSON" for a person signed in by a proxy; None if no keys are in use
    key: str | None = None
    #: role of the key or person; None if no keys are in use
    role: Role | None = None
    #: the only tenant whose decisions the caller may read and judge; None for all tenants
    tenant: str | None = None
    #: restrictions of the key in addition to its role; JSON values
    scopes: Mapping[str, Json] = field(default_factory=dict)

    @property
    def is_person(self) -> bool:
        """Whether the caller is a person signed in by a proxy."""
        return self.key is not None and self.key.startswith(PERSON)

    @property
    def name(self) -> str:
        """Name of the person or public id of the key; empty if no keys are in use."""
        return (self.key or "").removeprefix(PERSON)


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    text: str


#: prefix of a `Query.session` that the service chose, because the chat came without an id
DERIVED: Final = "derived:"


Period = Literal["day", "month"]


#: units for which the dollars and turns are summed: a session of one key, or a task
TurnKind = Literal["session", "task"]
TURN_KINDS: Final[tuple[TurnKind, ...]] = get_args(TurnKind)
#: who spends: a session, a task, a tenant or a key
SpenderKind = Literal["tenant", "key"] | TurnKind


@dataclass(frozen=True, kw_only=True, slots=True)
class SpendLimit:
    """A budget of the asking tenant or key, or a limit of the question's session or task."""

    kind: SpenderKind
    #: name of the tenant, public id of the key, see `session_spender`, or id of the task's first decision
    name: str
    #: period of a budget; None for sessions and tasks, whose sums have no end
    period: Period | None = None
    unit: Literal["dollars", "turns"] = "dollars"
    most: float
    #: amount that earlier turns of the session or task have used, as read before the decision
    used: float = 0.0
    #: whether the cheapest arm answers questions beyond the limit; otherwise they are refused
    moves: bool = False
    #: error for a question beyond a budget; None for sessions and tasks
    refusal: RagBanditError | None = None

    @property
    def is_reached(self) -> bool:
        """Whether a further turn of the session or task is beyond the limit."""
        return self.period is None and self.used >= self.most

    def __str__(self) -> str:
        unit = self.unit if self.used != 1 else self.unit.removesuffix("s")
        used = f"{'cost' if self.unit == 'dollars' else 'had'} {self.used:g} {unit}"
        return f"the {self.kind} has {used}, and its limit is {self.most:g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One question.

    text: the question without its conversation; it is embedded, searched for and routed
    id: decision id chosen by the caller, which makes the request idempotent; None to generate an id
    context: facts sent by the caller and stored with the decision; the policy uses the keys in the setting `context`
    arms: names of the arms to choose from; None for all configured arms
    budget: limits of the answer
    tenant: the tenant that asks
    arm_by: who chose the arm beforehand, "caller", "calls" or "failover"; None if nobody did. `arms` then has one name
    session: id of the conversation, chosen by the caller or by the service (DERIVED); None without a conversation
    unit: what one draw decides: "turn", this question; "task", all turns of the session until it ends. None for the
        settings
    messages: earlier messages, oldest first; an arm may show them to its model
    asked: the user's own words; None if `text` was not rewritten
    cost_weight: requested cost weight: a number (>= 0) or a name in the setting `cost_weights`; None for reward.weight
    aim: target instead of a cost weight: {"quality": share of the best arm's quality} or a mean cost ({"steps": 1.8})
    api_key: public id of the API key; None if no key was needed
    sent: what the client said besides the question, such as its agent; the parameters that the arm did not get
    continues: what this turn continues: calls whose results it brings, an answer, a response
    terms: what the key, the tenant and their budgets say about the cost weight
    conversation: messages and parameters as the client sent them, for arms of the class `model`; kept until the answer
    limits: budgets of spenders, and limits of its session and task, checked when the decision is stored; not stored
    """

    text: str
    id: str | None = None
    context: Mapping[str, Json] = field(default_factory=dict)
    arms: tuple[str, ...] | None = None
    budget: Budget = Budget()
    tenant: str = "default"
    arm_by: ArmBy | None = None
    session: str | None = None
    unit: DecisionUnit | None = None
    messages: tuple[Message, ...] = ()
    asked: str | None = None
    cost_weight: float | str | None = None
    aim: Mapping[str, float] = field(default_factory=dict)
    api_key: str | None = None
    sent: Sent = NOTHING_SENT
    continues: Continues = NOTHING_CONTINUED
    terms: Terms = NO_TERMS
    conversation: Conversation = NO_CONVERSATION
    limits: tuple[SpendLimit, ...] = field(default=(), compare=False, repr=False)

    @property
    def own_session(self) -> str | None:
        """The caller's id of the conversation; None if there is none, or if the service has chosen the id."""
        return None if self.session is not None and str(self.session).startswith(DERIVED) else self.session

    def at(self, cost_weight: float | None, *, unit: DecisionUnit | None) -> "Query":
        """The query at this cost weight and for this unit."""
        is_same = self.cost_weight == cost_weight and self.unit == unit
        return self if is_same else replace(self, cost_weight=cost_weight, unit=unit)

    @property
    def turn_limits(self) -> list[SpendLimit]:
        """The limits of the question's task and session."""
        return [limit for limit in self.limits if limit.period is None]

    @property
    def reached_limit(self) -> SpendLimit | None:
        """The first limit of the question's task or session that earlier turns have reached; None if there is none."""
        return next((limit for limit in self.limits if limit.is_reached), None)


def request_json(query: Query) -> dict[str, Json]:
    """`sent`, `continues` and `terms` of a query as one JSON object, for the store and for replies."""
    by_caller = query.arm_by == "caller"
    return records_json(query.sent, continues=query.continues, terms=query.terms, by_caller=by_caller)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The arm that was drawn for a query, with everything that is needed to repeat the draw.

    id: a UUIDv7, or the id that the caller chose
    query: the query
    arm: name of the drawn arm
    arms: names of the offered arms; `pmf` and `scores` have the same order
    pmf: probability of every arm after the exploration floor; sums to 1
    propensity: probability of the drawn arm, in (0, 1]
    scores: the policy's value of every arm; None if the policy has no values
    policy: label of the ledger in which the decision is learned
    version: version of the snapshot that decided
    encoder_hash: hash of the encoder that computed `features`
    seed: 64-bit seed of the draw, computed from the decision id and a secret of the store
    floor: smallest probability of every arm
    explored: whether another arm was at least as likely as the drawn one
    fault: why the policy's own pmf was not used; None if it was
    facts: further facts that the policy logs (its price, an LLM's reply); JSON values
    run_by: "worker" if RagBandit runs the arm, "caller" if the caller's own code does
    features: the embedded question, shape (d,), float32; None if the policy does not use features
    made_at: time of the draw, seconds since 1970
    cost_weight: cost weight of the decision and of its reward; None for reward.weight
    turn_of: id of the decision that this turn belongs to: its arm was not drawn, and its cost and feedback count for
        that decision; None for a decision
    arm_by: who chose the arm; None if the policy drew it
    """

    id: DecisionId
    query: Query
    arm: ArmName
    arms: tuple[ArmName, ...]
    pmf: tuple[float, ...]
    propensity: float
    scores: tuple[float, ...] | None
    policy: PolicyLabel
    version: str
    encoder_hash: str
    seed: int
    floor: float
    explored: bool
    fault: str | None
    facts: Mapping[str, Json]
    run_by: RunBy
    features: Features | None = field(repr=False)  # hundreds of numbers, too long to print
    made_at: float
    cost_weight: float | None = None
    turn_of: DecisionId | None = None
    arm_by: ArmBy | None = None

    @property
    def probabilities(self) -> Mapping[ArmName, float]:
        """Arm -> its probability, as `pmf` in the replies of the HTTP API."""
        return dict(zip(self.arms, self.pmf, strict=True))

    @property
    def served(self) -> Query:
        """The query as the policy read it: with the cost weight and the unit at which it was decided."""
        return self.query.at(self.cost_weight, unit=decided_unit(self.facts))


@dataclass(frozen=True, kw_only=True, slots=True)
class Feedback:
    """One judgement of one decision.

    id: id chosen by the caller, which makes it idempotent, or a generated id
    decision_id: id of the judged decision
    kind: "label", "rating", "reward" or "event"
    value: label: tuple of gold answers. rating: float in [0, 1], converted from its scale. reward: float between
        reward.minimum and reward.maximum. event: float in [0, 1] from `feedback_events`, or None if the event is not
        learned. For the other kinds, None withdraws the rater's earlier feedback of this kind
    source: class of the rater: "human", "label" (label queue), "judge", "code" or "event"
    received_at: seconds since 1970
    rater: the rater: a user's id, a model's name; None if unknown
    event: name of the event
    facts: further facts: a judge's model, rubric, reasons, cost; JSON values
    api_key: public id of the API key; None if no key was needed, or if a process of RagBandit judged
    """

    id: FeedbackId
    decision_id: DecisionId
    kind: FeedbackKind
    value: float | tuple[str, ...] | None
    source: FeedbackSource
    received_at: float
    rater: str | None = None
    event: str | None = None
    facts: Mapping[str, Json] = field(default_factory=dict)
    api_key: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """Confirmation that feedback is stored."""

    feedback_id: FeedbackId
    #: whether the same feedback was already stored with this id
    duplicate: bool
    #: whether the decision was already closed; the feedback is then stored and counted, but not learned
    late: bool
    #: "outcome": the decision is learned only after the caller reports its outcome; None if nothing is missing
    waiting_for: Literal["outcome"] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinedDecision:
    """A waiting decision with its outcome, and its feedback in the order of receipt.

    open_until: end of the task that the decision begins, seconds since 1970; None for a single turn
    has_open_turn: whether a later turn of the decision still waits for a worker's answer
    """

    decision: Decision
    outcome: Outcome | None
    feedback: tuple[Feedback, ...]
    open_until: float | None = None
    has_open_turn: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosedDecision:
    """A decision that will not be learned: "closed" (nothing to learn) or "quarantined" (`field` cannot be used)."""

    decision_id: str
    state: Literal["closed", "quarantined"]
    reason: str
    field: str | None = None
