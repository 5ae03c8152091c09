"""Configuration sections: encoder, retriever, generator, conversations and rollouts."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from ragbandit.router.config.section import RETRIEVERS, Count, Seconds, Section, extended, names_schema, one_of
from ragbandit.shared.additions import offered_places_except, surfaces
from ragbandit.shared.model_servers.openai_options import OpenAiOptions, PriceRow, reached_rows
from ragbandit.shared.model_servers.token_usage import PRICES, USUAL_CALL, Preference
from ragbandit.shared.types import DecisionUnit, TurnKind


class EncoderSettings(Section):
    """The encoder that turns questions into feature vectors."""

    #: local folder or hub name of a model; "hashing" counts words and style features without a model. "auto" keeps the
    #: encoder of the store; a new store gets distilbert/distilbert-base-uncased if torch is installed, else "hashing"
    model: str = "auto"
    #: number format of the model. "auto" keeps the precision of the store; a new store gets bfloat16 with AMX or a GPU,
    #: int8 on a processor with VNNI, else float32. Hosts that share a ledger must set one of the three
    precision: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    #: device of the model; "auto": the GPU if there is one
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: torch threads for encoding. None: at most 4 if idle threads sleep soon (the `ragbandit` command sets
    #: GOMP_SPINCOUNT for this purpose), else 1
    threads: Count | None = None
    #: tokens read per question; the rest is cut off
    max_tokens: Annotated[int, Field(ge=8, le=512)] = 128
    #: features per question
    dimension: Annotated[int, Field(ge=8, le=4096)] = 256
    #: number of questions whose features are cached in memory (least recently used leave first); 0 turns it off. With
    #: at least max_batch, cached questions do not wait for forward passes of others
    cache_entries: Annotated[int, Field(ge=0, le=10_000_000)] = 10_000
    #: maximum number of questions per forward pass and per transaction
    max_batch: Annotated[int, Field(ge=1, le=1000)] = 32


_RETRIEVERS: Final = [*RETRIEVERS, *offered_places_except(RETRIEVERS, hook="retrievers")]
RetrieverName = Annotated[
    str, one_of(_RETRIEVERS, or_path=True), Field(json_schema_extra=names_schema(_RETRIEVERS, or_path=True))
]


@extended("retriever")
class RetrieverSettings(Section):
    """The retriever that finds passages."""

    #: search backend. "hybrid" asks `first` and `second` in parallel and merges their hits by rank.
    #: "package.module:function" names your own function, which is called without arguments and returns a retriever
    name: RetrieverName = "bm25"
    #: "bm25", "dense": folder of the index; a relative path is under data_dir/indexes ("dense" appends "-dense").
    #: "elasticsearch": index name
    index: Annotated[str, Field(min_length=1)] = "default"
    #: embedding model: a sentence-transformers folder or hub name. Used by "dense", and by "elasticsearch" with
    #: search: meaning
    model: str = "sentence-transformers/all-MiniLM-L6-v2"


class TokenPrices(Section):
    """Prices of a model's tokens, in dollars per million."""

    #: prompt tokens
    input: Annotated[float, Field(ge=0)]
    #: completion tokens
    output: Annotated[float, Field(ge=0)]
    #: prompt tokens read from the provider's prompt cache; None: the price of `input`
    cached_input: Annotated[float, Field(ge=0)] | None = None
    #: prompt tokens written to the provider's prompt cache; None: the price of `input`
    cache_write: Annotated[float, Field(ge=0)] | None = None
    #: reasoning tokens; None: the price of `output`
    reasoning: Annotated[float, Field(ge=0)] | None = None
    #: prompt tokens written to Anthropic's prompt cache for an hour; None: twice the price of `input`
    cache_write_hour: Annotated[float, Field(ge=0)] | None = None
    #: prices of calls under conditions (docs/price.md#prices-with-conditions), such as [{above: 200000, input: 2.5,
    #: output: 15.0}]. The last row whose conditions a call meets has the prices of all its tokens
    rows: Annotated[list[PriceRow], Field(max_length=24), AfterValidator(reached_rows)] = Field(default_factory=list)

    @property
    def in_order(self) -> tuple[Any, ...]:
        """The prices in the order that `Tokens.dollars` expects; only input and output if the others are None."""
        given = tuple(getattr(self, name) for name in PRICES)
        defaults = self.input, self.output, self.input, self.input, self.output, 2.0 * self.input
        prices = (default if price is None else price for price, default in zip(given, defaults, strict=True))
        return *(prices if any(price is not None for price in given[2:]) else given[:2]), *self.rows


#: names of the core's generators; additions have further names
GENERATORS: Final = ("openai", "scripted")
#: the default generator; its name is valid even if its addition is missing, but loading the model is then refused
_DEFAULT: Final = "local"
_GENERATORS: Final = [*dict.fromkeys((_DEFAULT, *GENERATORS, *offered_places_except(GENERATORS, hook="generators")))]
GeneratorName = Annotated[str, one_of(_GENERATORS), Field(json_schema_extra=names_schema(_GENERATORS))]

#: inputs and outputs besides plain text that a model can support
Ability = Literal["tools", "json", "images", "files", "audio", "logprobs"]


@extended("generator")
class GeneratorSettings(Section):
    """The generator: the language model that writes answers."""

    #: "local" runs a model in the worker; "openai" and "anthropic" call a server of chat completions (or completions,
    #: see `openai.api`) or of Anthropic's Messages; "scripted" replies from `script`
    name: GeneratorName = _DEFAULT
    #: "local": folder or hub name; "openai", "anthropic": the model's name on the server
    model: str = "HuggingFaceTB/SmolLM2-135M-Instruct"
    #: size of the model's context window in tokens, for prompt and answer together. None: 2048, except for servers,
    #: where the size is unknown: every request is accepted, and arms assume 8,192 tokens
    context_tokens: Annotated[int, Field(ge=256)] | None = None
    #: "scripted": part of the prompt -> the answer; "" matches every prompt. For tests and dry runs
    script: dict[str, str] = Field(default_factory=lambda: {"": "So the answer is: scripted."})
    #: "scripted": seconds before the first word
    script_s: Annotated[float, Field(ge=0)] = 0.0
    #: "scripted": seconds between words
    script_word_s: Annotated[float, Field(ge=0)] = 0.0
    #: dollars per million tokens, as {input: 0.15, output: 0.6, cached_input: 0.075}; the cost term `dollars` of
    #: outcomes is computed from them. None: calls of a server have no price (docs/price.md#an-arm-without-a-price)
    token_prices: TokenPrices | None = None
    #: servers: which price of a call counts if the server reports one and `token_prices` has another. "told": the
    #: server's, which includes fees and discounts, up to 100 times the listed one (docs/price.md). "listed": the list's
    prices: Preference = "told"
    #: servers, for arms of the class `model`: inputs and outputs that the model supports besides text. A request that
    #: needs something else is not offered this arm
    supports: list[Ability] = Field(default_factory=lambda: list[Ability](["tools", "json"]))
    openai: OpenAiOptions = OpenAiOptions()

    @property
    def server(self) -> OpenAiOptions | None:
        """Options of the server; None if the generator calls no server."""
        options = getattr(self, self.name, None)
        return options if isinstance(options, OpenAiOptions) else None

    @property
    def known_context(self) -> int | None:
        return self.context_tokens or (2048 if self.server is None else None)

    @model_validator(mode="after")
    def _check_one_price(self) -> "GeneratorSettings":
        server = self.server or self.openai
        if self.token_prices is not None and self.model in server.token_prices:
            prices = f"{server.provider}.token_prices"
            raise ValueError(f"token_prices: {prices} has a price of {self.model!r} too; leave out {prices}")
        return self

    @property
    def prices_by_model(self) -> Mapping[str, Sequence[Any]]:
        """Model -> dollars per million tokens, in the order of `Tokens.dollars`; empty if calls have no price.

        `token_prices` of the server adds other models that the server may answer with.
        """
        prices: dict[str, Sequence[Any]] = {}
        if self.server is not None:
            prices.update(self.server.token_prices)
        if self.token_prices is not None:
            prices[self.model] = self.token_prices.in_order
        return prices


def assumed_prices(generators: Mapping[str, GeneratorSettings]) -> Sequence[Any]:
    """Prices that count for calls without prices: the listed ones at which a usual call costs most; () if none are."""
    listed = (generator.prices_by_model.get(generator.model) for generator in generators.values())
    return max(filter(None, listed), key=USUAL_CALL.dollars, default=())


class RewriteSettings(Section):
    """Rewriting of a follow-up question, by one model call, so that it can be understood without its conversation."""

    #: "auto" rewrites with `conversation.rewrite.generator`, else with `generator` if its name is "openai". With
    #: neither, and with "off", the question is the user's last message unchanged
    by: Literal["auto", "off"] = "auto"
    #: model that rewrites: a section like `generator` with `name: openai`, or a name in `generators`; None: `generator`
    generator: GeneratorSettings | None = None
    #: time limit of a rewrite, retries included, seconds; after it the question is the user's last message unchanged
    seconds: Annotated[float, Field(gt=0, le=60)] = 5.0
    #: maximum number of tokens of a rewrite, reasoning tokens included
    max_tokens: Annotated[int, Field(ge=16)] = 256

    @field_validator("generator")
    @classmethod
    def _check_rewriter(cls, generator: GeneratorSettings | None) -> GeneratorSettings | None:
        if generator is not None and generator.name != "openai":
            raise ValueError("conversation.rewrite.generator: it must have name: openai")
        return generator


#: largest time for which a task stays open after its last turn, seconds
LONGEST_S: Final = 86_400.0


_DOORS: Final = ["route", "openai", *(name for name, path in surfaces().items() if path)]
DoorName = Annotated[str, one_of(_DOORS), Field(json_schema_extra=names_schema(_DOORS))]


class TurnLimit(Section):
    """What a task or a session may cost, and how many turns it may have; the next turn is beyond the limit."""

    #: dollars of the answers of one task or session; an answer that is queued or runs counts by an estimate
    dollars: Annotated[float, Field(gt=0)] | None = None
    #: requests whose model was asked, or will be; refused ones, and failures that cost nothing, do not count
    turns: Annotated[int, Field(ge=1, le=10_000)] | None = None


class ConversationSettings(Section):
    """Questions with earlier turns of their conversation. See docs/conversations.md."""

    #: number of user and assistant messages before the question that are stored and sent; system messages do not count
    turns: Annotated[int, Field(ge=0, le=60)] = 6
    #: maximum number of characters of the stored messages together; long messages lose their middle
    chars: Annotated[int, Field(ge=0, le=100_000)] = 8000
    #: what one draw decides. turn: one question, with its loop of tools. task: all turns of a conversation until the
    #: task ends; its outcome is learned once. A request may choose (`unit`), unless its key may not choose arms
    unit: DecisionUnit = "turn"
    #: interface (docs/conversations.md) -> unit of its questions; `unit` for missing interfaces
    units: dict[DoorName, DecisionUnit] = Field(default_factory=dict)
    #: patterns of models whose requests are units of one turn: coding agents send small requests, for titles and checks
    #: of quotas, to a small model
    one_turn_models: list[str] = Field(default_factory=lambda: ["*haiku*"])
    #: seconds after the last turn at which a task ends; a request that asks its provider to keep the prompt cached for
    #: longer keeps the task open as long, and so does `budget.seconds` if a worker answers. The default is how long
    #: most providers keep a prompt
    idle_s: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    #: maximum number of turns of a task; the next turn begins another one
    turns_most: Annotated[int, Field(ge=1, le=10_000)] = 500
    #: maximum number of requests that one draw serves. Requests with tool results go to the arm that called the tools,
    #: until this number is reached; the next request gets a new draw
    tool_turns: Annotated[int, Field(ge=1, le=1000)] = 50
    #: maximum seconds between the draw and a request with tool results; a later request gets a new draw
    tool_turns_s: Seconds = 3600.0
    #: a task: a decision with all its turns, such as results of tools
    task_limit: TurnLimit = TurnLimit()
    #: a session: all decisions with one `session_id` of a caller, and their turns
    session_limit: TurnLimit = TurnLimit()
    #: what happens to a turn beyond a limit. refuse: the caller gets 429. cheapest: the arm with the cheapest answers
    #: is used
    at_limit: Literal["refuse", "cheapest"] = "refuse"
    rewrite: RewriteSettings = RewriteSettings()

    def limit_of(self, kind: TurnKind) -> TurnLimit:
        return self.session_limit if kind == "session" else self.task_limit

    @property
    def limited(self) -> tuple[TurnKind, ...]:
        """The kinds with a limit: "session", "task", both or none."""
        limits: dict[TurnKind, TurnLimit] = {"task": self.task_limit, "session": self.session_limit}
        return tuple([kind for kind, limit in limits.items() if (limit.dollars, limit.turns) != (None, None)])

    @property
    def has_tasks(self) -> bool:
        return "task" in (self.unit, *self.units.values())

    def is_task(self, unit: DecisionUnit | None, *, door: str | None) -> bool:
        """Whether a request's unit is the task. A request without a session belongs to no task in either case.
        unit: the request's choice; None leaves the unit to the interface. door: the interface; None for `route`
        """
        return (unit or self.unit_of(door or "route")) == "task"

    def unit_of(self, door: str) -> DecisionUnit:
        """The unit of requests at this interface that do not choose one."""
        return self.units.get(door, self.unit)


class RolloutSettings(Section):
    """How versions of the policy are compared. See docs/rollouts.md."""

    #: maximum number of versions in shadow; each computes the arms' probabilities for every decision, with a ledger
    shadows: Annotated[int, Field(ge=1, le=16)] = 4
    #: seconds in which a version in shadow must compute its probabilities for a batch of questions. A slower version
    #: skips the batch
    time_limit_s: Annotated[float, Field(gt=0, le=10)] = 0.05
