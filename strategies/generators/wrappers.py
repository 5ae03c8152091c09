"""Generators around another generator: the base class, and the one that adds prices."""

import time
from collections.abc import Sequence
from dataclasses import replace

from ragbandit.shared.model_servers.call_prices import charge
from ragbandit.shared.model_servers.token_usage import Tokens
from ragbandit.shared.types import Cost
from ragbandit.strategies.base import Account, Completion, Generator, Need, Prompt, Request
from ragbandit.strategies.run import provider_of


class GeneratorAround(Generator):
    capabilities: frozenset[Need] = frozenset({"completion", "stop"})

    def __init__(self, generator: Generator) -> None:
        self.name = generator.name
        self.capabilities = generator.capabilities
        self.context_tokens = generator.context_tokens
        self.max_batch = getattr(generator, "max_batch", 1)
        self.provider = provider_of(generator)
        self._generator = generator

    def count_tokens(self, prompt: Prompt) -> int:
        return self._generator.count_tokens(prompt)

    async def close(self) -> None:
        await self._generator.close()


class PricedGenerator(GeneratorAround):
    """Adds dollars to the completions of another generator, and to lost attempts. price: see `Tokens.dollars`."""

    def __init__(self, generator: Generator, *, price: Sequence[float]) -> None:
        super().__init__(generator)
        self._price = price

    async def complete(self, request: Request) -> Completion:
        lost = Account()
        try:
            done = await self._generator.complete(replace(request, lost=lost))
        finally:
            used = Tokens(read=lost.cost.prompt_tokens, written=lost.cost.completion_tokens)
            request.lost.cost += lost.cost + Cost(dollars=used.dollars(self._price, end=time.time()))
        used = Tokens(read=done.prompt_tokens, written=done.completion_tokens, reasoning=done.reasoning_tokens)
        cost = charge(used, quoted=None, model=self.name, lists={self.name: self._price})
        return replace(done, dollars=done.dollars + cost.dollars, price=cost.price)
