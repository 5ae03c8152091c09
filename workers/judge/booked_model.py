"""A model that is asked outside of arms, with what its calls cost."""

import time
from dataclasses import dataclass

from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.types import Cost
from ragbandit.strategies.base import Account, Completion, Generator, Prompt, Request


@dataclass(kw_only=True)
class BookedModel:
    """Asks a model, and counts what its calls cost, also of those that failed."""

    generator: Generator
    #: limits of a call
    seconds: float
    max_tokens: int
    #: what to do if a reply does not end within the limits
    remedy: str
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0

    async def ask(self, prompt: Prompt) -> str:
        """Returns the reply. Raises ArmFailed."""
        lost, deadline = Account(), time.monotonic() + self.seconds
        self.calls += 1
        try:
            request = Request(prompt=prompt, max_tokens=self.max_tokens, deadline=deadline, lost=lost)
            done = await self.generator.complete(request)
            self._book(done)
        finally:
            self._book(lost.cost)
        if done.finish != "stop":
            limit = f"{self.seconds:g} s" if done.finish == "deadline" else f"{self.max_tokens} tokens"
            raise ArmFailed(f"the model's reply did not end within {limit}", remedy=self.remedy)
        return done.text

    def _book(self, call: Completion | Cost) -> None:
        self.prompt_tokens += call.prompt_tokens
        self.completion_tokens += call.completion_tokens
        self.dollars += call.dollars

    @property
    def facts(self) -> dict[str, str | int | float]:
        tokens = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
        return {"model": self.generator.name, "calls": self.calls, **tokens, "dollars": self.dollars}
