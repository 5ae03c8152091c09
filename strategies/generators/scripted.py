"""Scripted generator: fixed replies, for tests of this repository and of users.

    generator = ScriptedGenerator(["Paris was founded by a tribe.", "So the answer is: the Parisii."])
    retriever = MemoryRetriever([Passage(id="p1", title="Paris", text="...")])
    outcome = await run_strategy(arm, ..., retriever=retriever, generator=generator)
    assert "Paris" in generator.prompts[0].body

Generator and retriever pass the same contract checks as the real ones. Concurrent questions may share them, except that
a list of answers is used up in the order of the calls.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.base import Completion, Generator, Need, Prompt, Request
from ragbandit.strategies.generators.text_feed import TextFeed, first_stop, plain_parts


@dataclass(frozen=True, kw_only=True, slots=True)
class Scripted:
    """An answer with the details that a model would return with it."""

    text: str
    #: need -> detail, see ragbandit.strategies.generators.text_feed
    details: Mapping[Need, object] = field(default_factory=dict)


Said = str | Scripted

#: a word and the white space before it, or the white space at the end
_PIECE = re.compile(r"\s*\S+|\s+$")


class ScriptedGenerator(Generator):
    """Returns scripted answers; a token is a word. Respects stop strings, max_tokens and the deadline like a model.

    answers: a sequence with an answer per call, after which calls raise ArmFailed; or a mapping from a part of the
    prompt to the answer, of which the first match counts ("" matches every prompt); or a function from the prompt to
    the answer. An answer is text, or a Scripted with its own details.
    seconds: duration of a call before its first word. If the deadline passes, half of the words are written.
    word_seconds: pause before every further word, which goes to the request's sink. A deadline leaves the words so far.
    fail_at: numbers of the calls, from 1, that raise ArmFailed.
    dollars: price of every call.
    details: need -> detail that a request with this need gets.
    Attributes: `requests` has every request, also of failed calls; `prompts` their prompts; `closed` whether `close`
    was called.
    """

    capabilities: frozenset[Need] = frozenset({"completion", "stop"})

    def __init__(
        self,
        answers: Sequence[Said] | Mapping[str, Said] | Callable[[Prompt], Said],
        *,
        name: str = "scripted",
        capabilities: Iterable[Need] | None = None,
        context_tokens: int | None = 4096,
        seconds: float = 0.0,
        word_seconds: float = 0.0,
        fail_at: Iterable[int] = (),
        dollars: float = 0.0,
        details: Mapping[Need, object] | None = None,
    ) -> None:
        self.name = name
        if capabilities is not None:
            self.capabilities = frozenset(capabilities)
        self.context_tokens = context_tokens
        self.requests: list[Request] = []
        self.closed = False
        self._answers = answers
        self._used = 0
        self._seconds = seconds
        self._word_seconds = word_seconds
        self._fail_at = frozenset(fail_at)
        self._dollars = dollars
        self._details = dict(details or {})

    @property
    def prompts(self) -> list[Prompt]:
        """The prompt of every request."""
        return [request.prompt for request in self.requests]

    def count_tokens(self, prompt: Prompt) -> int:
        """Number of words of the prompt and of earlier messages."""
        return sum(len(part.split()) for part in plain_parts(prompt))

    async def complete(self, request: Request) -> Completion:
        """The scripted answer, cut like a model's. Raises ArmFailed by `fail_at`, or without an answer left."""
        self.requests.append(request)
        number = len(self.requests)
        late = await self._is_late(self._seconds, deadline=request.deadline)
        if number in self._fail_at:
            raise ArmFailed(f"the script fails at call {number}")
        answer = self._answer(request.prompt)
        scripted = Scripted(text=answer) if isinstance(answer, str) else answer
        text = scripted.text[: first_stop(scripted.text, request.stop)]
        sources = (self._details, scripted.details)  # the last one that has a need counts
        words = text.split()
        finish: Literal["stop", "length", "deadline"] = "stop"
        if len(words) > request.max_tokens:
            words, finish = words[: request.max_tokens], "length"
        if late:
            words, finish = words[: len(words) // 2], "deadline"
        text = text if finish == "stop" else " ".join(words)
        written = await self._write(text, request=request, hurry=late)
        if len(written) < len(text):
            text, words, finish = written, written.split(), "deadline"
        return Completion(
            text=text,
            prompt_tokens=self.count_tokens(request.prompt),
            completion_tokens=len(words),
            finish=finish,
            details={need: details[need] for need in request.want for details in sources if need in details},
            dollars=self._dollars,
        )

    async def close(self) -> None:
        """Set `closed`."""
        self.closed = True

    async def _write(self, text: str, *, request: Request, hurry: bool) -> str:
        """Write the text word by word until the deadline; without pauses if `hurry`. Returns the written part."""
        feed, written = TextFeed(request), ""
        if feed.wanted or self._word_seconds:
            for piece in _PIECE.findall(text):
                pause = self._word_seconds if written and not hurry else 0.0
                if pause and await self._is_late(pause, deadline=request.deadline):
                    break
                written += piece
                await feed.grow(written)
        else:
            written = text
        await feed.end(written)
        return written

    @staticmethod
    async def _is_late(seconds: float, *, deadline: float | None) -> bool:
        """Wait `seconds`, at most until the deadline. Returns whether the deadline came first."""
        left = float("inf") if deadline is None else deadline - time.monotonic()
        await asyncio.sleep(max(0.0, min(seconds, left)))
        return seconds > left

    def _answer(self, prompt: Prompt) -> Said:
        if callable(self._answers):
            return self._answers(prompt)
        if isinstance(self._answers, Mapping):
            whole = "\n".join(plain_parts(prompt))
            for piece, answer in self._answers.items():
                if piece in whole:
                    return answer
            raise ArmFailed("the script has no answer for this prompt", remedy='add one under ""')
        if self._used >= len(self._answers):
            raise ArmFailed(f"the script has only {len(self._answers)} answers")
        self._used += 1
        return self._answers[self._used - 1]
