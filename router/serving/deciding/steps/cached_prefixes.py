"""Cached prefixes: a turn keeps the arm of the previous turn if the cached prompt saves what another arm would gain."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from sqlalchemy import select

from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.router.config.settings import DEFAULT
from ragbandit.router.serving.deciding.steps.step import Batch, Step
from ragbandit.router.serving.deciding.steps.sticky_turns import session_of
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.router.storage.decisions.search import newest_turns
from ragbandit.router.storage.rows.outcome_rows import cost_value
from ragbandit.router.storage.sql.tables import outcomes
from ragbandit.shared.types import ArmName, Decision, Fact, Json, StickyTurn


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedPrefix(Fact):
    key: ClassVar[str] = "cached_prefix"
    #: reward that the best other arm would add
    gain: float
    #: reward that the cached prompt saves
    saves: float


class CachedPrefixes(Step):
    def configure(self, served: ServedPolicy) -> None:
        settings = served.settings
        self._is_on = settings.conversation.sticky_prefix
        self._reward = settings.reward
        self._saved = saved_per_token(settings.worker_arms, generators=settings.named_generators)

    def after(self, batch: Batch) -> None:
        rate = self._reward.cost.get("dollars", 0.0)
        questions = [question for question in batch.questions if question.is_drawn and question.query.session]
        if not (self._is_on and questions and self._saved and rate > 0.0):
            return
        turns = newest_turns(self.database, {session_of(question.query) for question in questions})
        tokens = self._prompt_tokens([turn.last for turn in turns.values()])
        for question in questions:
            last, decision = turns.get(session_of(question.query)), question.decision
            assert decision is not None
            scores = decision.scores  # None if the policy failed, or predicts no rewards
            if last is None or last.arm not in question.arms or scores is None:
                continue
            weight = self._reward.weight if question.cost_weight is None else question.cost_weight
            saves = weight * rate * self._saved.get(last.arm, 0.0) * tokens.get(last.last, 0)
            gain = max(scores) - scores[question.arms.index(last.arm)]
            if gain <= saves > 0.0:
                question.settle(last.arm)
                question.add(StickyTurn(first=last.first, turn=last.turn + 1, turns=0))
                question.add(CachedPrefix(gain=gain, saves=saves))

    def _prompt_tokens(self, ids: Sequence[str]) -> dict[str, int]:
        tokens = {}
        with self.database.read() as connection:
            query = select(outcomes.c.decision_id, outcomes.c.cost).where(outcomes.c.decision_id.in_(ids))
            for key, cost in connection.execute(query):
                with suppress(AttributeError, TypeError, ValueError):  # a damaged row
                    tokens[key] = int(cost_value(cost).prompt_tokens)
        return tokens

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        stay, prefix = StickyTurn.of(decision.facts), CachedPrefix.of(decision.facts)
        if stay is not None and prefix is not None:
            yield (
                f"The turn stays on {decision.arm}, which decision {stay.first} drew: its cached prompt saves "
                f"{prefix.saves:.4g} in reward, and another arm would gain {prefix.gain:.4g}."
            )


def saved_per_token(
    worker_arms: Mapping[str, Mapping[str, Json]], *, generators: Mapping[str, GeneratorSettings]
) -> dict[ArmName, float]:
    """Arm -> dollars that a cached prompt token saves, for arms whose cached tokens are known to be cheaper."""
    saved = {}
    for name, params in worker_arms.items():
        generator = generators.get(str(params.get("generator", DEFAULT)))
        if generator is None:
            continue
        prices = generator.prices_by_model.get(generator.model, ())
        if len(prices) > 2 and prices[0] > prices[2]:
            saved[ArmName(name)] = (prices[0] - prices[2]) / 1e6
    return saved
