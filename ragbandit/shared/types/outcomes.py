"""What an arm did: its steps, what they cost, and the answer."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ragbandit.shared.types.names import DecisionId, Json, OutcomeStatus, RunBy


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


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPiece:
    """The next piece of an answer that is being written; all of them together are the answer."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusNote:
    """What an arm is doing while it has no answer yet, in a few words for a user."""

    text: str


#: What a cost may be made of: fields of Cost, and the papers' Step.
COST_TERMS = ("steps", *(field.name for field in fields(Cost)))
