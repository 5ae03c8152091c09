"""The contract of generators that write piece by piece: a check needs no test tool.

A check takes `make`, a function from the words that the model is to say to a generator that says them, and raises
AssertionError if the generator breaks the contract. A generator that cannot be told its words (a real model) is made
whatever they are: the checks compare what it gave out with what it returned. Run all of `STREAM_CHECKS`.
"""

import asyncio
from collections.abc import Callable, Sequence

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.base import Completion, Generator, Prompt, Request

MakeGenerator = Callable[[str], Generator]

TEXT = "The director of Jaws, Steven Spielberg, was born in Cincinnati, a city in Ohio, in the year 1946."
_PROMPT = Prompt(instructions="Answer.", body="Where was the director of Jaws born?")


def streamed(
    generator: Generator, *, stop: Sequence[str] = (), max_tokens: int = 48, pause_s: float = 0.0
) -> tuple[Completion, list[str]]:
    """(the completion, the pieces that its sink was given); pause_s: how long the sink takes for each."""
    pieces: list[str] = []

    async def sink(piece: str) -> None:
        pieces.append(piece)
        await asyncio.sleep(pause_s)

    async def run() -> Completion:
        try:
            return await generator.complete(Request(prompt=_PROMPT, max_tokens=max_tokens, stop=tuple(stop), sink=sink))
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


def check_the_text_is_the_same_without_a_reader(make: MakeGenerator) -> None:
    """Whether somebody reads along changes nothing about the completion."""

    async def alone(generator: Generator) -> Completion:
        try:
            return await generator.complete(Request(prompt=_PROMPT, max_tokens=48))
        finally:
            await generator.close()

    alone_done, (done, _) = asyncio.run(alone(make(TEXT))), streamed(make(TEXT))
    assert (done.text, done.finish) == (alone_done.text, alone_done.finish)
    assert (done.prompt_tokens, done.completion_tokens) == (alone_done.prompt_tokens, alone_done.completion_tokens)


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


def check_a_slow_reader_gets_all(make: MakeGenerator) -> None:
    """A reader that takes its time for every piece gets the whole text."""
    done, pieces = streamed(make(TEXT), pause_s=0.01)
    assert "".join(pieces) == done.text


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


STREAM_CHECKS: tuple[Callable[[MakeGenerator], None], ...] = (
    check_the_pieces_are_the_text,
    check_the_text_is_the_same_without_a_reader,
    check_no_stop_string_leaks,
    check_a_slow_reader_gets_all,
    check_a_reader_that_fails_fails_the_call,
    check_a_reader_that_is_cancelled_ends_the_call,
)
