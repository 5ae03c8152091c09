"""Settings: every section with its defaults and ranges; `config.loading` reads them from a file and the environment."""

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote

from pydantic import AfterValidator, Field, field_validator, model_validator

from ragbandit.router.config.context_schema import ContextKey, check_columns
from ragbandit.router.config.grids import FACTS, check_facts, expand_grids
from ragbandit.router.config.learning import (
    LEAST_SHARE,
    CostWeight,
    LearningSettings,
    PolicyDefinition,
    PolicySettings,
    RewardSettings,
)
from ragbandit.router.config.named_sections import DEFAULT, Name, SectionName, with_named_sections
from ragbandit.router.config.rules import MOST_RULES, Rule, RuleBook, check_rules
from ragbandit.router.config.section import Count, Seconds, Section, extended
from ragbandit.router.config.sections import (
    ConversationSettings,
    EncoderSettings,
    GeneratorSettings,
    RetrieverSettings,
    RolloutSettings,
)
from ragbandit.router.config.server import ServerSettings, TenantSettings
from ragbandit.shared.files import private_socket
from ragbandit.shared.texts.formats import known_choices
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.shared.types import MAX_ARMS

#: age up to which an outcome counts in the circuit breaker, seconds
COUNTED_S: Final = 3600.0

_DEFAULT_ARMS: dict[str, dict[str, Any]] = {"no_retrieval": {}, "single_step": {}, "multi_step": {}}

Share = Annotated[float, Field(ge=0, le=1)]

#: scheme in URLs of hosting providers -> scheme that our clients take
_SCHEMES: Final = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "valkey": "redis",
    "valkeys": "rediss",
}
#: option of redis-py whose value has the prefix "CERT_" in URLs for Celery
_CERT_REQS: Final = re.compile(r"(?<=ssl_cert_reqs=)(?:CERT_)?(NONE|OPTIONAL|REQUIRED)\b", re.IGNORECASE)


def normalized_url(url: str | None) -> str | None:
    """The URL in the form that our clients take, without the line break at the end of a mounted secret."""
    scheme, sign, rest = _CERT_REQS.sub(lambda found: found[1].lower(), (url or "").strip(" \t\r\n\"'")).partition(
        "://"
    )
    if scheme.lower().startswith("postgres"):
        rest = _with_hosts(rest)
    return f"{_SCHEMES.get(scheme.lower(), scheme.lower())}{sign}{rest}" if sign else url


def _with_hosts(rest: str) -> str:
    """An address with several hosts and ports, or with the folder of a socket, that libpq takes, as SQLAlchemy does."""
    address, _, query = rest.partition("?")
    login, at, place = address.rpartition("@")
    hosts, _, name = place.partition("/")
    folder, _, port = unquote(hosts).partition(":")
    if folder.startswith("/"):
        hosts = folder + (f"&port={port}" if port else "")
    elif ":" not in hosts or not re.fullmatch(r"[\w.-]+(?::\d+)?(?:,[\w.-]+(?::\d+)?)+", hosts):
        return rest
    return f"{login}{at}/{name}?host={hosts.replace(',', '&host=')}{query and f'&{query}'}"


#: name of the param with a text for the policy `llm`: what the arm does, and for which questions it is right
DESCRIPTION: Final = "description"
MAX_DESCRIPTION: Final = 2000


class JudgeSettings(Section):
    """The judge: a language model that scores answers without another judgement. See docs/judge.md."""

    #: model of the judge: a section like `generator`, or a name in `generators`. None turns the judge off
    generator: GeneratorSettings | None = None
    #: share of the decisions that are judged, after the first `judge.first`; a secret draw selects them.
    #: With a holdback or an incumbent, more answers of that arm are judged, and fewer of the others
    share: Annotated[float, Field(ge=0, le=1)] = 0.1
    #: every answer is judged until this many decisions are learned or wait for the judge: early labels are worth most
    first: Annotated[int, Field(ge=0, le=100_000)] = 60
    #: maximum number of judgements started per day (UTC); the rest wait for the next day. None: no limit
    judgements_per_day: Count | None = 1000
    #: maximum number of tokens, prompt and completion, per day (UTC); calls in progress may exceed it. None: no limit
    tokens_per_day: Count | None = None
    #: maximum dollars per day (UTC), at `judge.generator.token_prices`; calls in progress may exceed it. None: no limit
    dollars_per_day: Annotated[float, Field(gt=0)] | None = None
    #: age after which a waiting answer is no longer judged, seconds
    expire_s: Seconds = 2 * 86400.0
    #: maximum number of answers that wait for the judge; further answers are counted, but not judged
    max_waiting: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    #: answers that a judge process works on in parallel; None: the number of parallel calls of its generator
    concurrency: Annotated[int, Field(ge=1, le=256)] | None = None
    #: time limit of a reply, seconds
    seconds: Seconds = 60.0
    #: maximum number of tokens of a reply, reasoning tokens included
    max_tokens: Annotated[int, Field(ge=64)] = 512
    #: attempts per answer; an attempt fails if the reply cannot be parsed or the worker dies
    attempts: Annotated[int, Field(ge=1, le=20)] = 4
    #: pause after the first failed attempt, seconds; it doubles with each further attempt, up to an hour
    retry_s: Seconds = 30.0
    #: maximum number of passages in the judge's prompt
    passages: Annotated[int, Field(ge=0, le=50)] = 8
    #: maximum number of words per passage
    passage_words: Annotated[int, Field(ge=10)] = 200
    #: maximum number of characters of the question and of the answer
    text_chars: Annotated[int, Field(ge=100)] = 6000
    #: true: if an arm returned no passages, passages for the judge are searched with `retriever`
    search: bool = True
    #: name of a prompt -> your own prompt, as a text or a file path. Only name: rubric
    templates: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_dollars(self) -> "JudgeSettings":
        chosen = self.generator
        if self.dollars_per_day is not None and chosen is not None and chosen.model not in chosen.prices_by_model:
            raise ValueError(
                "judge.dollars_per_day: calls of this judge have no price, so this setting would cap nothing; set "
                "judge.generator.token_prices, or cap judge.tokens_per_day"
            )
        return self


class BudgetSettings(Section):
    """Limits of every answer. A request may set lower limits, but not higher ones."""

    #: rounds of search and generation; None: no limit
    rounds: Count | None = None
    #: distinct passages in the model's prompts; None: no limit
    passages: Count | None = None
    #: prompt and completion tokens of all calls together; None: no limit
    tokens: Count | None = None
    #: time limit of an answer, seconds from the start of the arm
    seconds: Seconds = 120.0
    #: dollars of all calls together, if the generator has `token_prices`; None: no limit
    dollars: Annotated[float, Field(gt=0)] | None = None


class HealthSettings(Section):
    """The circuit breaker: an arm that fails repeatedly is not offered for a while."""

    #: consecutive failed outcomes after which an arm is suspended; 0 turns the circuit breaker off
    failures: Annotated[int, Field(ge=0, le=1000)] = 5
    #: seconds until a suspended arm is tried again; at most 3600, because older outcomes do not count
    cool_down_s: Annotated[float, Field(gt=0, le=COUNTED_S)] = 30.0


class RetentionSettings(Section):
    """Deletion of the oldest decisions with all their data; docs/store.md lists what remains."""

    #: age in days at which a decision is deleted. None keeps all decisions
    days: Annotated[float, Field(gt=0)] | None = None


class LogSettings(Section):
    """Which texts the store keeps, and the format of the processes' log."""

    #: "full" stores questions, contexts, answers, traces and error messages; "none" only the keys declared in
    #: `context`. Without texts no label can be learned, no worker can run an arm, and no policy can read the question
    text: Literal["full", "none"] = "full"
    #: characters stored per passage among the sources of an outcome; 0 stores only ids, titles and addresses. With
    #: text: none no sources are stored
    source_chars: Annotated[int, Field(ge=0, le=100_000)] = 2000
    #: format of the processes' log: plain text, or one JSON object per line
    format: Literal["text", "json"] = "text"


class TelemetrySettings(Section):
    """OpenTelemetry traces (extra `otel`), sent by OTLP over HTTP. See docs/telemetry.md."""

    #: true: trace requests, decisions and answers. OTEL_EXPORTER_OTLP_ENDPOINT sets the receiver
    enabled: bool = False


class WorkerSettings(Section):
    """Processes that answer questions."""

    #: number of answer workers that `ragbandit up` starts
    answer: Annotated[int, Field(ge=0, le=64)] = 1
    #: questions per answer worker and generator in parallel; None: the number of parallel calls of the generator
    concurrency: Annotated[int, Field(ge=1, le=256)] | None = None
    #: maximum number of answers in progress in the service's own process, of arms that only call servers (classes
    #: `model` and `http`, and others whose generator and retriever are servers). Further questions wait for a worker,
    #: or for the service if no worker runs. 0: workers answer all questions
    inline: Annotated[int, Field(ge=0, le=10_000)] = 256
    #: seconds between a worker's searches in the database for work whose notification was lost
    sweep_interval_s: Seconds = 2.0


#: a judge in one line of YAML, for messages
JUDGE_LINE: Final = (
    "judge: {generator: {name: openai, model: gpt-4o-mini, context_tokens: 32000, "
    "token_prices: {input: 0.15, output: 0.6}}}"
)


#: the settings of a tenant that has none, made once, since every question reads them
_NO_TENANT: Final = TenantSettings()


@extended("")
class Settings(Section):
    """All settings."""

    #: folder of the SQLite database, snapshots, indexes and logs
    data_dir: Annotated[str, Field(min_length=1)] = ".ragbandit"
    #: SQLAlchemy URL of the database, or postgres://...; None: SQLite in data_dir
    database_url: Annotated[str | None, AfterValidator(normalized_url)] = None
    #: URL of Redis or Valkey; None: `ragbandit up` starts a private redis-server
    redis_url: Annotated[str | None, AfterValidator(normalized_url)] = None
    #: folder of the snapshots: a path or an fsspec URL; None: data_dir/snapshots
    snapshots: str | None = None
    #: arm -> its params (docs/strategies.md). `run_by: caller`: your own code runs the arm. `generator`, `retriever`:
    #: names in `generators` and `retrievers`, if not the default. `grid`: several arms in one entry, as {class:
    #: multi_step, grid: {rounds: [2, 4]}}. `facts`: properties that arms may share, as {model: small}. `description`:
    #: what the arm does and when it is right, for the policy `llm`
    arms: dict[Name, dict[str, Any]] = Field(
        default_factory=lambda: dict[str, dict[str, Any]](_DEFAULT_ARMS), min_length=1, max_length=MAX_ARMS
    )
    #: default preset of arms that have presets: "chat" for large chat models; None: "small", for small models
    arms_preset: Annotated[str, Field(min_length=1)] | None = None
    #: which questions may get which arms: a list of {when: {...}, arms: [...], models: [...]}; all rules whose
    #: conditions a question meets apply (docs/context.md#rules)
    rules: Annotated[list[Rule], Field(max_length=MOST_RULES)] = Field(default_factory=list)
    #: context key -> its type; the policy learns from these facts (docs/context.md). Sent by callers: {type: number},
    #: {type: boolean}, {type: category, values: [...]} or {type: category, hashed: 32}, {type: words, hashed: 32, most:
    #: 8}. Filled in by the service: {type: tenant, hashed: 32}
    context: Annotated[dict[str, ContextKey], AfterValidator(check_columns)] = Field(default_factory=dict)
    policy: PolicySettings = PolicySettings()
    reward: RewardSettings = RewardSettings()
    #: name -> cost weight that a request may choose instead of reward.weight, as {economy: 0.2, quality: 0.01}
    cost_weights: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")], CostWeight] = Field(
        default_factory=dict, max_length=20
    )
    learning: LearningSettings = LearningSettings()
    encoder: EncoderSettings = EncoderSettings()
    retriever: RetrieverSettings = RetrieverSettings()
    #: name -> additional retriever, a section like `retriever`; arms choose it by `retriever: NAME`
    retrievers: dict[SectionName, RetrieverSettings] = Field(default_factory=dict, max_length=20)
    generator: GeneratorSettings = GeneratorSettings()
    #: name -> additional generator, a section like `generator`; arms choose it by `generator: NAME`
    generators: dict[SectionName, GeneratorSettings] = Field(default_factory=dict, max_length=20)
    #: user action -> the quality it implies, from 0 to 1; null: the action is stored and counted, but not learned
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
    #: tenant -> its budgets and cost weights; "default" applies to every tenant without an entry
    tenants: dict[str, TenantSettings] = Field(default_factory=dict)
    workers: WorkerSettings = WorkerSettings()

    @field_validator("arms", mode="before")
    @classmethod
    def _expand_arms(cls, arms: object) -> object:
        # YAML reads an arm without params, as `single_step:`, as None.
        if not isinstance(arms, dict) or len(arms) > MAX_ARMS:
            return arms  # pydantic refuses such a value
        return expand_grids({k: {} if v is None else v for k, v in arms.items()})

    @model_validator(mode="before")
    @classmethod
    def _insert_named_sections(cls, tree: Any) -> Any:
        return with_named_sections(tree) if isinstance(tree, dict) else tree

    @model_validator(mode="after")
    def _check_consistency(self) -> "Settings":
        for name, params in self.arms.items():
            check_facts(params.get(FACTS), field=f"arms.{name}.{FACTS}")
            _check_description(params.get(DESCRIPTION), field=f"arms.{name}.{DESCRIPTION}")
        default, bounds = self.learning.default_reward, self.reward
        if default is not None and not bounds.minimum <= default <= bounds.maximum:
            raise ValueError(
                f"learning.default_reward: {default} is outside [{bounds.minimum}, {bounds.maximum}], "
                "the bounds in reward.minimum and reward.maximum"
            )
        if self.learning.wait_s == 0 and self.learning.aggregate != "first" and not self.conversation.has_tasks:
            raise ValueError(
                f"learning.aggregate: {self.learning.aggregate!r} has nothing to aggregate while the first feedback "
                "closes a decision; set learning.wait_s above 0"
            )
        _check_floors(self.policy, arms=len(self.arms))
        by_proxy = [key for key, declared in self.context.items() if declared.proxy]
        if by_proxy and not self.server.trusted_proxies:
            raise ValueError(f"context.{by_proxy[0]}: proxy needs server.trusted_proxies, the addresses of the proxy")
        check_rules(self.rules, arms=list(self.arms), context=self.context)
        for name, tenant in self.tenants.items():
            self._check_price(tenant.cost_weight, bounds=tenant.cost_weights, field=f"tenants.{name}.cost_weight")
        return self

    @model_validator(mode="after")
    def _check_texts_are_stored(self) -> "Settings":
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

    def _check_price(self, price: float | str | None, *, bounds: list[float] | None, field: str) -> None:
        weight = self.cost_weights.get(price) if isinstance(price, str) else price
        if price is not None and weight is None:
            choices = known_choices(self.cost_weights, given=price)
            raise ValueError(f"{field}: {price!r} is not in the setting cost_weights; {choices}")
        if weight is not None and bounds is not None and not bounds[0] <= weight <= bounds[1]:
            raise ValueError(f"{field}: {weight:g} is outside {bounds}, the cost_weights of this tenant")

    def tenant(self, name: str) -> TenantSettings:
        return self.tenants.get(name) or self.tenants.get("default") or _NO_TENANT

    @property
    def rule_book(self) -> RuleBook:
        return RuleBook(self.rules, context=self.context)

    @property
    def policy_definition(self) -> PolicyDefinition:
        weight = self.reward.weight
        return PolicyDefinition(settings=self.policy, schema=self.context, facts=self.arm_facts, weight=weight)

    @property
    def database(self) -> str:
        return self.database_url or sqlite_url(self.data_dir)

    @property
    def redis(self) -> str:
        """URL of the configured Redis, or else of the private server of this data_dir. The server may be down."""
        return self.redis_url or f"unix://{private_socket(self.data_dir)}"

    @property
    def snapshot_root(self) -> str:
        return self.snapshots or str(Path(self.data_dir).absolute() / "snapshots")

    @property
    def named_generators(self) -> dict[str, GeneratorSettings]:
        return {DEFAULT: self.generator, **self.generators}

    @property
    def named_retrievers(self) -> dict[str, RetrieverSettings]:
        return {DEFAULT: self.retriever, **self.retrievers}

    @property
    def worker_arms(self) -> dict[str, dict[str, Any]]:
        """Arms that RagBandit runs -> their params without `facts` and `description`; arms of callers are left out."""
        return {
            name: {key: value for key, value in params.items() if key not in (FACTS, DESCRIPTION)}
            for name, params in self.arms.items()
            if params.get("run_by") != "caller"
        }

    @property
    def arm_facts(self) -> dict[str, dict[str, Any]]:
        """Arm -> its `facts`, or its values of a grid; arms without facts are left out."""
        return {name: dict(params[FACTS]) for name, params in self.arms.items() if params.get(FACTS)}

    @property
    def arm_descriptions(self) -> dict[str, str]:
        """Arm -> its `description`, and after it the arm's facts in brackets; arms with neither are left out."""
        described = {}
        for name, params in self.arms.items():
            facts = ", ".join(f"{key}: {value}" for key, value in (params.get(FACTS) or {}).items())
            text = " ".join(filter(None, (params.get(DESCRIPTION), f"({facts})" if facts else "")))
            if text:
                described[name] = text
        return described


def sqlite_url(data_dir: str) -> str:
    """The URL of the SQLite database in a folder."""
    return f"sqlite:///{Path(data_dir).absolute() / 'ragbandit.db'}"


def _check_floors(policy: PolicySettings, *, arms: int) -> None:
    for name, floor in (("floor", policy.floor), ("cold_start_floor", policy.cold_start_floor)):
        if floor and floor < LEAST_SHARE:
            raise ValueError(
                f"policy.{name}: {floor:g} is below {LEAST_SHARE:g}, the least share of an arm; use 0, or at least "
                f"{LEAST_SHARE:g}"
            )
    floor = policy.floor_of(arms)
    if floor * arms > 1:
        digits = 10 ** (len(str(arms)) + 1)
        limit = digits // arms / digits
        remedy = f"at most {limit:g}" if limit >= LEAST_SHARE else "null"
        raise ValueError(f"policy.floor: {arms} arms need {arms * floor:g} in all, above 1; use {remedy}")


def _check_description(description: object, *, field: str) -> None:
    if description is not None and (
        not isinstance(description, str) or is_blank(description) or len(description) > MAX_DESCRIPTION
    ):
        raise ValueError(f"{field}: give a text of at most {MAX_DESCRIPTION} characters, or leave it out")
