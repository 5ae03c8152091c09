"""What an arm did: its steps, what they cost, and the answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final, Literal

from ragbandit.shared.types.names import (
    MAX_AMOUNT,
    ArmName,
    DecisionId,
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Resources that one answer used. Two costs can be added.

    Every amount lies in [0, MAX_AMOUNT]: what a server, an arm or a stored row says beyond that is cut there, so that
    no cost raises a reward above its quality.
    """

    retriever_calls: int = 0
    #: distinct passages shown to the model
    passages: int = 0
    llm_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    #: of prompt_tokens: out of the provider's cache of prompts, and written into it
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    #: of completion_tokens: a reasoning model's thoughts
    reasoning_tokens: int = 0
    seconds_retrieve: float = 0.0
    seconds_generate: float = 0.0
    #: wall clock of the whole answer, waits and our own code included
    seconds_total: float = 0.0
    #: price of the tokens, where the generator has one
    dollars: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            amount = getattr(self, name)
            if not 0 <= amount <= MAX_AMOUNT:
                object.__setattr__(self, name, type(amount)(MAX_AMOUNT if amount > 0 else 0))

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """A retrieve-and-generate round begins: the papers' Step is the number of these."""

    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Retrieved:
    """Passages came back for one retriever call."""

    query: str
    ids: tuple[str, ...]
    scores: tuple[float, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """The model answered one call."""

    purpose: str
    text: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Branch:
    """The arm took a branch: which rule, and what it saw."""

    rule: str
    value: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFailed:
    """A call to the retriever or the model failed; it cost `seconds`."""

    purpose: str
    error: str
    seconds: float


TraceEvent = Round | Retrieved | Generated | Branch | CallFailed


def count_steps(trace: tuple[TraceEvent, ...]) -> int:
    """The papers' Step: retrieve-and-generate rounds (Adaptive-RAG, section 4; MBA-RAG, section 4.1)."""
    return sum(isinstance(event, Round) for event in trace)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A passage that the model was shown for an answer."""

    id: str
    title: str
    #: the beginning of it, as far as outcomes keep it
    text: str
    #: where it comes from, if its corpus says so
    url: str | None = None
    #: of the search that found it; scores compare within one search only
    score: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Outcome of a decision: one per decision, whoever ran the arm.

    decision_id: of the decision that it ends
    status: "answered", "exhausted" (the budget ran out) or "failed"
    answer: the text; None: there is none
    trace: what the arm did, in order; empty where the caller ran it
    cost: what it used
    steps: the papers' Step; equals count_steps(trace) where we ran the arm
    stop_reason: why it stopped, in a word
    error: the message of the failure; None unless status is "failed"
    run_by: who ran the arm: "worker" or "caller"
    made_by: what the arm was: params, generator, retriever, budget in force. The name alone would not tell two versions
        apart
    made_at: when it ended, seconds since 1970
    sources: the passages that the model was shown, in the order first shown; of our workers' answers alone
    reply: of an arm that passes a chat on, what its model replied beside the text: {"message": {"tool_calls": ...},
        "finish_reason": ...}
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


def calls_of(outcome: Outcome) -> list[str]:
    """Ids of the tools' calls that an outcome asks for, in their order, "" for a call without one; []: no calls."""
    message = outcome.reply.get("message")
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    return [str(call.get("id") or "") for call in calls] if isinstance(calls, list) else []


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPiece:
    """The next piece of an answer that is being written; all of them together are the answer."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaPiece:
    """What a model's message has beside its text, as it is written: calls of tools, for example."""

    #: see `shared.model_replies`
    delta: Mapping[str, Json]


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusNote:
    """What an arm is doing while it has no answer yet, in a few words for a user."""

    text: str


#: What a cost may be made of: fields of Cost, and the papers' Step.
COST_TERMS = ("steps", *(field.name for field in fields(Cost)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Caps on one answer; None means the arm's own default."""

    #: retrieve-and-generate rounds
    rounds: int | None = None
    #: distinct passages shown to the model
    passages: int | None = None
    #: prompt plus completion tokens over all calls
    tokens: int | None = None
    #: wall-clock seconds from the start of the arm
    seconds: float | None = None
    #: price of the generator's tokens, where it has a price
    dollars: float | None = None


#: how `Caller.key` begins of a person; public ids of keys have no colon
PERSON: Final = "proxy:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who sends a request, as the edge has found out. The default: a service without keys, where anybody may do all."""

    #: public id of the API key, or "proxy:PERSON" of whom a proxy has signed in; None: no keys are in use
    key: str | None = None
    #: None: no keys are in use, and everything is allowed
    role: Role | None = None
    #: whose decisions it may see and judge; None: of every tenant
    tenant: str | None = None
    #: what the key is narrowed to beyond its role; JSON values
    scopes: Mapping[str, Json] = field(default_factory=dict)

    @property
    def is_person(self) -> bool:
        """Whether a person signed in, and no key is used."""
        return self.key is not None and self.key.startswith(PERSON)

    @property
    def name(self) -> str:
        """The person or the key's public id; empty where no keys are in use."""
        return (self.key or "").removeprefix(PERSON)


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One question.

    text: the question alone, without the conversation around it: what is encoded, searched for and routed by
    id: the decision id that the caller chose: makes the request idempotent; None: one is made
    context: facts of the caller, kept with the decision; the keys that the setting `context` declares move the choice
    arms: names of the arms that may be drawn; None: all configured ones
    budget: caps on the answer
    tenant: whose question it is
    forced: the caller chose the arm: it is the only one in `arms`, and nothing is learned from it
    session: the conversation it belongs to, an id of the caller's; None: none
    sticky_turns: turns that the session stays on the arm of one draw, the drawn one among them; None: as the settings
        say
    messages: what was said before, the oldest first; an arm may show it to its model
    asked: what the user wrote, where `text` is that rewritten to stand alone; None: `text` is what was written
    cost_weight: weight of cost that the caller wants: a number (>= 0), or a name of the setting `cost_weights`; None:
        the service's
    aim: what the caller wants in place of a weight: {"quality": share of the best arm's} or a mean, {"steps": 1.8}
    api_key: public id of the API key that it came with; None: none was needed
    request: what else the edge knows of the request (parameters it passed over, a trace); JSON values, no part of the
        body
    chat: the messages and parameters of a chat completion as they came, by OpenAI's names, for arms that pass them on;
        kept until the answer is there
    """

    text: str
    id: str | None = None
    context: Mapping[str, Json] = field(default_factory=dict)
    arms: tuple[str, ...] | None = None
    budget: Budget = Budget()
    tenant: str = "default"
    forced: bool = False
    session: str | None = None
    sticky_turns: int | None = None
    messages: tuple[Message, ...] = ()
    asked: str | None = None
    cost_weight: float | str | None = None
    aim: Mapping[str, float] = field(default_factory=dict)
    api_key: str | None = None
    request: Mapping[str, Json] = field(default_factory=dict)
    chat: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The arm drawn for a query, with all that is needed to draw it again.

    id: a UUIDv7, or the id that the caller chose
    query: what was asked
    arm: the name of the arm drawn
    arms: the arms the draw was made over, in the order of `pmf` and `scores`
    pmf: probability of every arm after the exploration floor; sums to 1
    propensity: probability of the drawn arm, in (0, 1]
    scores: the policy's value for every arm; None: it has none
    policy: the ledger that the decision waits for and is learned in
    version: the snapshot that decided
    encoder_hash: of the encoder that made `features`
    seed: 64-bit seed of the draw, made from the decision id and a secret of the store
    floor: exploration floor in force, per arm
    explored: another arm was at least as likely as the one drawn
    fault: why the policy's own pmf was not used; None: it was
    facts: what else the policy wants in the log (a price in force, an LLM's reply); JSON values
    run_by: who runs the arm: "worker", ours, or "caller", the caller's own stack
    features: the embedded question, shape (d,), float32; None: the policy reads none
    made_at: when it was drawn, seconds since 1970
    cost_weight: weight of cost that it was served at, and that its reward is read at; None: that of the reward setting
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
    features: Features | None = field(repr=False)  # hundreds of numbers that nobody reads
    made_at: float
    cost_weight: float | None = None

    @property
    def served(self) -> Query:
        """The query as the policy saw it: at the weight of cost that it was served at."""
        return replace(self.query, cost_weight=self.cost_weight)


@dataclass(frozen=True, kw_only=True, slots=True)
class Feedback:
    """One judgement of one decision.

    id: the caller's own, or one that was made: makes it idempotent
    decision_id: of the decision that is judged
    kind: "label", "rating", "reward" or "event"
    value: of a label the tuple of gold answers; of a rating a float in [0, 1], whatever scale it came in; of a reward a
        float used as it is, in the bounds of the reward setting; of an event what the configuration says that it is
        worth, a float in [0, 1], or None: counted, and not learned. None of another kind than event takes back what the
        same rater said before, of that kind
    source: who judged: "human", "label" (of the label queue), "judge", "code" or "event"
    received_at: seconds since 1970
    rater: which one of them: a user's id, a model's name; None: not told
    event: the name of the event
    facts: what else the rater said: a judge's model, rubric, reasons, cost; JSON values
    api_key: public id of the API key that it came with; None: none was needed, or it came from our own processes
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
    """Confirmation that a feedback is stored."""

    feedback_id: FeedbackId
    #: the same body came before under this id
    duplicate: bool
    #: the decision was already closed: kept and counted, not learned
    late: bool
    #: "outcome": nothing is learned before the caller reports the decision's outcome; None: nothing is missing
    waiting_for: Literal["outcome"] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinedDecision:
    """A waiting decision with its outcome and feedback."""

    decision: Decision
    outcome: Outcome | None
    #: in the order received
    feedback: tuple[Feedback, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosedDecision:
    """A decision that will not be learned: "closed" (nothing to learn) or "quarantined" (a value cannot be used)."""

    decision_id: str
    state: Literal["closed", "quarantined"]
    reason: str
    #: the field that cannot be used, where it is known
    field: str | None = None
