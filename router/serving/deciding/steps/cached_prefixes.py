"""Cached prefixes: a turn keeps the arm of the previous turn if the cached prompt saves what another arm would gain."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Final

from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.router.config.settings import DEFAULT
from ragbandit.router.serving.deciding.steps.needs import TOKENS
from ragbandit.router.serving.deciding.steps.step import Batch, Question, Step
from ragbandit.router.serving.deciding.steps.sticky_turns import session_of
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.router.storage.decisions.search import SessionTurn, newest_turns
from ragbandit.router.storage.rows.conversion import canonical, object_or_empty
from ragbandit.router.storage.rows.outcome_rows import own_cost
from ragbandit.shared.texts.formats import duration
from ragbandit.shared.types import ArmName, Cost, Decision, Fact, Json, StickyTurn

_LIFE: Final = re.compile(r'"(?:cache_control":\{[^{}]*"ttl|prompt_cache_retention)":"(\d{1,6})([smh])"')
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedPrefix(Fact):
    key: ClassVar[str] = "cached_prefix"
    #: reward that the best other arm would add
    gain: float
    #: reward that the cached prompt saves, or would have saved before it expired
    saves: float
    #: seconds since the last use of the prompt, if the provider no longer has it; None if it has
    expired_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheLife(Fact):
    key: ClassVar[str] = "cache_life"
    #: for which the request asks the provider to keep its prompt
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptCache:
    """The prompt cache of an arm's provider."""

    #: dollars that a cached prompt token saves, > 0
    saved: float
    #: seconds for which a prompt is kept after its last use
    ttl_s: float
    #: whether the provider charges for tokens that it writes to the cache, and so reports them
    is_written: bool

    def readable(self, cost: Cost, *, is_repeat: bool) -> int:
        """Tokens of a request that the next one finds in the cache. is_repeat: whether the arm had a cached prompt."""
        measured = cost.cached_tokens + cost.cache_write_tokens
        return measured if self.is_written or (is_repeat and not measured) else cost.prompt_tokens


class CachedPrefixes(Step):
    def configure(self, served: ServedPolicy) -> None:
        settings = served.settings
        self._reward = settings.reward
        self._rate = settings.reward.cost.get("dollars", 0.0)
        self._caches: dict[ArmName, PromptCache] = {}
        if settings.conversation.sticky_prefix and self._rate > 0.0:
            self._caches = prompt_caches(settings.worker_arms, generators=settings.named_generators)

    def check(self, question: Question) -> None:
        seconds = cache_life(question.query.conversation.fields) if self._caches else 0.0
        if seconds > 0.0:
            question.add(CacheLife(seconds=seconds))

    def after(self, batch: Batch) -> None:
        questions = [question for question in batch.questions if question.is_drawn and question.query.session]
        if not (self._caches and questions):
            return
        turns = newest_turns(self.database, {session_of(question.query) for question in questions})
        for question in questions:
            last, decision = turns.get(session_of(question.query)), question.decision
            assert decision is not None
            scores = decision.scores  # None if the policy failed, or predicts no rewards
            if last is None or last.arm not in question.arms or scores is None:
                continue
            saves, idle_s = self._saves(question, last=last), batch.now - last.newest["made_at"]
            gain = max(scores) - scores[question.arms.index(last.arm)]
            if gain > saves or saves <= 0.0:
                continue
            life = CacheLife.of(object_or_empty(last.newest["facts"]))
            if idle_s > max(self._caches[last.arm].ttl_s, 0.0 if life is None else life.seconds):
                question.add(CachedPrefix(gain=gain, saves=saves, expired_s=idle_s))
                continue
            question.settle(last.arm)
            question.add(StickyTurn(first=last.first, turn=last.turn + 1, turns=0))
            question.add(CachedPrefix(gain=gain, saves=saves))

    def _saves(self, question: Question, *, last: SessionTurn) -> float:
        """Reward that the prompt of the last turn saves while it is cached."""
        cache, tokens = self._caches.get(last.arm), 0
        if cache is None:
            return 0.0
        with suppress(AttributeError, TypeError, ValueError):  # no outcome, or a damaged row
            tokens = cache.readable(own_cost(last.newest["cost"]), is_repeat=last.newest["id"] != last.first)
        most = question.query.request.get(TOKENS)
        if question.query.own_session is None and isinstance(most, int):
            tokens = min(tokens, most)  # the last turn may be a longer conversation that began alike
        weight = self._reward.weight if question.cost_weight is None else question.cost_weight
        return weight * self._rate * cache.saved * tokens

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        stay, prefix = StickyTurn.of(decision.facts), CachedPrefix.of(decision.facts)
        if prefix is not None and prefix.expired_s is not None:
            idle = duration(prefix.expired_s)
            yield f"The previous arm was not kept for its prompt: the provider's cache has expired, unused for {idle}."
        elif stay is not None and prefix is not None:
            yield (
                f"The turn stays on {decision.arm}, which decision {stay.first} drew: its cached prompt saves "
                f"{prefix.saves:.4g} in reward, and another arm would gain {prefix.gain:.4g}."
            )


def prompt_caches(
    worker_arms: Mapping[str, Mapping[str, Json]], *, generators: Mapping[str, GeneratorSettings]
) -> dict[ArmName, PromptCache]:
    """Arm -> its provider's cache, for arms whose cached tokens are known to be cheaper."""
    caches = {}
    for name, params in worker_arms.items():
        generator = generators.get(str(params.get("generator", DEFAULT)))
        if generator is None:
            continue
        prices = generator.prices_by_model.get(generator.model, ())
        if len(prices) > 2 and prices[0] > prices[2]:
            is_written = len(prices) > 3 and prices[3] != prices[0]
            saved = (prices[0] - prices[2]) / 1e6
            caches[ArmName(name)] = PromptCache(saved=saved, ttl_s=generator.cache_ttl_s, is_written=is_written)
    return caches


def cache_life(chat: Mapping[str, Json]) -> float:
    """The longest time, seconds, for which a chat asks to keep its prompt in the cache; 0.0 if it does not ask.

    Read from `prompt_cache_retention` (OpenAI: "24h") and every `cache_control.ttl` (Anthropic: "5m", "1h").
    """
    # Quotes inside JSON strings are escaped, so this matches only keys and never a message.
    return max((int(count) * _UNITS[unit] for count, unit in _LIFE.findall(canonical(dict(chat)))), default=0.0)
