"""Sections of the models and indexes: encoder, retriever, generator, and the judge; and what every section is."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from ragbandit.shared.formats import known_choices
from ragbandit.shared.openai_client import OpenAiOptions
from ragbandit.shared.types import COST_TERMS, MAX_WEIGHT, Aggregate

#: what a judge scores an answer by, each from 0 to 1; how: docs/judge.md
CRITERIA: Final = ("supported", "answers", "right")


class Section(BaseModel):
    """A section: unknown keys, other types and numbers that are not finite are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def one_of(known: Sequence[str]) -> AfterValidator:
    """What refuses a text that is none of these names."""

    def check(text: str) -> str:
        if text not in known:
            raise ValueError(f"unknown name {text!r}; {known_choices(known, given=text)}")
        return text

    return AfterValidator(check)


Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class EncoderSettings(Section):
    """The encoder that turns questions into feature vectors."""

    #: local folder or hub name; "hashing" needs no model and no torch: counted style and words; "auto": the one that
    #: the store began with, in a new store distilbert/distilbert-base-uncased where torch is installed, else "hashing"
    model: str = "auto"
    #: numbers that the model computes in; "auto": the precision that the store began with, in a new store bfloat16 with
    #: AMX or a GPU, int8 on a processor with VNNI, else float32; hosts that share a ledger must name one of the three
    precision: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    #: where the model runs; "auto": the GPU if there is one
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: torch's threads while it encodes; None: up to 4 where waiting threads soon sleep (GOMP_SPINCOUNT, which the
    #: `ragbandit` command sets), else 1
    threads: Count | None = None
    #: tokens of a question that are read; the rest is cut off
    max_tokens: Annotated[int, Field(ge=8, le=512)] = 128
    #: features per question
    dimension: Annotated[int, Field(ge=8, le=4096)] = 256
    #: numbers that features are rounded to and stored in: "float16" takes half the bytes; "auto" follows the ledger,
    #: or the newest decision of the store, and is float16 for an empty store
    features: Literal["auto", "float32", "float16"] = "auto"
    #: questions whose features are kept in memory, the least recently asked given up first; 0 keeps none
    cache_entries: Annotated[int, Field(ge=0, le=10_000_000)] = 10_000
    #: questions encoded in one forward pass and committed in one transaction
    max_batch: Annotated[int, Field(ge=1, le=1000)] = 32


class RetrieverSettings(Section):
    """The retriever that finds passages."""

    #: "hybrid" asks `first` and `second` at once and joins what they find by rank; "package.module:function" is
    #: called without arguments, and makes a retriever of your own
    name: (
        Literal["bm25", "elasticsearch", "pgvector", "qdrant", "dense", "hybrid"]
        | Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]
    ) = "bm25"
    #: folder of the index, a relative one under data_dir/indexes, that of "dense" with "-dense" behind it; the name of
    #: the index for "elasticsearch", of a table or view for "pgvector" (SCHEMA.TABLE), of a collection for "qdrant"
    index: Annotated[str, Field(min_length=1)] = "default"
    #: of "elasticsearch" and "qdrant"; None: http://127.0.0.1:9200 and http://127.0.0.1:6333. Of "qdrant" also a
    #: folder, which one process at a time may use
    url: str | None = None
    #: of "elasticsearch" and "qdrant": the environment variable that holds the API key; none is sent where it is not
    #: set. None: ELASTICSEARCH_API_KEY and QDRANT_API_KEY
    api_key_env: str | None = None
    #: of "pgvector": the environment variable that holds postgresql://USER:PASSWORD@HOST/DATABASE
    dsn_env: Annotated[str, Field(min_length=1)] = "PGVECTOR_DSN"
    #: of "pgvector": names of columns, where they are not id, title, text, url and embedding; of "qdrant": keys of the
    #: payload, where they are not title, text and url, an id that is not the point's own, and a named vector. A dot
    #: reaches into JSON: {title: metadata.title}
    fields: dict[Literal["id", "title", "text", "url", "vector"], Annotated[str, Field(min_length=1)]] = Field(
        default_factory=dict
    )
    #: of "pgvector", and of an index that is built for "qdrant"
    distance: Literal["cosine", "dot", "euclid"] = "cosine"
    #: of "elasticsearch": by words (BM25), by meaning (vectors of `model`), or both joined by rank
    search: Literal["words", "meaning", "both"] = "words"
    #: of "elasticsearch", "pgvector" and "qdrant": one request
    timeout_s: Seconds = 10.0
    #: of "dense", "pgvector" and "qdrant", and of "elasticsearch" by meaning: a folder in the layout of
    #: sentence-transformers, or its hub name; of vectors that are there the model that made them
    model: str = "sentence-transformers/all-MiniLM-L6-v2"
    #: of "pgvector" and "qdrant": "exact" compares every vector, as "dense" does, which serves up to about a million
    #: passages; "hnsw" follows the database's graph
    search_by: Literal["exact", "hnsw"] = "exact"
    #: of "hybrid"
    first: Literal["bm25", "elasticsearch", "pgvector", "qdrant", "dense"] = "bm25"
    #: of "hybrid"
    second: Literal["bm25", "elasticsearch", "pgvector", "qdrant", "dense"] = "dense"
    #: what puts the hits of any of them in a better order: a cross-encoder, by folder or hub name, or a class of your
    #: own as "package.module:Class"; None: nothing
    rerank: Annotated[str, Field(min_length=1)] | None = None
    #: hits that are reranked for a search, however few are asked for; 10,000 is the most that Elasticsearch gives
    rerank_depth: Annotated[int, Field(ge=1, le=10_000)] = 50


class TokenPrices(Section):
    """What a model's tokens cost, in dollars per million."""

    #: read by the model
    input: Annotated[float, Field(ge=0)]
    #: written by it
    output: Annotated[float, Field(ge=0)]
    #: read out of the provider's cache of prompts; None: as `input`
    cached_input: Annotated[float, Field(ge=0)] | None = None
    #: read, and written into that cache; None: as `input`
    cache_write: Annotated[float, Field(ge=0)] | None = None
    #: a reasoning model's thoughts; None: as `output`
    reasoning: Annotated[float, Field(ge=0)] | None = None

    @property
    def in_order(self) -> tuple[float, ...]:
        """As `Tokens.dollars` takes them; those of input and output alone where nothing else is set."""
        usual = {"cached_input": self.input, "cache_write": self.input, "reasoning": self.output}
        rest = {name: getattr(self, name) for name in usual}
        if all(price is None for price in rest.values()):
            return self.input, self.output
        return self.input, self.output, *(usual[name] if price is None else price for name, price in rest.items())


#: what a model may take beside text
Ability = Literal["tools", "json", "images", "files", "audio", "logprobs"]


class GeneratorSettings(Section):
    """The generator: the language model that writes answers."""

    #: "local" runs a model in the worker, "openai" calls a server, "scripted" replies from `script`
    name: Literal["local", "openai", "scripted"] = "local"
    #: of "local": a folder or hub name; of "openai": the server's name for it
    model: str = "HuggingFaceTB/SmolLM2-135M-Instruct"
    #: of "local": numbers it computes in; "auto": bfloat16 where the processor or GPU multiplies it, else float32
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    #: of "local": where the model runs; "auto": the GPU if there is one
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: of "local": torch's threads; None: one per core, shared out among `workers.answer` processes
    threads: Count | None = None
    #: prompt and answer together; None: of "openai" not known, so that nothing is refused for it here, and passages
    #: are packed into 8,192; of the others 2048
    context_tokens: Annotated[int, Field(ge=256)] | None = None
    #: of "local": texts written at once; None: as many as pay, 8 on a processor and 64 on CUDA
    max_batch: Count | None = None
    #: of "local": the tokens that `self_rag_trained` reads, by name, of a model that was trained with them
    trained_tokens: list[str] = Field(default_factory=list)
    #: of "scripted": a piece of the prompt -> the answer; "" matches every prompt. For tests and dry runs
    script: dict[str, str] = Field(default_factory=lambda: {"": "So the answer is: scripted."})
    #: of "scripted": how long every call takes before its first word
    script_s: Annotated[float, Field(ge=0)] = 0.0
    #: of "scripted": the pause before every further word
    script_word_s: Annotated[float, Field(ge=0)] = 0.0
    #: folder of answers once given, which are given again; None: every call is made
    cache: str | None = None
    #: dollars per million tokens, {input: 0.15, output: 0.6, cached_input: 0.075}: what calls cost, in `dollars` of
    #: every outcome; None: calls cost nothing
    token_prices: TokenPrices | None = None
    #: of "openai", for arms of the class `model`: what its model takes beside text. A request that needs something else
    #: is offered other arms
    supports: list[Ability] = Field(default_factory=lambda: list[Ability](["tools", "json"]))
    openai: OpenAiOptions = OpenAiOptions()

    @property
    def known_context(self) -> int | None:
        """Tokens of prompt and answer together; None: not known."""
        return self.context_tokens or (None if self.name == "openai" else 2048)

    @model_validator(mode="after")
    def _one_price(self) -> "GeneratorSettings":
        if self.token_prices is not None and self.model in self.openai.token_prices:
            raise ValueError(
                f"token_prices: openai.token_prices has a price of {self.model!r} too; leave out openai.token_prices"
            )
        return self

    @property
    def prices_by_model(self) -> Mapping[str, Sequence[float]]:
        """Model -> dollars per million tokens, as `Tokens.dollars` takes them; empty: calls have no price.

        Beside the model's own there may be those of others that a server answers with (`openai.token_prices`).
        """
        own = {} if self.token_prices is None else {self.model: self.token_prices.in_order}
        return {**self.openai.token_prices, **own} if self.name == "openai" else own


class RewriteSettings(Section):
    """The rewrite of a question that leans on its conversation into one that stands alone: one call of a model."""

    #: who rewrites; "auto": the server of `conversation.rewrite.generator`, or of `generator` where that is "openai",
    #: else none; "off": none. If there is none, the question is the last message as the user wrote it
    by: Literal["auto", "off"] = "auto"
    #: the model that rewrites, a section like `generator` with `name: openai`, or the name of one of `generators`;
    #: None: the service's own
    generator: GeneratorSettings | None = None
    #: one rewrite at most, attempts and waits included; after that the user's words are used
    seconds: Annotated[float, Field(gt=0, le=60)] = 5.0
    #: tokens of a rewrite, a reasoning model's thoughts included
    max_tokens: Annotated[int, Field(ge=16)] = 256

    @field_validator("generator")
    @classmethod
    def _asked_by_the_router(cls, generator: GeneratorSettings | None) -> GeneratorSettings | None:
        if generator is not None and generator.name != "openai":
            raise ValueError("conversation.rewrite.generator: it must have name: openai")
        return generator


class ConversationSettings(Section):
    """Questions that come with what was said before them. See docs/conversations.md."""

    #: messages of user and assistant before the question that are kept with it and shown to the arm's model, the last
    #: ones; what the system says is kept besides
    turns: Annotated[int, Field(ge=0, le=60)] = 6
    #: characters of all that is kept; of longer messages the middle is left out
    chars: Annotated[int, Field(ge=0, le=100_000)] = 8000
    #: turns that a session stays on the arm of one draw, the drawn one among them; 0 and 1: every turn is drawn
    sticky_turns: Annotated[int, Field(ge=0, le=1000)] = 0
    #: largest sticky_turns that a call may ask for (422 beyond it), where conversation.sticky_turns is not larger. Keys
    #: with the scope forced=false may ask for no more than conversation.sticky_turns (403)
    max_sticky_turns: Annotated[int, Field(ge=0, le=1000)] = 20
    #: a turn leaves the arm of the turn before only where the policy expects more of another than the prompt saves that
    #: the arm's provider has in its cache: tokens of the last prompt at (input - cached_input). It needs these prices,
    #: and a price of dollars in reward.cost
    sticky_prefix: bool = False
    #: requests that continue one decision with the results of tools, the drawn one included; one more gets a new draw
    tool_turns: Annotated[int, Field(ge=1, le=1000)] = 50
    #: seconds after the draw in which such a request may come; a later one gets a new draw
    tool_turns_s: Seconds = 3600.0
    rewrite: RewriteSettings = RewriteSettings()

    @property
    def sticky_turns_cap(self) -> int:
        """Largest sticky_turns of a call. At least 1, which says what 0 says: every turn is drawn."""
        return max(1, self.sticky_turns, self.max_sticky_turns)


class JudgeSettings(Section):
    """The judge: a language model that scores answers that have no other judgement. See docs/judge.md."""

    #: the model that judges, a section like `generator`, or the name of one of `generators`; None: nothing is judged
    generator: GeneratorSettings | None = None
    #: share of the decisions that are judged after the first; which ones follows from their ids
    share: Annotated[float, Field(ge=0, le=1)] = 0.1
    #: before the ledger has learned so many decisions every answer is judged: labels pay most at first
    first: Annotated[int, Field(ge=0, le=100_000)] = 60
    #: judgements that are begun in a day (UTC); what is beyond waits for the next day. None: no limit
    judgements_per_day: Count | None = 1000
    #: tokens, read and written, in a day; calls that are under way when it is reached go beyond it. None: no limit
    tokens_per_day: Count | None = None
    #: price of the tokens in a day, by `judge.generator.token_prices`; as above. None: no limit
    dollars_per_day: Annotated[float, Field(gt=0)] | None = None
    #: an answer that was not judged within that long is not judged any more
    expire_s: Seconds = 2 * 86400.0
    #: answers that wait for the judge at once; while there are as many, further ones are not judged, and counted
    max_waiting: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    #: answers that one judge process works on at once; None: as many as its generator takes at once
    concurrency: Annotated[int, Field(ge=1, le=256)] | None = None
    #: one reply of the judge at most
    seconds: Seconds = 60.0
    #: tokens of a reply, a reasoning model's thoughts included
    max_tokens: Annotated[int, Field(ge=64)] = 512
    #: tries of one answer that may end in a reply that cannot be read, or kill their worker; then it is given up
    attempts: Annotated[int, Field(ge=1, le=20)] = 4
    #: pause after the first try that failed; it doubles with each further one, up to an hour
    retry_s: Seconds = 30.0
    #: passages that the judge is shown
    passages: Annotated[int, Field(ge=0, le=50)] = 8
    #: words of a passage that it is shown
    passage_words: Annotated[int, Field(ge=10)] = 200
    #: characters of a question, an answer and a reference that it is shown, each
    text_chars: Annotated[int, Field(ge=100)] = 6000
    #: where an arm showed no passages, search the question with `retriever`: the judge then has some for every arm
    search: bool = True
    #: show the judge the gold answers of a label that is there before it. Its scores are then better than those of
    #: answers without a label, and no measure of them
    reference: bool = False
    #: what the criteria count in the score: supported, answers, right; one that is left out counts 1
    weights: dict[Annotated[str, one_of(CRITERIA)], Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    #: answers with a text that addresses the judge: "withhold" does not judge them, "post" judges them and notes it
    suspicious: Literal["withhold", "post"] = "withhold"
    #: own prompts, each a text or the path of a file: rubric, and those of `ragbandit evaluate --family crud`:
    #: crud_questions and crud_answer
    templates: dict[str, str] = Field(default_factory=dict)

    @field_validator("weights")
    @classmethod
    def _without_reference(cls, weights: dict[str, float]) -> dict[str, float]:
        if not any(weights.get(name, 1.0) for name in ("supported", "answers")):
            raise ValueError("supported or answers must be above 0: most answers come without a reference")
        return weights

    @model_validator(mode="after")
    def _priced(self) -> "JudgeSettings":
        chosen = self.generator
        if self.dollars_per_day is not None and chosen is not None and chosen.model not in chosen.prices_by_model:
            raise ValueError(
                "judge.dollars_per_day: calls of this judge have no price, so this would cap nothing; set "
                "judge.generator.token_prices, or cap judge.tokens_per_day"
            )
        return self

    @property
    def criterion_weights(self) -> dict[str, float]:
        """Criterion -> what it counts in the score."""
        return {name: self.weights.get(name, 1.0) for name in CRITERIA}


class GuardrailSettings(Section):
    """How much worse than the champion's a candidate's answers may be in what is not the reward."""

    #: share of failed and cancelled answers that a candidate may have more; 0.01 is one point
    failures: Annotated[float, Field(gt=0, le=1)] = 0.01
    #: how much longer the slowest twentieth of its answers may take: 0.2 is 20 % above the champion's 95th percentile
    latency: Annotated[float, Field(gt=0, le=10)] = 0.2
    #: how much more an answer may cost, in the terms of `reward.cost`: 0.1 is 10 % above the champion's mean
    cost: Annotated[float, Field(gt=0, le=10)] = 0.1
    #: true: a step and a promotion need the proof (an upper bound) that a guardrail is kept; false: the estimate within
    #: the margin, and no proof of the contrary, is enough. The proof of one point takes thousands of answers
    proven: bool = False


class RolloutSettings(Section):
    """How versions of the policy are judged, and how they move on."""

    #: shares of a candidate's pmf in what is served, rising; it is promoted from the last one
    steps: Annotated[list[Annotated[float, Field(gt=0, le=0.5)]], Field(min_length=1, max_length=10)] = Field(
        default_factory=lambda: [0.05, 0.25, 0.5]
    )
    #: chance that a candidate which is not better by `margin` is promoted, however often one looks
    alpha: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    #: chance that a candidate which is not worse than `harm` is rolled back for its reward, in each state that it is in
    rollback_alpha: Annotated[float, Field(gt=0, le=0.3)] = 0.1
    #: reward by which a candidate must be better than the champion
    margin: Annotated[float, Field(ge=0)] = 0.0
    #: reward by which a candidate may be worse before it is rolled back; 0: rolled back as soon as it is surely worse
    harm: Annotated[float, Field(ge=0)] = 0.0
    #: effective rows of the candidate that a step needs
    rows_per_step: Count = 200
    #: least time in a state before it moves on
    seconds_per_step: Annotated[float, Field(ge=0)] = 3600.0
    #: a canary that neither wins nor loses for that long goes back to shadow
    max_age_s: Seconds = 14 * 86400.0
    guardrails: GuardrailSettings = GuardrailSettings()
    #: true: a version in shadow becomes a canary automatically as soon as the evidence allows it; false: only by hand
    enter_canary: bool = False
    #: newest answers of each side that the rule of sudden failures looks at, and the least number of the candidate's
    #: before it says anything
    failure_window: Annotated[int, Field(ge=5, le=1000)] = 20
    #: candidates that may be in shadow at once; each costs its pmf for every decision, and a ledger
    shadows: Annotated[int, Field(ge=1, le=16)] = 4
    #: a candidate that takes longer for a batch of pmfs is left out of it, and is no canary until it is faster
    time_limit_s: Annotated[float, Field(gt=0, le=10)] = 0.05

    @model_validator(mode="after")
    def _rising(self) -> "RolloutSettings":
        if any(later <= earlier for earlier, later in zip(self.steps, self.steps[1:], strict=False)):
            raise ValueError("steps must rise, as [0.05, 0.25, 0.5]")
        return self


#: lambda: what one unit of cost is worth in right answers
CostWeight = Annotated[float, Field(ge=0, le=MAX_WEIGHT)]


class RewardSettings(Section):
    """reward = clip(quality - weight * cost). `cost` maps cost terms to their price per unit."""

    #: how a label becomes quality. "ascii_": as in earlier releases, for English in ASCII (docs/feedback.md)
    quality: Literal["ascii_exact_match", "ascii_f1", "ascii_containment", "exact_match", "f1", "containment"] = "f1"
    #: lambda: what one unit of cost is worth in right answers; a right answer is worth 1 / weight units of cost.
    #: The ledger stays when you change it (docs/learning.md)
    weight: Annotated[float, Field(ge=0)] = 0.05
    #: price per unit of each cost term that counts: steps, dollars, seconds_total, prompt_tokens and so on
    cost: dict[Annotated[str, one_of(COST_TERMS)], Annotated[float, Field(ge=0)]] = Field(
        default_factory=lambda: {"steps": 1.0}
    )
    #: rewards below are clipped to it
    minimum: float = -1.0
    #: rewards above are clipped to it
    maximum: float = 1.0
    #: a function that scores answers, "package.module:function"; see docs/feedback.md. None: nothing is checked
    check: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")] | None = None
    #: further arguments, besides answer, question and sources; JSON values
    check_params: dict[str, Any] = Field(default_factory=dict)
    #: the longest that it may take for one answer
    check_s: Seconds = 10.0

    def at(self, cost_weight: float | None) -> "RewardSettings":
        """These settings with another weight of cost; None: with their own."""
        return self if cost_weight is None else self.model_copy(update={"weight": cost_weight})

    @model_validator(mode="after")
    def _ordered(self) -> "RewardSettings":
        if self.minimum >= self.maximum:
            raise ValueError("minimum must be below maximum")
        return self


#: a source of feedback, as `learning.sources` names it
SourceName = Annotated[str, Field(pattern=r"^(key|role|tenant|rater|import):.{1,80}$")]
#: how many rows of the ledger one judgement counts as
Weight = Annotated[float, Field(ge=0, le=1e6)]


class WeightSettings(Section):
    """How many rows a judgement counts as when a policy learns it, by who judged; 0: counted, not learned.

    mba and linucb learn how much less a judge's scores and events tell, from decisions that people judged too.
    """

    #: gold answers, raw rewards and checks by code
    label: Weight = 1.0
    #: people's ratings
    human: Weight = 1.0
    #: a model's scores
    judge: Weight = 0.3
    #: what users did with the answer (`feedback_events`)
    event: Weight = 0.1


class LearningSettings(Section):
    """Times of learning: when decisions are learned, and how often routers get a new snapshot."""

    #: 0: the first feedback closes a decision; above 0: feedback collects for that long after the decision
    wait_s: Annotated[float, Field(ge=0)] = 0.0
    #: how the feedback of one decision becomes one reward; above 0 s of wait_s only
    aggregate: Aggregate = "first"
    #: rows that one judgement counts as, by who judged: the most trusted of those in time makes the reward
    weights: WeightSettings = WeightSettings()
    #: factor on the weight of a source's judgements, by "key:ID", "role:NAME", "tenant:NAME", "rater:NAME" or
    #: "import:NAME"; * at the end stands for all that begin so. 0: stored, not learned. docs/feedback.md says more
    sources: dict[SourceName, Weight] = Field(default_factory=dict, max_length=1000)
    #: most feedback of one named rater that is learned in a UTC day; more is stored, not learned. 0: no cap
    rater_per_day: Annotated[int, Field(ge=0)] = 500
    #: answers that people can label a day: so many are chosen for the label queue (docs/feedback.md); 0: none
    labels_per_day: Annotated[int, Field(ge=0, le=100_000)] = 0
    #: reward value where the time ran out without feedback; None learns nothing from such a decision
    default_reward: float | None = None
    #: after that long a decision without feedback or outcome is closed (with wait_s > 0: without outcome)
    expire_s: Seconds = 7 * 86400.0
    #: most decisions closed in one transaction
    batch: Annotated[int, Field(ge=1, le=5000)] = 256
    #: least time between two snapshots, and so between two rounds of learning
    snapshot_interval_s: Annotated[float, Field(ge=0, le=60)] = 0.05
    #: newest snapshots whose files are kept, beside a few older ones; the ledger can make any of them again
    snapshots_kept: Count = 20
    #: a learner that is not heard of for that long has lost its ledger to the next one
    lease_s: Annotated[float, Field(ge=1)] = 10.0
