import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.answer_stream import first_stop
from ragbandit.strategies.base import Completion, Generator, Need, Prompt, Request
from ragbandit.strategies.generators.parts import plain_parts


@dataclass(frozen=True, kw_only=True, slots=True)
class Scripted:
    """An answer with details, see ragbandit.strategies.generators.parts."""

    text: str
    details: Mapping[Need, object] = field(default_factory=dict)


Reply = str | Scripted
_PIECE = re.compile(r"\s*\S+|\s+$")  #: a word with the white space before it, or the white space at the end


class ScriptedGenerator(Generator):
    """Returns scripted answers. A token is a word. Obeys stop strings, max_tokens and the deadline like a model.

        generator = ScriptedGenerator(["Paris was founded by a tribe.", "So the answer is: the Parisii."])
        outcome = await run_strategy(arm, ..., generator=generator)
        assert "Paris" in generator.prompts[0].body

    answers: a sequence with an answer for each call (further calls raise ArmFailed); or a mapping from a part of the
    prompt to the answer (the first match is taken, "" matches every prompt); or a function from prompt to answer.
    seconds: duration of a call before its first word. If the deadline passes meanwhile, half of the words are written.
    word_seconds: pause before every further word. If the deadline passes meanwhile, the words so far are written.
    fail_at: numbers of the calls, from 1, that raise ArmFailed. dollars: price of every call.
    details: need -> detail for requests with this need. A detail in the answer itself (a `Scripted`) has precedence.
    Attributes: `requests` has every request, also of failed calls; `closed` is True after `close`.
    """

    capabilities: frozenset[Need] = frozenset({"completion", "stop"})

    def __init__(
        self,
        answers: Sequence[Reply] | Mapping[str, Reply] | Callable[[Prompt], Reply],
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
        return [request.prompt for request in self.requests]

    def count_tokens(self, prompt: Prompt) -> int:
        return sum(len(part.split()) for part in plain_parts(prompt))

    async def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        number = len(self.requests)
        is_late = await self._wait(self._seconds, deadline=request.deadline)
        if number in self._fail_at:
            raise ArmFailed(f"the script fails at call {number}")
        answer = self._answer(request.prompt)
        scripted = Scripted(text=answer) if isinstance(answer, str) else answer
        text = scripted.text[: first_stop(scripted.text, request.stop)]
        tokens = text.split()
        finish: Literal["stop", "length", "deadline"] = "stop"
        if len(tokens) > request.max_tokens:
            tokens, finish = tokens[: request.max_tokens], "length"
        if is_late:
            tokens, finish = tokens[: len(tokens) // 2], "deadline"
        text = text if finish == "stop" else " ".join(tokens)
        written = await self._write(text, request=request, hurry=is_late)
        details = {**self._details, **scripted.details}
        return Completion(
            text=written,
            prompt_tokens=self.count_tokens(request.prompt),
            completion_tokens=len(written.split()),
            finish=finish if len(written) == len(text) else "deadline",
            details={need: details[need] for need in request.want if need in details},
            dollars=self._dollars,
        )

    async def close(self) -> None:
        self.closed = True

    async def _write(self, text: str, *, request: Request, hurry: bool) -> str:
        """Write the text word by word until the deadline. Returns the written part. hurry: whether to omit pauses."""
        sink, written = request.sink, ""
        if sink is not None or self._word_seconds:
            for piece in _PIECE.findall(text):
                pause = self._word_seconds if written and not hurry else 0.0
                if pause and await self._wait(pause, deadline=request.deadline):
                    break
                written += piece
                if sink is not None:
                    await sink(written)
        else:
            written = text
        return written

    @staticmethod
    async def _wait(seconds: float, *, deadline: float | None) -> bool:
        """Wait for `seconds`, or until an earlier deadline. Returns whether the deadline was earlier."""
        available = float("inf") if deadline is None else deadline - time.monotonic()
        await asyncio.sleep(max(0.0, min(seconds, available)))
        return seconds > available

    def _answer(self, prompt: Prompt) -> Reply:
        if callable(self._answers):
            return self._answers(prompt)
        if isinstance(self._answers, Mapping):
            whole = "\n".join(plain_parts(prompt))
            for piece, answer in self._answers.items():
                if piece in whole:
                    return answer
            raise ArmFailed("the script has no answer for this prompt", remedy='add an answer under the key ""')
        if self._used >= len(self._answers):
            raise ArmFailed(f"the script has only {len(self._answers)} answers")
        self._used += 1
        return self._answers[self._used - 1]
