"""Domain values: frozen, keyword-only dataclasses without behaviour beyond derived facts.

Times are seconds since the epoch (UTC, float). Probabilities are float64. Money and energy are not measured
yet; every cost is a count or a number of seconds, so that any price can be put on it later.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, NewType

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "CANCELLED",
    "COST_TERMS",
    "ERASED",
    "IMPORTED",
    "MAX_ERROR",
    "MAX_TEXT",
    "RATE_PATTERN",
    "STICKY",
    "Aggregate",
    "ArmName",
    "Branch",
    "Budget",
    "CalibrationPair",
    "CallFailed",
    "Caller",
    "Checkpoint",
    "CircuitState",
    "ClosedDecision",
    "Cost",
    "Counters",
    "Decision",
    "DecisionId",
    "DecisionState",
    "FeatureRows",
    "Features",
    "Feedback",
    "FeedbackId",
    "FeedbackKind",
    "FeedbackSource",
    "Generated",
    "JoinedDecision",
    "Json",
    "JudgedBy",
    "Matrix",
    "Message",
    "Outcome",
    "OutcomeStatus",
    "PolicyLabel",
    "Query",
    "Receipt",
    "Retrieved",
    "Reward",
    "RewardSource",
    "Role",
    "Round",
    "RunBy",
    "SnapshotInfo",
    "Source",
    "StatusNote",
    "TableRow",
    "TextPiece",
    "TraceEvent",
    "Update",
    "Vector",
    "count_steps",
    "finite_json",
]

# A recursive alias would need Python 3.12's `type`; JSON values are checked where bytes enter.
Json = object

DecisionId = NewType("DecisionId", str)
FeedbackId = NewType("FeedbackId", str)
ArmName = NewType("ArmName", str)
#: The name of a ledger: one learner, one sequence of updates.
PolicyLabel = NewType("PolicyLabel", str)

if TYPE_CHECKING:
    #: One embedded question, shape (d,), float32.
    Features = npt.NDArray[np.float32]
    #: n embedded questions, shape (n, d), float32
    FeatureRows = npt.NDArray[np.float32]
    #: numbers in one and in two dimensions, float64
    Vector = npt.NDArray[np.float64]
    Matrix = npt.NDArray[np.float64]
else:  # names for annotations: importing numpy would take longer than all the rest of `ragbandit --help`
    Features = FeatureRows = Vector = Matrix = object

FeedbackKind = Literal["label", "rating", "reward", "event"]
#: of an API key: what it may do
Role = Literal["reader", "app", "rater", "worker", "operator", "admin"]
Aggregate = Literal["first", "last", "mean", "sum", "min", "max"]
RewardSource = Literal["explicit", "default"]
RunBy = Literal["worker", "caller"]
FeedbackSource = Literal["human", "judge", "code", "event"]
#: of an arm: healthy, suspended, or one question may try it
CircuitState = Literal["closed", "open", "half_open"]
#: the feedback that a reward was made of, the most trusted first: gold answers, raw rewards and checks by code; a
#: person's rating; a model's; what a user did with the answer
JudgedBy = Literal["label", "human", "judge", "event"]
OutcomeStatus = Literal["answered", "exhausted", "failed"]
#: where a decision is, for one ledger: exactly one of these (promise 7)
DecisionState = Literal["learned", "defaulted", "waiting", "closed", "quarantined"]

#: stop reason of a failed outcome whose arm was cut off, or never began, because the caller asked for it
CANCELLED: Final = "cancelled"

#: stop reason of an outcome that came with a log; facts of a decision and made_by of an outcome have the log's format
#: under this key where they were made elsewhere: such a draw cannot be made again
IMPORTED: Final = "imported"
#: in the facts of a decision that stayed on the arm of an earlier turn of its session: it is no draw of the policy
STICKY: Final = "sticky"
#: in the facts of a decision whose texts were erased: "texts", or "texts and features"
ERASED: Final = "erased"

#: longest question or answer, and gold answer of a label, in characters; a longer one is refused
MAX_TEXT: Final = 100_000
#: a rate: so many requests in a second, minute, hour or day, or in several of them ("20/10 seconds")
RATE_PATTERN: Final = r"[1-9][0-9]{0,8}/([1-9][0-9]{0,3} ?)?(second|minute|hour|day)s?"
#: longest error of an outcome that is kept, characters; a longer one is cut there
MAX_ERROR: Final = 20_000


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who sends a request, as the edge has found out. The default: a service without keys, where anybody may do all."""

    #: public id of the API key; None: no keys are in use
    key: str | None = None
    #: None: no keys are in use, and everything is allowed
    role: Role | None = None
    #: whose decisions it may see and judge; None: of every tenant
    tenant: str | None = None
    #: what the key is narrowed to beyond its role; JSON values
    scopes: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One question. `id` is the decision id that the caller chose, or None to have one made."""

    #: the question alone, without the conversation around it: what is encoded, searched for and routed by
    text: str
    id: DecisionId | None = None
    context: Mapping[str, Json] = field(default_factory=dict)
    #: the arms that may be drawn; None means all configured ones
    arms: tuple[ArmName, ...] | None = None
    budget: Budget = Budget()
    tenant: str = "default"
    #: the caller chose the arm: it is the only one in `arms`, and nothing is learned from it
    forced: bool = False
    #: the conversation it belongs to, an id of the caller's
    session: str | None = None
    #: turns that the session stays on the arm of one draw, the drawn one among them; None: as the settings say
    sticky_turns: int | None = None
    #: what was said before, the oldest first; an arm may show it to its model
    messages: tuple[Message, ...] = ()
    #: what the user wrote, where `text` is that rewritten to stand alone
    asked: str | None = None
    #: public id of the API key that it came with
    api_key: str | None = None
    #: what else the edge knows of the request (parameters it passed over, a trace); JSON values, no part of the body
    request: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The arm drawn for a query, with all that is needed to draw it again."""

    id: DecisionId
    query: Query
    arm: ArmName
    #: the arms the draw was made over, in the order of `pmf` and `scores`
    arms: tuple[ArmName, ...]
    #: probability of every arm after the exploration floor; sums to 1
    pmf: tuple[float, ...]
    #: probability of the drawn arm
    propensity: float
    #: the policy's value for every arm, or None if it has none
    scores: tuple[float, ...] | None
    policy: PolicyLabel
    #: the snapshot that decided
    version: str
    encoder_hash: str
    #: 64-bit seed made from the decision id
    seed: int
    #: exploration floor in force, per arm
    floor: float
    #: an arm other than the likeliest was drawn
    explored: bool
    #: why the policy's own pmf was not used; None when it was
    fault: str | None
    #: what else the policy wants in the log (a price in force, an LLM's reply); JSON values
    facts: Mapping[str, Json]
    #: who runs the arm: our workers, or the caller's own stack
    run_by: RunBy
    features: Features | None = field(repr=False)  # hundreds of numbers that nobody reads
    made_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Resources that one answer used. Two costs can be added."""

    retriever_calls: int = 0
    #: distinct passages shown to the model
    passages: int = 0
    llm_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds_retrieve: float = 0.0
    seconds_generate: float = 0.0
    #: wall clock of the whole answer, waits and our own code included
    seconds_total: float = 0.0
    #: price of the tokens, where the generator has one
    dollars: float = 0.0

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
    """Outcome of a decision: one per decision, whoever ran the arm."""

    decision_id: DecisionId
    status: OutcomeStatus
    answer: str | None
    trace: tuple[TraceEvent, ...]
    cost: Cost
    #: the papers' Step; equals count_steps(trace) where we ran the arm
    steps: float
    stop_reason: str
    #: the message of the failure, None unless status is "failed"
    error: str | None
    #: who ran the arm
    run_by: RunBy
    #: what the arm was: params, generator, retriever, budget in force. The name alone would not tell two versions apart
    made_by: Mapping[str, Json]
    made_at: float
    #: the passages that the model was shown, in the order first shown; of our workers' answers alone
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPiece:
    """The next piece of an answer that is being written; all of them together are the answer."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusNote:
    """What an arm is doing while it has no answer yet, in a few words for a user."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Feedback:
    """One judgement of one decision.

    label: `value` is the tuple of gold answers. rating: a float in [0, 1], whatever scale it came in.
    reward: a float used as it is, in the bounds of the reward setting.
    event: what a user did with the answer, a float in [0, 1] by the configuration; None: counted, and not learned.
    None of another kind takes back what the same rater said before, of that kind.
    """

    id: FeedbackId
    decision_id: DecisionId
    kind: FeedbackKind
    value: float | tuple[str, ...] | None
    #: who judged
    source: FeedbackSource
    received_at: float
    #: which one of them: a user's id, a model's name; None: not told
    rater: str | None = None
    #: the name of the event
    event: str | None = None
    #: what else the rater said: a judge's model, rubric, reasons, cost; JSON values
    facts: Mapping[str, Json] = field(default_factory=dict)
    #: public id of the API key that it came with; None: none was needed, or it came from our own processes
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


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationPair:
    """A decision that a model has scored and a person has judged: what scores are calibrated by."""

    #: 1, 2, 3 ... within its ledger
    number: int
    decision_id: DecisionId
    arm: ArmName
    #: the model's, and what people made of it
    score: float
    quality: float
    #: updates with a larger seq are calibrated with it
    after_seq: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reward:
    """value = clip(quality - lambda * cost); quality and cost are kept so that lambda can change later."""

    value: float
    quality: float
    cost: float
    #: the weight of cost
    weight: float
    #: the bounds of the value
    minimum: float
    maximum: float
    #: price per unit of every cost term
    terms: Mapping[str, float]
    #: name of the quality measure, "rating", "mixed", or "reward" where the caller gave the reward itself
    preset: str
    source: RewardSource
    #: the most trusted feedback in it; None: a default reward, or a row of before 0.3
    judged_by: JudgedBy | None = None
    #: the quality before calibration, where it was calibrated
    raw_quality: float | None = None
    #: how many rows this one counts as when a policy learns it (>= 0)
    sample_weight: float = 1.0

    @property
    def clipped(self) -> bool:
        """Whether the bounds changed the value."""
        return self.value != self.quality - self.weight * self.cost


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """One row of the ledger: what a policy learns from one decision."""

    policy: PolicyLabel
    #: gapless per policy, from 1
    seq: int
    decision_id: DecisionId
    arm: ArmName
    #: the question and its context, as the policy saw them
    query: Query
    #: the arms that were offered, with their probabilities and the policy's values, in one order
    arms: tuple[ArmName, ...]
    pmf: tuple[float, ...]
    scores: tuple[float, ...] | None
    propensity: float
    reward: Reward
    feedback_ids: tuple[FeedbackId, ...]
    #: its embedding by the decision's encoder
    features: Features | None = field(repr=False)  # hundreds of numbers that nobody reads
    made_at: float
    #: its decision was made elsewhere: what it cost was not paid here
    imported: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRow:
    """One question of a full-information routing table: quality and steps of every arm."""

    id: str
    question: str
    #: quality of every arm's answer, in [0, 1]
    correct: Mapping[ArmName, float]
    #: what every arm spent, in the papers' Steps (>= 0)
    steps: Mapping[ArmName, float]
    #: pieces of evidence that the question needs (1: single-hop, 2 and more: multi-hop), where somebody knows
    hops: int | None = None
    #: what a caller would send with the question
    context: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotInfo:
    """Description of a snapshot: the policy's parameters after update `last_seq`."""

    #: "<label>-<last_seq>-<first 12 of sha256>"
    version: str
    policy: PolicyLabel
    #: registry name of the algorithm
    algorithm: str
    params: Mapping[str, Json]
    last_seq: int
    #: of the safetensors bytes
    sha256: str
    encoder_hash: str
    made_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A snapshot that is kept, so that a policy is rebuilt from there and not from the beginning of its ledger."""

    snapshot: SnapshotInfo
    #: the sha256 chain over the ledger's updates 1 to last_seq
    chain: str
    #: when a `verify` that found no fault got here; None: none has
    verified_at: float | None = None
    #: that verify checked every decision that was made before this time; and their number
    decided_before: float | None = None
    decisions: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Counts of decisions by state, and of feedback, for one ledger. `balanced` is promise 7 of the design."""

    decided: int
    learned: int
    defaulted: int
    waiting: int
    closed: int
    quarantined: int
    #: feedback rows kept
    feedback: int
    #: of these, the ones that came after their decision was closed
    late_feedback: int
    #: decisions from before the label that have no place in its ledger yet, or of a retired label none any more
    unseen: int = 0
    #: learned decisions whose raters lay .5 or more apart in quality
    disagreements: int = 0
    #: feedback that is not learned until it is released
    held: int = 0

    @property
    def balanced(self) -> bool:
        """Every decision is in exactly one place."""
        return self.decided == self.placed + self.unseen

    @property
    def placed(self) -> int:
        """Decisions that have a place in the ledger."""
        return self.learned + self.defaulted + self.waiting + self.closed + self.quarantined


#: What a cost may be made of: fields of Cost, and the papers' Step.
COST_TERMS = ("steps", *(field.name for field in fields(Cost)))


def finite_json(value: Any) -> Any:
    """The value with None for every float that is not finite, at any depth: JSON has no NaN and no infinity.

    value: dicts, lists, tuples (which become lists) and scalars.
    """
    if isinstance(value, dict):
        return {key: finite_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
