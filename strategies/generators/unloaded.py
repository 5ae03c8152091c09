"""The generator of arms that ask none: its name and its limits, and no model behind them."""

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.base import Completion, Generator, Need, Prompt, Request


class UnloadedGenerator(Generator):
    """Stands for a generator that no arm asks: a call is an error of the arm that said that it asks none."""

    capabilities: frozenset[Need] = frozenset()

    def __init__(self, *, name: str, context_tokens: int) -> None:
        self.name = name
        self.context_tokens = context_tokens

    def count_tokens(self, prompt: Prompt) -> int:
        """Characters: more than any model's tokens."""
        return len(prompt.instructions) + len(prompt.body) + len(prompt.prefix)

    async def complete(self, request: Request) -> Completion:
        """Raises ArmFailed."""
        del request
        raise ArmFailed(
            "the arm asked a model, and its class says generates = False", remedy="remove that from the class"
        )

    async def close(self) -> None:
        """Nothing to close."""
