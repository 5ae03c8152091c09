"""Arms that ask other arms of the configuration, and the types of the parts that workers give such an arm."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from ragbandit.shared.types import ArmName
from ragbandit.strategies.base import Account, Generator, Passage, Retriever
from ragbandit.strategies.run import Strategy


class Check(Protocol):
    """Scores answers with a function that runs in its own process."""

    name: str

    def score(self, *, question: str, answer: str, sources: Sequence[Passage]) -> float | None:
        """Returns a score from 0 to 1; None if the function gives no score. Blocks the thread. Raises ArmFailed."""

    async def close(self) -> None: ...


class Graded(Protocol):
    @property
    def value(self) -> float:
        """A score from 0 to 1."""


class Grader(Protocol):
    """Scores answers with a model; the class Judge of the workers implements this protocol."""

    generator: Generator

    async def score(
        self, question: str, *, answer: str, sources: Sequence[Passage], bill: Account, generator: Generator | None
    ) -> Graded:
        """Score an answer, and add the cost to `bill`. generator: the model to ask; None for the judge's own. Raises
        ArmFailed.
        """


class ArmPart(NamedTuple):
    """An arm that a composite arm asks by `part.strategy.answer(question, run=run)`, with its resources."""

    strategy: Strategy
    generator: Generator
    retriever: Retriever


class CompositeArm(ABC):
    """Base of arms that ask other arms. Workers load the parts first, and then call `bind`."""

    name: ArmName
    #: the loaded arms by param, as in `part_names`; empty before `bind`
    parts: Mapping[str, ArmPart] = MappingProxyType({})

    @property
    @abstractmethod
    def part_names(self) -> Mapping[str, str | dict[str, Any]]:
        """Param -> name of an arm of the configuration, or the definition of one."""

    @property
    def check(self) -> str | None:
        """Path of the function, as in `reward.check`, that the arm needs as its check; None if it needs none."""
        return None

    @property
    def judged(self) -> bool:
        """Whether the arm needs the judge of the settings' section `judge`."""
        return False

    @property
    def runs_on(self) -> list[Generator | Retriever | Check]:
        """The generators, retrievers and checks of the arm's parts, and of parts of these parts. Valid after `bind`."""
        resources: list[Generator | Retriever | Check] = []
        for part in self.parts.values():
            resources += [part.generator, part.retriever]
            if isinstance(part.strategy, CompositeArm):
                resources += part.strategy.runs_on
        return resources

    def bind(self, parts: Mapping[str, ArmPart], *, check: Check | None = None, judge: Grader | None = None) -> None:
        """Set the arms (keys as in `part_names`), the check and the judge. Raises ConfigError."""
        del check, judge  # subclasses that need a check or a judge take them
        self.parts = dict(parts)
