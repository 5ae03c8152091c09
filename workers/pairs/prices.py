"""What an answer and its score are expected to cost, from answers of these arms, or from the settings without any."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ragbandit.router.config.settings import GeneratorSettings
from ragbandit.shared.model_servers.token_usage import Tokens
from ragbandit.shared.types import ArmName

#: tokens that are assumed of the prompt and the reply of an arm or a judge that has not been asked yet
READ, WRITTEN = 2000, 500
#: number of answers of an arm, or of scores, from which their own mean is expected
ENOUGH: Final = 5


@dataclass(kw_only=True)
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, dollars: float) -> None:
        self.total, self.count = self.total + dollars, self.count + 1


@dataclass(kw_only=True)
class Prices:
    """Means of dollars, which follow what is paid."""

    #: arm -> mean dollars of its answers before this run
    arms: Mapping[ArmName, float]
    #: mean dollars of scores before this run
    score: float
    #: arms, and "the judge", that have not been asked here, so that `assumed_dollars` prices them
    assumed: Sequence[str] = ()
    _paid: dict[str, _Mean] = field(default_factory=dict)

    def of(self, arm: ArmName) -> float:
        """Expected dollars of an answer."""
        return self._expected(arm, before=self.arms.get(arm, 0.0))

    def of_score(self) -> float:
        return self._expected("", before=self.score)

    def add(self, arm: ArmName, dollars: float) -> None:
        self._paid.setdefault(arm, _Mean()).add(dollars)

    def add_score(self, dollars: float) -> None:
        self._paid.setdefault("", _Mean()).add(dollars)

    def _expected(self, name: str, *, before: float) -> float:
        """The mean of this run. With fewer than ENOUGH numbers, at least the mean before the run."""
        paid = self._paid.get(name)
        if paid is None:
            return before
        mean = paid.total / paid.count
        return mean if paid.count >= ENOUGH else max(before, mean)


def assumed_dollars(generator: GeneratorSettings | None) -> float:
    """Dollars of one call of a model that has not been asked yet; 0.0 without prices."""
    price = None if generator is None else generator.prices_by_model.get(generator.model)
    return 0.0 if price is None else Tokens(read=READ, written=WRITTEN).dollars(price)
