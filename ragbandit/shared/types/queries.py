"""What is asked, and what was decided."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from ragbandit.shared.types.names import ArmName, DecisionId, Features, Json, PolicyLabel, Role, RunBy


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
    cost_weight: weight of cost that the caller wants: a number (>= 0), or a name of the setting `prices`; None: the
        service's
    aim: what the caller wants in place of a weight: {"quality": share of the best arm's} or a mean, {"steps": 1.8}
    api_key: public id of the API key that it came with; None: none was needed
    request: what else the edge knows of the request (parameters it passed over, a trace); JSON values, no part of the
        body
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
