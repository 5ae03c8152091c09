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
PERSON: Final = "oidc:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who sends a request, as the edge has found out. The default: a service without keys, where anybody may do all."""

    #: public id of the API key, or "oidc:PERSON" of who signed in to a page; None: no keys are in use
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
    #: weight of cost that the caller wants: a number (>= 0), or a name of the setting `prices`; None: the service's
    cost_weight: float | str | None = None
    #: what the caller wants in place of a weight: {"quality": share of the best arm's} or a mean, {"steps": 1.8}
    aim: Mapping[str, float] = field(default_factory=dict)
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
    #: another arm was at least as likely as the one drawn
    explored: bool
    #: why the policy's own pmf was not used; None when it was
    fault: str | None
    #: what else the policy wants in the log (a price in force, an LLM's reply); JSON values
    facts: Mapping[str, Json]
    #: who runs the arm: our workers, or the caller's own stack
    run_by: RunBy
    features: Features | None = field(repr=False)  # hundreds of numbers that nobody reads
    made_at: float
    #: weight of cost that it was served at, and that its reward is read at; None: that of the reward setting
    cost_weight: float | None = None

    @property
    def served(self) -> Query:
        """The query as the policy saw it: at the weight of cost that it was served at."""
        return replace(self.query, cost_weight=self.cost_weight)
