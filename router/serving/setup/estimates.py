"""Estimates of what an answer will cost, from the prices in the settings."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragbandit.router.config.named_sections import DEFAULT
from ragbandit.router.config.settings import GeneratorSettings, Settings
from ragbandit.router.storage.access.expected_dollars import ExpectedDollars
from ragbandit.shared.dialects.registry import token_limits
from ragbandit.shared.model_servers.token_usage import Tokens
from ragbandit.shared.texts.token_estimates import estimated_tokens
from ragbandit.shared.types import Decision

#: tokens of the prompt of an arm that searches, and most tokens of an answer that an estimate assumes
_PROMPT, _ANSWER = 2000, 1000


def prices_of_arms(
    arms: Mapping[str, Mapping[str, Any]], *, generators: Mapping[str, GeneratorSettings]
) -> dict[str, Sequence[float]]:
    """Arm -> dollars per million tokens of its model, without arms that have no price. Parameters: see `estimator`."""
    prices: dict[str, Sequence[float]] = {}
    for arm, params in arms.items():
        name = params.get("generator", DEFAULT)
        generator = generators.get(name) if isinstance(name, str) else None
        price = None if generator is None else generator.prices_by_model.get(generator.model)
        if price is not None:
            prices[arm] = price
    return prices


def usual_dollars(price: Sequence[float]) -> float:
    """Estimated dollars of one call at this price, whatever the question is."""
    return Tokens(read=_PROMPT, written=_ANSWER).dollars(price)


def expected_dollars(settings: Settings) -> ExpectedDollars:
    """What answers of the settings' arms are expected to cost."""
    arms, generators = settings.worker_arms, settings.named_generators
    prices = prices_of_arms(arms, generators=generators)
    names = {arm: params.get("generator", DEFAULT) for arm, params in arms.items()}
    models = {arm: generators[name].model for arm, name in names.items() if arm in prices}
    return ExpectedDollars(listed={arm: usual_dollars(price) for arm, price in prices.items()}, models=models)


def estimator(
    arms: Mapping[str, Mapping[str, Any]], *, generators: Mapping[str, GeneratorSettings]
) -> Callable[[Decision], float]:
    """A function: decision -> estimated dollars of one call of the arm's model; 0.0 for an arm without prices.

    The call has the prompt's estimated tokens (_PROMPT for arms that search), and as many tokens of an answer as the
    request allows, at most _ANSWER. arms: the arms that workers run -> their params.
    """
    prices = prices_of_arms(arms, generators=generators)
    is_model = {arm for arm, params in arms.items() if params.get("class", arm) == "model"}

    def estimate(decision: Decision) -> float:
        price = prices.get(decision.arm)
        if price is None or decision.run_by != "worker":
            return 0.0
        query = decision.query
        sent = query.sent.tokens
        read = estimated_tokens(query.text) + 1 if sent is None else sent
        if decision.arm not in is_model:
            read = max(read, _PROMPT)
        written = min([_ANSWER, *token_limits(query.conversation).values()])
        return Tokens(read=read, written=written).dollars(price)

    return estimate
