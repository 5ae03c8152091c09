"""Test doubles: generators that hang, answer late or return token details, and a reader that records. Checks of the
contract of streaming generators.
"""

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import get_args

import numpy as np

from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.types import Json
from ragbandit.strategies.answer_stream import AnswerReader, AnswerStream
from ragbandit.strategies.base import Completion, Generator, Need, Prompt, Request
from ragbandit.strategies.generators.parts import Attention, Token
from ragbandit.strategies.generators.scripted import Scripted, ScriptedGenerator
from ragbandit.strategies.registry import built_in_arms


class HangingGenerator(ScriptedGenerator):
    """A generator that never answers and ignores the deadline."""

    async def complete(self, request: Request) -> Completion:  # noqa: ARG002 - signature of Generator
        """Wait an hour and ignore the deadline."""
        await asyncio.sleep(3600)
        raise AssertionError("never reached")


class LateGenerator(ScriptedGenerator):
    """Returns `texts` in order, and repeats the last one. Call number `calls` ends at the deadline."""

    def __init__(self, *texts: str, calls: int | None = None) -> None:
        super().__init__(self._next, capabilities=get_args(Need))
        self._texts = texts
        self._calls = calls

    def _next(self, prompt: Prompt) -> Scripted:
        return with_details(prompt, text=self._texts[min(len(self.requests), len(self._texts)) - 1])

    async def complete(self, request: Request) -> Completion:
        """Return the whole text; in call number `calls` with the finish reason "deadline"."""
        completion = await super().complete(request)
        return replace(completion, finish="deadline") if len(self.requests) == self._calls else completion


def with_details(prompt: Prompt, *, text: str) -> Scripted:
    """The text with plausible details for every Need. Token probabilities are 0.95, 0.5 and 0.1 in turn."""
    pieces = re.findall(r"\s*\S+|\s+$", text)
    logprobs = [math.log((0.95, 0.5, 0.1)[number % 3]) for number in range(len(pieces))]
    keys = tuple(re.findall(r"\s*\S+", f"{prompt.instructions}\n{prompt.body}\n{prompt.prefix}") + pieces)
    weights = np.random.default_rng(len(text)).random((2, len(pieces), len(keys)), dtype=np.float32)
    details: dict[Need, object] = {
        "logprobs": tuple(Token(text=piece, logprob=p) for piece, p in zip(pieces, logprobs, strict=True)),
        "entropy": tuple(-p for p in logprobs),
        "attention": Attention(weights=weights / weights.sum(axis=-1, keepdims=True), keys=keys),
        "hidden_states": np.full((5, 8), len(text), dtype=np.float32) + np.arange(8, dtype=np.float32),
        "trained_tokens": (_trained(),) * len(pieces),
    }
    return Scripted(text=text, details=details)


@cache
def _trained() -> Mapping[str, float]:
    """Log-probability of each trained token that a built-in arm reads."""
    groups = [group for kind in built_in_arms().values() for group in getattr(kind, "token_groups", ())]
    return {name: -1.0 - number for group in groups for number, name in enumerate(group)}


class RecordingReader:
    """A reader of a streamed answer that stores all pieces and notes."""

    reading = True

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.notes: list[str] = []

    async def text(self, piece: str) -> None:
        """Store a piece."""
        self.pieces.append(piece)

    async def delta(self, delta: Mapping[str, Json]) -> None:
        """Ignore the other fields of a message."""

    def note(self, text: str) -> None:
        """Store a note."""
        self.notes.append(text)


MakeGenerator = Callable[[str], Generator]

TEXT = "The director of Jaws, Steven Spielberg, was born in Cincinnati, a city in Ohio, in the year 1946."
_PROMPT = Prompt(instructions="Answer.", body="Where was the director of Jaws born?")


async def _run(generator: Generator, *, reader: AnswerReader, stop: Sequence[str]) -> Completion:
    sink = AnswerStream(reader).sink(str, stop=tuple(stop))
    try:
        done = await generator.complete(Request(prompt=_PROMPT, max_tokens=48, stop=tuple(stop), sink=sink))
    finally:
        await generator.close()
    assert sink is not None
    await sink.end(done.text)
    return done


def streamed(generator: Generator, *, stop: Sequence[str] = ()) -> tuple[Completion, list[str]]:
    """Run a request that streams. Returns (completion, pieces that the reader of its text received)."""
    reader = RecordingReader()
    return asyncio.run(_run(generator, reader=reader, stop=stop)), reader.pieces


def check_the_pieces_are_the_text(make: MakeGenerator) -> None:
    """The joined pieces are the text of the completion. No piece is empty."""
    completion, pieces = streamed(make(TEXT))
    assert completion.text
    assert "".join(pieces) == completion.text
    assert pieces
    assert all(pieces)


def check_no_stop_string_leaks(make: MakeGenerator) -> None:
    """No part of a stop string is streamed. Text that only begins like a stop string is streamed."""
    text = streamed(make(TEXT))[0].text
    middle = len(text) // 2
    for stops in ([text[middle : middle + 9]], [text[middle : middle + 2], text[middle - 4 : middle + 12]]):
        completion, pieces = streamed(make(TEXT), stop=stops)
        assert "".join(pieces) == completion.text
        # The model may end at either stop string: at the first one that it has written completely.
        assert completion.text in {text[: text.find(stop)] for stop in stops}
    completion, pieces = streamed(make(TEXT), stop=[f"{text[middle:]} and no more"])
    assert "".join(pieces) == completion.text == text


def check_a_reader_that_fails_fails_the_call(make: MakeGenerator) -> None:
    """If the reader raises an error, the call raises ArmFailed and does not call the reader again."""

    class Full(RecordingReader):
        async def text(self, piece: str) -> None:
            self.pieces.append(piece)
            raise ValueError("no more room")

    reader = Full()

    failure = ""
    try:
        asyncio.run(_run(make(TEXT), reader=reader, stop=()))
    except ArmFailed as error:
        failure = str(error)
    assert "no more room" in failure
    assert len(reader.pieces) == 1


def check_a_reader_that_is_cancelled_ends_the_call(make: MakeGenerator) -> None:
    """A call that is cancelled while its sink waits raises CancelledError. The generator answers the next call."""

    async def run(generator: Generator) -> None:
        reading = asyncio.Event()

        async def sink(_text: str) -> None:
            reading.set()
            await asyncio.sleep(3600)

        call = asyncio.create_task(generator.complete(Request(prompt=_PROMPT, max_tokens=48, sink=sink)))
        try:
            async with asyncio.timeout(60):
                await reading.wait()
                call.cancel()
                await asyncio.wait([call])
                assert call.cancelled(), "the cancelled call did not raise CancelledError"
                completion = await generator.complete(Request(prompt=_PROMPT, max_tokens=48))
                assert completion.text
        finally:
            await generator.close()

    asyncio.run(run(make(TEXT)))


STREAM_CHECKS: tuple[Callable[[MakeGenerator], None], ...] = tuple(
    check for name, check in dict(globals()).items() if name.startswith("check_")
)
