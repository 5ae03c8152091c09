"""What an answer and its score are expected to cost, from answers of these arms, or from the settings without any."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ragbandit.router.config.settings import GeneratorSettings
from ragbandit.router.reporting.paired_questions import AnswerPrice, ComparedQuestion
from ragbandit.shared.model_servers.token_usage import Tokens
from ragbandit.shared.types import ArmName

#: tokens of an answer of an arm that has not been asked yet
_ASSUMED: Final = Tokens(read=2000, written=500)
#: number of answers of an arm, or of scores, from which their own dollars replace what was expected
_ENOUGH: Final = 5
_SCORE: Final = ArmName("")


@dataclass(kw_only=True)
class _Paid:
    dollars: float = 0.0
    expected: float = 0.0
    count: int = 0


@dataclass(kw_only=True)
class AnswerPrices:
    """Expected dollars, which follow what runs of the present arms have paid."""

    #: arm -> price of its answers before these runs
    arms: Mapping[ArmName, AnswerPrice]
    #: mean dollars of scores before this run
    score: float
    #: what is assumed of arms or a judge that have not been asked here, in words
    assumed: Sequence[str] = ()
    _paid: dict[ArmName, _Paid] = field(default_factory=dict)

    def of(self, arm: ArmName, *, question: ComparedQuestion) -> float:
        """Expected dollars of an answer."""
        return self._followed(arm, expected=self._before(arm, question=question))

    def of_score(self) -> float:
        return self._followed(_SCORE, expected=self.score)

    def add(self, arm: ArmName, dollars: float, *, question: ComparedQuestion) -> None:
        """Note what an answer of the present arm has cost."""
        self._add(arm, dollars, expected=self._before(arm, question=question))

    def add_score(self, dollars: float) -> None:
        self._add(_SCORE, dollars, expected=self.score)

    def _before(self, arm: ArmName, *, question: ComparedQuestion) -> float:
        """The dollars of the arm's stored answer to this question, else its price."""
        is_own = question.arm == arm and question.dollars is not None
        return question.dollars or 0.0 if is_own else self.arms[arm].at(question.length)

    def _add(self, name: ArmName, dollars: float, *, expected: float) -> None:
        paid = self._paid.setdefault(name, _Paid())
        paid.dollars, paid.expected, paid.count = paid.dollars + dollars, paid.expected + expected, paid.count + 1

    def _followed(self, name: ArmName, *, expected: float) -> float:
        """`expected`, corrected by the ratio of paid to expected dollars so far.

        At least `expected` while fewer than _ENOUGH payments are known.
        """
        paid = self._paid.get(name)
        if paid is None:
            return expected
        follows = paid.dollars / paid.expected * expected if paid.expected else paid.dollars / paid.count
        return follows if paid.count >= _ENOUGH else max(expected, follows)


def assumed_dollars(generator: GeneratorSettings | None, tokens: Tokens = _ASSUMED) -> float:
    """Dollars of tokens of a model, by default of an assumed answer; 0.0 without prices."""
    price = None if generator is None else generator.prices_by_model.get(generator.model)
    return 0.0 if price is None else tokens.dollars(price)


def assumption(name: str) -> str:
    return f"{name}: {_ASSUMED.read:,} tokens of a prompt, {_ASSUMED.written:,} of a reply"
