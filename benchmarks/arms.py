"""Own time of an arm, besides waiting for model and retriever: milliseconds per retrieve-and-generate round.

Own time is the processor time of `run_strategy`, which a busy machine blurs least, without that inside
`Generator.complete` and `Retriever.search`, and without making tokens of every prompt once, which the model cannot be
spared: that is the baseline. It is made by the tokenizer of the local model where that can be had; every further count
of the same prompt is the arm's own. Replies are scripted: sentences of the handbook in the form that each prompt asks
for, drawn by a fixed seed, so that every arm walks its several ways; what a model tells beside its text has the shapes
of SmolLM2-135M. Passages have 100 words, 5 to a search and 10 to a question wherever an arm has such a param.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, get_args

import numpy as np

from benchmarks.figures import Figure, print_figures
from ragbandit.router.config.settings import GeneratorSettings
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import Budget, DecisionId, Json, Query
from ragbandit.strategies.base import Completion, Generator, Hit, Need, Passage, Prompt, Request, Retriever
from ragbandit.strategies.generators.token_details import Attention, Token
from ragbandit.strategies.registry import ARMS, make_arms
from ragbandit.strategies.retrievers.corpus import read_corpus
from ragbandit.strategies.run import Strategy
from ragbandit.strategies.runner import run_strategy
from ragbandit.workers.wiring.generators import make_generator

HANDBOOK = Path(__file__).parents[1] / "examples" / "handbook"
#: milliseconds of an arm's own per round at most: the promise
PROMISE: Final = 2.0
QUESTIONS, WARM_UP, RUNS = 50, 3, 3
#: words of a passage; passages to a search and to a question
WORDS, PASSAGES, HELD = 100, 5, 10
#: heads of the last layer, layers, width: SmolLM2-135M
HEADS, LAYERS, WIDTH = 9, 30, 576
#: an arm that is another pipeline: all of its time is waiting
ELSEWHERE = ("http", "callable")
#: what the reflection tokens of self_rag_trained are called
REFLECTIONS: Final = (
    ("[Retrieval]", "[No Retrieval]"),
    ("[Relevant]", "[Irrelevant]"),
    ("[Fully supported]", "[Partially supported]", "[No support / Contradictory]"),
    tuple(f"[Utility:{level}]" for level in range(1, 6)),
)
_TOKEN = re.compile(r"\s*\w{1,5}|\s*[^\w\s]|\s+")

Say = Callable[[Random, str], str]
#: first words of a prompt's instructions -> how it is answered, with a sentence at hand; any other prompt by that alone
FORMS: Final[Mapping[str, Say]] = {
    "Compare two notes": lambda chance, _: chance.choice([" true}", " true}", " false}", " better"]),
    "Ask two short questions": lambda _, words: f" What is known of {words}?\n2. Who told of {words[:20]}?",
    "Answer the question with the help of a library": lambda chance, words: (
        f" The place is missing.\nAction 1: {chance.choice(['search', 'search', 'lookup'])}[{words.split()[0]}]"
    ),
    "Choose what to do next": lambda chance, _: chance.choice([" rewrite", " decompose", " disambiguate", " answer"]),
    "Split the question": lambda _, words: f" What is {words[:30]}?\n2. Who is {words[:20]}?",
    "The question can be meant": lambda _, words: f" Is it {words[:30]}?\n2. Is it {words[:20]}?",
    "Does the passage say": lambda chance, _: chance.choice([" yes", " no"]),
    "Can the answer be found": lambda chance, _: chance.choice([" yes", " no"]),
    "Does the answer settle": lambda chance, _: chance.choice([" yes", " no"]),
    "Decide for each passage": lambda chance, words: "".join(
        f" {number} is {chance.choice(['useful', 'useless'])}: {words[:30]}\nPassage"
        for number in range(1, PASSAGES + 1)
    ),
    "Write one short line": lambda _, words: f'{words}" So the answer is: {words.split()[0]}.',
}


def main() -> None:
    """Print the table."""
    passages = pieces()
    lines = (HANDBOOK / "questions.jsonl").read_text("utf-8").splitlines()[: WARM_UP + QUESTIONS]
    questions = [json.loads(line)["question"] for line in lines]
    counting, counted_by = tokenizer()
    found = {
        name: own_times(arm, questions=questions, passages=passages, counting=counting) for name, arm in arms().items()
    }
    print_figures(
        f"own time of an arm per round, p50 of {QUESTIONS} questions, tokens made by {counted_by}",
        [
            Figure(name=name, unit="ms", ours=own, baseline=counted, against="its prompts made tokens once")
            for name, (own, counted) in sorted(found.items(), key=lambda item: item[1])
        ],
    )
    above = ", ".join(name for name, (own, _) in found.items() if own > PROMISE)
    print(f"promise: at most {PROMISE:.0f} ms a round; above it: {above or 'none'}; left out: {', '.join(ELSEWHERE)}")


def arms() -> dict[str, Strategy]:
    """Every arm of ours that runs here, with the benchmark's passages."""
    every = frozenset(get_args(Need))
    made: dict[str, Strategy] = {}
    for name in sorted(set(ARMS) - set(ELSEWHERE)):
        plain = next(iter(make_arms({name: {}}, capabilities=every).values()))
        made[name] = next(iter(make_arms({name: widened(plain.params)}, capabilities=every).values()))
    return made


def widened(params: Mapping[str, Json]) -> dict[str, object]:
    """The params with which an arm searches for PASSAGES at a time and holds at most HELD."""
    each = [key for key in ("passages_per_round", "passages_per_search", "passages_per_query") if key in params]
    if each:
        return {"passages": HELD, **dict.fromkeys(each, PASSAGES)}
    return {"passages": PASSAGES} if "passages" in params else {}


def pieces() -> list[Passage]:
    """The handbook's words in passages of WORDS each."""
    words = [word for passage in read_corpus(HANDBOOK / "corpus.jsonl") for word in passage.text.split()]
    whole = range(0, len(words) - WORDS, WORDS)
    return [
        Passage(id=f"p{at}", title=" ".join(words[at : at + 3]), text=" ".join(words[at : at + WORDS])) for at in whole
    ]


def tokenizer() -> tuple[Callable[[Prompt], int], str]:
    """Token counter for prompts, and its name: the local model's own, else a count of words."""
    try:
        generator = make_generator(GeneratorSettings())
    except ConfigError as error:
        print(f"tokens are words here, and counting them is nearly free: {error}")
        return words_in, "words"
    return generator.count_tokens, generator.name


def words_in(prompt: Prompt) -> int:
    """Words of a prompt."""
    return sum(len(part.split()) for part in (prompt.instructions, prompt.body, prompt.prefix))


@dataclass(kw_only=True)
class Outside:
    """Seconds that passed outside the arm."""

    seconds: float = 0.0

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Time in the block is not counted as the arm's. The block must not await: others would run meanwhile."""
        began = time.thread_time()
        yield
        self.seconds += time.thread_time() - began


@dataclass(kw_only=True)
class Stocked(Retriever):
    """Finds passages by chance, the same ones for the same query."""

    passages: list[Passage]
    outside: Outside
    name: str = "stocked"

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """As many passages as asked for."""
        with self.outside.passing():
            drawn = Random(query).sample(self.passages, k)
            return tuple(Hit(passage=each, score=float(k - rank)) for rank, each in enumerate(drawn))

    async def close(self) -> None:
        """Nothing to give back."""


@dataclass(kw_only=True)
class Talking(Generator):
    """Replies at once, in the form that was asked for."""

    sentences: list[str]
    counting: Callable[[Prompt], int]
    outside: Outside
    chance: Random = field(default_factory=Random)
    #: seconds of making tokens of the prompts that were sent, once each
    making: float = 0.0
    #: of each prompt that was not sent yet, the seconds of its first count
    first: dict[Prompt, float] = field(default_factory=dict)
    name: str = "talking"
    context_tokens: int = 4096
    capabilities: frozenset[Need] = frozenset(get_args(Need))
    looks: np.ndarray = field(
        default_factory=lambda: np.random.default_rng(0).random((HEADS, 128, 4096), dtype=np.float32)
    )

    def count_tokens(self, prompt: Prompt) -> int:
        """Tokens of the prompt: the arm's own time, but for the first count of a prompt that is sent."""
        began = time.thread_time()
        tokens = self.counting(prompt)
        self.first.setdefault(prompt, time.thread_time() - began)
        return tokens

    async def complete(self, request: Request) -> Completion:
        """A reply with all that was wanted."""
        with self.outside.passing():
            self.making += self.first.pop(request.prompt, 0.0)
            text = self._said(request)
            tokens = _TOKEN.findall(text)
            return Completion(
                text=text,
                prompt_tokens=words_in(request.prompt),
                completion_tokens=len(tokens),
                finish="stop",
                details=self._details(tokens, request=request),
            )

    async def close(self) -> None:
        """Nothing to give back."""

    def _said(self, request: Request) -> str:
        words = self.chance.choice(self.sentences)
        forms = (say for begin, say in FORMS.items() if request.prompt.instructions.startswith(begin))
        text = next(forms, lambda _, sentence: f" {sentence}")(self.chance, words)
        ends = [place for place in (text.find(stop) for stop in request.stop) if place >= 0]
        return text[: min(ends)] if ends else text

    def _details(self, tokens: list[str], *, request: Request) -> dict[str, object]:
        """The tokens' probabilities by a wide spread, so that some of them are doubtful."""
        chances = [self.chance.uniform(0.05, 1.0) for _ in tokens]
        prompt = request.prompt
        keys = tuple(_TOKEN.findall(f"{prompt.instructions}\n{prompt.body}\n{prompt.prefix}")) + tuple(tokens)
        weights = self.looks[:, : len(tokens), : len(keys)]
        trained = {name: -self.chance.uniform(0.1, 3.0) for group in REFLECTIONS for name in group}
        told: dict[str, object] = {
            "logprobs": tuple(
                Token(text=token, logprob=float(np.log(p))) for token, p in zip(tokens, chances, strict=True)
            ),
            "entropy": tuple(3.0 * (1.0 - p) for p in chances),
            "attention": Attention(weights=weights / weights.sum(axis=-1, keepdims=True), keys=keys),
            "hidden_states": np.random.default_rng(len(keys)).standard_normal((LAYERS + 1, WIDTH), dtype=np.float32),
            "trained_tokens": (trained,) * len(tokens),
        }
        return {need: told[need] for need in request.want if need in told}


def own_times(
    arm: Strategy, *, questions: list[str], passages: list[Passage], counting: Callable[[Prompt], int]
) -> tuple[float, float]:
    """Milliseconds per round, p50 of the questions: (of the arm's own, of making tokens of its prompts)."""
    sentences = [f"{sentence.strip()}." for passage in passages for sentence in passage.text.split(".")[1:-1]]
    outside = Outside()
    retriever = Stocked(passages=passages, outside=outside)
    generator = Talking(sentences=sentences, counting=counting, outside=outside)
    found = []
    with asyncio.Runner() as runner:
        for question in questions:
            runs = []
            for number in range(RUNS):
                outside.seconds, generator.making, generator.chance = 0.0, 0.0, Random(question)
                generator.first.clear()
                # No run sees a prompt of the one before: a tokenizer may remember those.
                query = Query(id=DecisionId("d"), text=f"{question}{'?' * number}")
                began = time.thread_time()
                outcome = runner.run(
                    run_strategy(arm, query=query, budget=Budget(), retriever=retriever, generator=generator)
                )
                own = time.thread_time() - began - outside.seconds - generator.making
                if outcome.status != "answered":
                    raise RuntimeError(f"{arm.name} did not answer: {outcome.error or outcome.stop_reason}")
                runs.append([1000 * seconds / max(1.0, outcome.steps) for seconds in (own, generator.making)])
            found.append(np.min(runs, axis=0))
    own, counted = np.median(found[WARM_UP:], axis=0)
    return float(own), float(counted)


if __name__ == "__main__":
    main()
