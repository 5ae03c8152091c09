"""Sources of what a policy needs besides a question and its features, such as a model's pick of an arm."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.router.policies.base import PolicyNeed
from ragbandit.shared.additions import load_offered
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import ArmName, Json

#: (instructions, material) -> the model's reply
Ask = Callable[[str, str], Awaitable[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelToAsk:
    """A model, the time limit of a call in seconds, and the maximum number of tokens of a reply."""

    generator: GeneratorSettings
    seconds: float
    max_tokens: int


class NeedSource(Protocol):
    """Gets what policies need from a model: by a step before the draw in a service, by `of_question` in `evaluate`."""

    def check(self, policy: PolicySettings, *, generator: GeneratorSettings, undescribed: Sequence[str]) -> None:
        """Raise ConfigError if a service with these settings lacks what the policy needs. Logs probable mistakes.

        undescribed: arms without a description
        """

    def model(self, policy: PolicySettings, *, generator: GeneratorSettings) -> ModelToAsk:
        """The model that these settings name. generator: the default model"""

    async def of_question(
        self, question: str, *, arms: Sequence[ArmName], descriptions: Mapping[str, str], ask: Ask
    ) -> dict[str, Json]:
        """Values to store with the question's request. descriptions: arm -> its task. Raises the errors of `ask`."""


def need_source(need: PolicyNeed) -> NeedSource:
    """The source of a need, from a step of an addition. Raises ConfigError if no step provides it."""
    provided = (step.provides.get(need) for step in load_offered("steps").values())
    source: NeedSource | None = next(filter(None, provided), None)
    if source is None:
        message = f"the policy needs {need!r}, which nothing in this installation provides"
        raise ConfigError(message, field="policy.name", remedy="choose a policy that needs only features or text")
    return source
