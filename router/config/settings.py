"""Settings: every section with its defaults and ranges; `config.loading` reads them from a file and the environment."""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from ragbandit.router.config.context_schema import ContextKey, check_columns
from ragbandit.router.config.named_sections import (
    DEFAULT,
    FACTS,
    Name,
    SectionName,
    check_facts,
    expanded,
    with_named_sections,
)
from ragbandit.router.config.sections import (
    ConversationSettings,
    CostWeight,
    Count,
    EncoderSettings,
    GeneratorSettings,
    JudgeSettings,
    LearningSettings,
    RetrieverSettings,
    RewardSettings,
    RolloutSettings,
    Seconds,
    Section,
)
from ragbandit.router.config.server import ServerSettings, TenantSettings
from ragbandit.shared.formats import known_choices
from ragbandit.shared.types import MAX_ARMS

__all__ = [
    "DEFAULT",
    "EncoderSettings",
    "GeneratorSettings",
    "JudgeSettings",
    "LearningSettings",
    "RetrieverSettings",
    "RewardSettings",
    "ServerSettings",
    "TenantSettings",
]

#: for how long an outcome counts in the circuit breaker, seconds
COUNTED_S: Final = 3600.0

_DEFAULT_ARMS: dict[str, dict[str, Any]] = {"no_retrieval": {}, "single_step": {}, "multi_step": {}}

Share = Annotated[float, Field(ge=0, le=1)]


#: default sum of the floors of all offered arms
FLOORS: Final = 0.04


class HoldbackSettings(Section):
    """A holdout: a fixed share of the questions for one arm, whatever the policy says; `ragbandit report` compares.

    Excluded: forced and pinned arms, turns that stay, and questions for which the arm is the only one or not offered.
    """

    #: the arm that would answer without a router; with policy.incumbent, the same one
    arm: Annotated[str, Field(min_length=1)]
    #: its share of the questions, in addition to the policy's own choices
    share: Annotated[float, Field(gt=0, le=0.5)] = 0.02


class PolicySettings(Section):
    """The policy that decides, and the ledger that it learns from."""

    #: a registered policy, or "package.module:Class"
    name: str = "mba"
    #: the ledger's name; a new label starts a new ledger from all decisions in the store
    label: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}$")] = "main"
    #: params of the policy; what is left out has its default
    params: dict[str, Any] = Field(default_factory=dict)
    #: least probability of every offered arm; None: 0.04 / K of K offered arms
    floor: Annotated[float, Field(ge=0, le=0.5)] | None = None
    #: least probability of an arm until the policy has learned cold_start_outcomes of it; 0 is none
    cold_start_floor: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    #: learned outcomes of an arm after which cold_start_floor no longer holds for it
    cold_start_outcomes: Annotated[int, Field(ge=0)] = 30
    #: arm played when the policy breaks its contract, and while it is rebuilt from the ledger if nothing that has
    #: learned can decide; None: single_step. The first arm where it is not offered
    fallback: str | None = None
    #: the arm that answered before the router did. The policy is restricted so that, from the 100th question on, the
    #: reward is at least 1 - harm of this arm's reward (measured, not proved). None: no restriction
    incumbent: str | None = None
    #: share of the incumbent's reward that may be lost, above 0
    harm: Annotated[float, Field(gt=0, le=1)] = 0.05
    #: a holdout: a fixed share of the questions for the arm that would answer without a router; null: none
    holdback: HoldbackSettings | None = None

    def floor_of(self, arms: int) -> float:
        """The floor in force where so many arms (>= 1) are offered."""
        return FLOORS / arms if self.floor is None else self.floor


class BudgetSettings(Section):
    """Caps on every answer; a query may ask for less, never for more."""

    #: rounds of search and generation; None: no limit
    rounds: Count | None = None
    #: distinct passages shown to the model; None: no limit
    passages: Count | None = None
    #: tokens read and written over all calls; None: no limit
    tokens: Count | None = None
    #: seconds from the start of the arm
    seconds: Seconds = 120.0
    #: price of the tokens, where the generator has a `price`; None: no limit
    dollars: Annotated[float, Field(gt=0)] | None = None


class HealthSettings(Section):
    """The circuit breaker: an arm that only fails is not offered for a while."""

    #: outcomes of an arm that failed one after the other; 0: arms are offered however often they fail
    failures: Annotated[int, Field(ge=0, le=1000)] = 5
    #: how long such an arm is left out before it is tried again, at most COUNTED_S
    cool_down_s: Seconds = 30.0

    @field_validator("cool_down_s")
    @classmethod
    def _within_memory(cls, cool_down_s: float) -> float:
        if cool_down_s > COUNTED_S:
            raise ValueError(
                f"{cool_down_s:g} s is longer than an outcome counts; set it to {COUNTED_S:g} at most, "
                "or take the arm out of `arms`"
            )
        return cool_down_s


class RetentionSettings(Section):
    """When the oldest decisions leave the store, with all that belongs to them; docs/store.md says what stays."""

    #: days after which a decision leaves; None: no limit of age
    days: Annotated[float, Field(gt=0)] | None = None
    #: size of the database, in 10^9 bytes, above which the oldest decisions leave; None: no limit of size
    gb: Annotated[float, Field(gt=0)] | None = None


class LogSettings(Section):
    """What decisions and outcomes keep of texts, and the form of the processes' log."""

    #: full: store questions, contexts, answers, traces and messages of errors; none: store none of them, except the
    #: keys of a context that `context` declares, which policies learn from.
    #: Without texts labels cannot be learned from, workers cannot run arms, and policies cannot read questions
    text: Literal["full", "none"] = "full"
    #: characters of every passage shown to the model that an outcome keeps among its sources; 0: ids, titles and
    #: addresses alone. Without texts (`text`) no sources are kept
    source_chars: Annotated[int, Field(ge=0, le=100_000)] = 2000
    #: lines of the processes' own log: text for people, or one JSON object in a line, for what collects logs
    format: Literal["text", "json"] = "text"


class TelemetrySettings(Section):
    """Traces by OpenTelemetry (the extra `otel`), sent by OTLP over HTTP. See docs/telemetry.md."""

    #: make traces of requests, decisions, answers and feedback. OTEL_EXPORTER_OTLP_ENDPOINT says where they are sent
    enabled: bool = False
    #: the name of this service in them, where OTEL_SERVICE_NAME gives none
    service_name: Annotated[str, Field(min_length=1, max_length=200)] = "ragbandit"


class WorkerSettings(Section):
    """Processes that `ragbandit up` starts."""

    #: answer workers that `ragbandit up` starts
    answer: Annotated[int, Field(ge=0, le=64)] = 1
    #: questions that one answer process works on at once with each of its generators; None: as many as that takes
    concurrency: Annotated[int, Field(ge=1, le=256)] | None = None
    #: answers that the service's own process works on at once, of arms that only wait for servers (classes `model` and
    #: `http`, and others whose generator and retriever are servers); further ones wait for a worker, or for the service
    #: if there is no worker; 0: workers answer all questions
    inline: Annotated[int, Field(ge=0, le=10_000)] = 256
    #: how often a worker looks in SQL for work whose notification was lost
    sweep_interval_s: Seconds = 2.0


class Settings(Section):
    """All settings."""

    #: folder of SQLite, snapshots, indexes and logs
    data_dir: Annotated[str, Field(min_length=1)] = ".ragbandit"
    #: None: SQLite under data_dir
    database_url: str | None = None
    #: None: a private redis-server started by `ragbandit up`
    redis_url: str | None = None
    #: where snapshots lie; None: data_dir/snapshots. A path or an fsspec URL
    snapshots: str | None = None
    #: the arms to choose between, by name, with their params; `run_by: caller` for an arm that your own stack runs;
    #: `generator` and `retriever` for one that workers run with another than the default; `grid` for several at once,
    #: as {class: multi_step, grid: {rounds: [2, 4]}}; `facts` for what an arm shares with others, as {model: small}.
    #: docs/strategies.md says more
    arms: dict[Name, dict[str, Any]] = Field(
        default_factory=lambda: dict[str, dict[str, Any]](_DEFAULT_ARMS), min_length=1, max_length=MAX_ARMS
    )
    #: preset of every arm that has it and names none: "chat" for large chat models; None: "small", for small models
    arms_preset: Annotated[str, Field(min_length=1)] | None = None
    #: what callers send with a question that may move the choice, by key: {type: number}, {type: boolean},
    #: {type: category, values: [...]} or {type: category, hashed: 32}, {type: words, hashed: 32, most: 8}; without a
    #: caller: {type: tenant, hashed: 32}, {type: language}, {type: question_length}. docs/context.md says more
    context: dict[str, ContextKey] = Field(default_factory=dict)
    policy: PolicySettings = PolicySettings()
    reward: RewardSettings = RewardSettings()
    #: name -> weight of cost, in place of reward.weight, that a question may come with: {economy: 0.2, quality: 0.01}
    cost_weights: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")], CostWeight] = Field(
        default_factory=dict, max_length=20
    )
    learning: LearningSettings = LearningSettings()
    encoder: EncoderSettings = EncoderSettings()
    retriever: RetrieverSettings = RetrieverSettings()
    #: retrievers beside `retriever`, each a section like it, that arms name by `retriever: NAME`
    retrievers: dict[SectionName, RetrieverSettings] = Field(default_factory=dict, max_length=20)
    generator: GeneratorSettings = GeneratorSettings()
    #: generators beside `generator`, each a section like it, that arms name by `generator: NAME`
    generators: dict[SectionName, GeneratorSettings] = Field(default_factory=dict, max_length=20)
    #: user action -> the quality that it implies, in [0, 1]; null: stored and counted, not learned
    feedback_events: dict[Name, Share | None] = Field(default_factory=dict, max_length=64)
    conversation: ConversationSettings = ConversationSettings()
    judge: JudgeSettings = JudgeSettings()
    budget: BudgetSettings = BudgetSettings()
    health: HealthSettings = HealthSettings()
    rollout: RolloutSettings = RolloutSettings()
    log: LogSettings = LogSettings()
    retention: RetentionSettings = RetentionSettings()
    server: ServerSettings = ServerSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    #: tenant -> its budgets and weights of cost; "default" are those of every tenant that has none of its own
    tenants: dict[str, TenantSettings] = Field(default_factory=dict)
    workers: WorkerSettings = WorkerSettings()

    @field_validator("arms", mode="before")
    @classmethod
    def _bare_arms(cls, arms: object) -> object:
        # An arm without params is written `single_step:` in YAML, which reads as None.
        if not isinstance(arms, dict) or len(arms) > MAX_ARMS:
            return arms  # pydantic refuses it
        return expanded({k: {} if v is None else v for k, v in arms.items()})

    @model_validator(mode="before")
    @classmethod
    def _sections_by_name(cls, tree: Any) -> Any:
        """A generator that is given by its name becomes the section of that name."""
        return with_named_sections(tree) if isinstance(tree, dict) else tree

    @field_validator("context")
    @classmethod
    def _learnable(cls, context: dict[str, ContextKey]) -> dict[str, ContextKey]:
        check_columns(context)
        return context

    @model_validator(mode="after")
    def _consistent(self) -> "Settings":
        for name, params in self.arms.items():
            check_facts(params.get(FACTS), field=f"arms.{name}.{FACTS}")
        default, bounds = self.learning.default_reward, self.reward
        if default is not None and not bounds.minimum <= default <= bounds.maximum:
            raise ValueError(
                f"learning.default_reward: {default} is outside [{bounds.minimum}, {bounds.maximum}], "
                "the bounds in reward.minimum and reward.maximum"
            )
        if self.learning.wait_s == 0 and self.learning.aggregate != "first":
            raise ValueError(
                f"learning.aggregate: {self.learning.aggregate!r} has nothing to aggregate while the first feedback "
                "closes a decision; set learning.wait_s above 0"
            )
        floor, arms = self.policy.floor_of(len(self.arms)), len(self.arms)
        if floor * arms > 1:
            digits = 10 ** (len(str(arms)) + 1)
            most = digits // arms / digits
            raise ValueError(f"policy.floor: {arms} arms x {floor:g} = {arms * floor:g} > 1; use at most {most:g}")
        for name, tenant in self.tenants.items():
            self._check_price(tenant.cost_weight, among=tenant.cost_weights, field=f"tenants.{name}.cost_weight")
        sticky = self.conversation.sticky_turns > 1 or self.conversation.sticky_prefix
        if sticky and self.policy.incumbent is not None:
            raise ValueError(
                "conversation.sticky_turns: what policy.incumbent promises holds for turns that are drawn; set "
                "conversation.sticky_turns: 0 and conversation.sticky_prefix: false, or policy.incumbent: null"
            )
        return self

    @model_validator(mode="after")
    def _readable(self) -> "Settings":
        readers = {
            "judge.generator: null": self.judge.generator,
            "reward.check: null": self.reward.check,
            "learning.labels_per_day: 0": self.learning.labels_per_day or None,
        }
        for off, reader in readers.items():
            if reader is not None and self.log.text != "full":
                name = off.partition(":")[0]
                raise ValueError(
                    f"{name}: it reads questions and answers, and log.text: {self.log.text} keeps none; "
                    f"set log.text: full, or {off}"
                )
        return self

    def _check_price(self, wanted: float | str | None, *, among: list[float] | None, field: str) -> None:
        weight = self.cost_weights.get(wanted) if isinstance(wanted, str) else wanted
        if wanted is not None and weight is None:
            raise ValueError(
                f"{field}: {wanted!r} is not in the setting cost_weights; "
                f"{known_choices(self.cost_weights, given=wanted)}"
            )
        if weight is not None and among is not None and not among[0] <= weight <= among[1]:
            raise ValueError(f"{field}: {weight:g} is not in cost_weights, {among}")

    def tenant(self, name: str) -> TenantSettings:
        """What a tenant may have: as its own entry says, or else the one named "default"."""
        return self.tenants.get(name) or self.tenants.get("default") or TenantSettings()

    @property
    def database(self) -> str:
        """The database URL in force."""
        return self.database_url or f"sqlite:///{Path(self.data_dir).absolute() / 'ragbandit.db'}"

    @property
    def snapshot_root(self) -> str:
        """The folder or URL of the snapshots in force."""
        return self.snapshots or str(Path(self.data_dir).absolute() / "snapshots")

    @property
    def named_generators(self) -> dict[str, GeneratorSettings]:
        """Every generator by its name; "default" is the section `generator`."""
        return {DEFAULT: self.generator, **self.generators}

    @property
    def named_retrievers(self) -> dict[str, RetrieverSettings]:
        """Every retriever by its name; "default" is the section `retriever`."""
        return {DEFAULT: self.retriever, **self.retrievers}

    @property
    def worker_arms(self) -> dict[str, dict[str, Any]]:
        """The arms that our workers run, with their params: all but those marked `run_by: caller`."""
        ours = {name: params for name, params in self.arms.items() if params.get("run_by") != "caller"}
        return {name: {key: one for key, one in params.items() if key != FACTS} for name, params in ours.items()}

    @property
    def arm_facts(self) -> dict[str, dict[str, Any]]:
        """Arm -> its `facts`, for arms that have them or that a grid made."""
        return {name: dict(params[FACTS]) for name, params in self.arms.items() if params.get(FACTS)}
