"""Test doubles: generators that hang, answer late, or return token details."""

import asyncio
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, get_args

import numpy as np

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.base import Completion, Generator, Need, Prompt, Request
from ragbandit.strategies.generators.scripted import Scripted, ScriptedGenerator
from ragbandit.strategies.generators.text_feed import Attention, Token


class HangingGenerator(ScriptedGenerator):
    """Never answers and ignores the deadline."""

    async def complete(self, request: Request) -> Completion:  # noqa: ARG002 the signature of every Generator
        """Sleep for an hour."""
        await asyncio.sleep(3600)
        raise AssertionError("never reached")


class LateGenerator(ScriptedGenerator):
    """Says these texts, the last one again and again; the deadline passes in call `calls`, when all is written."""

    def __init__(self, *texts: str, calls: int | None = None) -> None:
        super().__init__(self._next, capabilities=get_args(Need))
        self._texts = texts
        self._calls = calls

    def _next(self, prompt: Prompt) -> Scripted:
        return with_details(prompt, text=self._texts[min(len(self.requests), len(self._texts)) - 1])

    async def complete(self, request: Request) -> Completion:
        """The text, whole, and in call `calls` as if time had run out with its last word."""
        done = await super().complete(request)
        return replace(done, finish="deadline") if len(self.requests) == self._calls else done


_GROUPS: Final = [
    ["[Retrieval]", "[No Retrieval]"],
    ["[Relevant]", "[Irrelevant]"],
    ["[Fully supported]", "[Partially supported]", "[No support / Contradictory]"],
    [f"[Utility:{level}]" for level in range(1, 6)],
]
_TRAINED: Final = {name: -1.0 - number for group in _GROUPS for number, name in enumerate(group)}


def with_details(prompt: Prompt, *, text: str) -> Scripted:
    """The text, with plausible details for every need: some tokens are sure, some are not."""
    pieces = re.findall(r"\s*\S+|\s+$", text)
    logprobs = [math.log((0.95, 0.5, 0.1)[number % 3]) for number in range(len(pieces))]
    keys = (*re.findall(r"\s*\S+", f"{prompt.instructions}\n{prompt.body}\n{prompt.prefix}"), *pieces)
    weights = np.random.default_rng(len(text)).random((2, len(pieces), len(keys)), dtype=np.float32)
    details: dict[Need, object] = {
        "logprobs": tuple(Token(text=piece, logprob=p) for piece, p in zip(pieces, logprobs, strict=True)),
        "entropy": tuple(-p for p in logprobs),
        "attention": Attention(weights=weights / weights.sum(axis=-1, keepdims=True), keys=keys),
        "hidden_states": np.full((5, 8), len(text), dtype=np.float32) + np.arange(8, dtype=np.float32),
        "trained_tokens": (_TRAINED,) * len(pieces),
    }
    return Scripted(text=text, details=details)


MakeGenerator = Callable[[str], Generator]

TEXT = "The director of Jaws, Steven Spielberg, was born in Cincinnati, a city in Ohio, in the year 1946."
_PROMPT = Prompt(instructions="Answer.", body="Where was the director of Jaws born?")


def streamed(generator: Generator, *, stop: Sequence[str] = ()) -> tuple[Completion, list[str]]:
    """(the completion, the pieces that its sink was given)."""
    pieces: list[str] = []

    async def sink(piece: str) -> None:
        pieces.append(piece)

    async def run() -> Completion:
        try:
            return await generator.complete(Request(prompt=_PROMPT, max_tokens=48, stop=tuple(stop), sink=sink))
        finally:
            await generator.close()

    return asyncio.run(run()), pieces


def check_the_pieces_are_the_text(make: MakeGenerator) -> None:
    """The pieces together are the text of the completion, none of them empty; a text of many words has several."""
    done, pieces = streamed(make(TEXT))
    assert done.text
    assert "".join(pieces) == done.text
    assert all(pieces)
    assert len(pieces) > 1


def check_no_stop_string_leaks(make: MakeGenerator) -> None:
    """No part of a stop string is given out, wherever it is cut; text that only begins like one is."""
    whole = streamed(make(TEXT))[0].text
    middle = len(whole) // 2
    for stop in ([whole[middle : middle + 9]], [whole[middle : middle + 2], whole[middle - 4 : middle + 12]]):
        done, pieces = streamed(make(TEXT), stop=stop)
        assert "".join(pieces) == done.text
        # A model that stops at the first one it has written has not written the other one.
        assert done.text in {whole[: whole.find(each)] for each in stop}
    done, pieces = streamed(make(TEXT), stop=[f"{whole[middle:]} and no more"])
    assert "".join(pieces) == done.text == whole


def check_a_reader_that_fails_fails_the_call(make: MakeGenerator) -> None:
    """A sink that raises ends the call as ArmFailed: it is not called again, and the model is not asked again."""
    calls: list[str] = []

    async def sink(piece: str) -> None:
        calls.append(piece)
        raise ValueError("no more room")

    async def run(generator: Generator) -> None:
        try:
            await generator.complete(Request(prompt=_PROMPT, max_tokens=48, sink=sink))
        finally:
            await generator.close()

    failure: BaseException | None = None
    try:
        asyncio.run(run(make(TEXT)))
    except ArmFailed as error:
        failure = error
    assert "no more room" in str(failure)
    assert len(calls) == 1


def check_a_reader_that_is_cancelled_ends_the_call(make: MakeGenerator) -> None:
    """Cancelling a call while its sink waits ends it with CancelledError, and the generator takes the next call."""

    async def run(generator: Generator) -> None:
        reading = asyncio.Event()

        async def sink(_piece: str) -> None:
            reading.set()
            await asyncio.sleep(3600)

        call = asyncio.create_task(generator.complete(Request(prompt=_PROMPT, max_tokens=48, sink=sink)))
        try:
            async with asyncio.timeout(60):
                await reading.wait()
                call.cancel()
                try:
                    await call
                except asyncio.CancelledError:
                    pass
                else:
                    raise AssertionError("the cancelled call returned")
                done = await generator.complete(Request(prompt=_PROMPT, max_tokens=48))
                assert done.text
        finally:
            await generator.close()

    asyncio.run(run(make(TEXT)))


#: every check of this module
STREAM_CHECKS: tuple[Callable[[MakeGenerator], None], ...] = tuple(
    each for key, each in dict(globals()).items() if key.startswith("check_")
)
