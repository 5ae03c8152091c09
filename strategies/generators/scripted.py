"""Scripted generator: replies that are fixed beforehand, for tests, yours as well as ours.

    generator = ScriptedGenerator(["Paris was founded by a tribe.", "So the answer is: the Parisii."])
    retriever = MemoryRetriever([Passage(id="p1", title="Paris", text="...")])
    outcome = await run_strategy(arm, ..., retriever=retriever, generator=generator)
    assert "Paris" in generator.prompts[0].body

Generator and retriever take the same contract checks as the real ones and are safe to share between concurrent
questions, except that a list of answers is used up in the order of the calls.
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
    """An answer with what the model would have told beside it."""

    text: str
    #: by need, as ragbandit.strategies.generators.text_feed describes them
    details: Mapping[Need, object] = field(default_factory=dict)


Said = str | Scripted

#: a word and the white space before it, or the white space at the end
_PIECE = re.compile(r"\s*\S+|\s+$")


class ScriptedGenerator(Generator):
    """Gives scripted answers; a token is a word between white space.

    answers: a sequence, one answer per call in order, and ArmFailed when it is used up; or a mapping from a piece
    of text to the answer given when the prompt contains it, the first match winning ("" matches every prompt); or
    a function from the prompt to the answer. An answer is text, or a Scripted with details of its own. Stop strings,
    max_tokens and the deadline are heeded like a model does; at the deadline half of the answer's words are written.
    seconds: how long every call takes before its first word. word_seconds: pause before every further word, each of
    which goes to the request's sink; the deadline then leaves the words so far. fail_at: the calls, counted
    from 1, that raise ArmFailed. dollars: price of every call. details: what comes back for each need that a request
    wants. `requests` holds every request seen, `prompts` their prompts, those of failing calls
    included. `closed`: whether close was called.
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
        """The prompt of every request seen."""
        return [request.prompt for request in self.requests]

    def count_tokens(self, prompt: Prompt) -> int:
        """Words of the parts, and of what was said before."""
        return sum(len(part.split()) for part in plain_parts(prompt))

    async def complete(self, request: Request) -> Completion:
        """The scripted answer, cut like a model's. Raises ArmFailed when told to or when the script is used up."""
        self.requests.append(request)
        number = len(self.requests)
        late = await self._is_late(self._seconds, deadline=request.deadline)
        if number in self._fail_at:
            raise ArmFailed(f"the script fails at call {number}")
        answer = self._answer(request.prompt)
        scripted = Scripted(text=answer) if isinstance(answer, str) else answer
        text = scripted.text[: first_stop(scripted.text, request.stop)]
        sources = (self._details, scripted.details)  # the last counts, and may be made when it is asked for
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
        """Remember that it was called."""
        self.closed = True

    async def _write(self, text: str, *, request: Request, hurry: bool) -> str:
        """Give the text to the sink word by word; as much of it as the deadline allows, all of it in a hurry."""
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
        """Wait so long, or until the deadline, whichever comes first; whether that was the deadline."""
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
