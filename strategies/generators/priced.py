"""Priced generator: what the tokens of any generator cost, for one that does not know it."""

from collections.abc import Sequence
from dataclasses import replace

from ragbandit.strategies.base import Completion, Generator, Need, Prompt, Request


class PricedGenerator(Generator):
    """Another generator, with dollars in its completions. price: dollars per million tokens read, and written."""

    capabilities: frozenset[Need] = frozenset({"completion", "stop"})

    def __init__(self, generator: Generator, *, price: Sequence[float]) -> None:
        self.name = generator.name
        self.capabilities = generator.capabilities
        self.context_tokens = generator.context_tokens
        self._generator = generator
        self._per_read, self._per_written = price

    def count_tokens(self, prompt: Prompt) -> int:
        """The generator's own count."""
        return self._generator.count_tokens(prompt)

    async def complete(self, request: Request) -> Completion:
        """The generator's completion, and what its tokens cost."""
        done = await self._generator.complete(request)
        spent = done.prompt_tokens * self._per_read + done.completion_tokens * self._per_written
        return replace(done, dollars=done.dollars + spent / 1e6)

    async def close(self) -> None:
        """Close the generator."""
        await self._generator.close()
