"""A model that is called outside of arms, with what its calls cost."""

from dataclasses import dataclass, field

from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.texts.formats import counted, number
from ragbandit.strategies.base import Account, Generator, Prompt
from ragbandit.workers.judge.judge import complete_prompt


@dataclass(kw_only=True)
class BookedModel:
    """Asks a model, and adds up the cost of its calls, including failed calls."""

    generator: Generator
    #: limits of a call
    seconds: float
    max_tokens: int
    #: remedy if a reply does not end within the limits
    remedy: str
    calls: int = 0
    bill: Account = field(default_factory=Account)

    async def ask(self, prompt: Prompt) -> str:
        """Returns the reply. Raises ArmFailed."""
        self.calls += 1
        done = await complete_prompt(
            self.generator, prompt, seconds=self.seconds, max_tokens=self.max_tokens, bill=self.bill
        )
        if done.finish != "stop":
            limit = f"{self.seconds:g} s" if done.finish == "deadline" else f"{self.max_tokens} tokens"
            raise ArmFailed(f"the model's reply did not end within {limit}", remedy=self.remedy)
        return done.text

    @property
    def dollars(self) -> float:
        return self.bill.cost.dollars

    @property
    def facts(self) -> dict[str, str | int | float]:
        cost = self.bill.cost
        tokens = {"prompt_tokens": cost.prompt_tokens, "completion_tokens": cost.completion_tokens}
        return {"model": self.generator.name, "calls": self.calls, **tokens, "dollars": cost.dollars}

    @property
    def summary(self) -> str:
        """Calls, tokens and dollars in words."""
        cost = self.bill.cost
        tokens = f"{cost.prompt_tokens:,} prompt tokens, {cost.completion_tokens:,} written tokens"
        return f"{counted(self.calls, 'call')}, {tokens}, {number(cost.dollars)} dollars"
