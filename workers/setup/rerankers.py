"""Makes rerankers from settings."""

import importlib.util
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from ragbandit.router.config.named_sections import section_of
from ragbandit.router.config.sections import RerankPrices, RerankSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.weights import at_hand, resolve
from ragbandit.shared.errors import ConfigError, missing_package, required_module
from ragbandit.shared.texts.redaction import shown_variable
from ragbandit.strategies.base import Retriever
from ragbandit.strategies.retrievers.rerankers.reranked import Price, RerankedRetriever, Reranker, Scored, free
from ragbandit.strategies.run import Strategy

_SECTION = "retriever.rerank"


def reranked(opened: Callable[[], Retriever], *, chosen: RerankSettings) -> Retriever:
    """The retriever with this reranker around it. Raises ConfigError."""
    rerank = make_reranker(chosen)
    return RerankedRetriever(opened(), rerank=rerank, depth=chosen.depth)


def make_reranker(chosen: RerankSettings) -> Reranker:
    price = free if chosen.prices is None else price_of(chosen.prices)
    if chosen.url is None:
        assert chosen.model is not None  # checked by the settings
        return _cross_encoder(chosen.model, device=chosen.device, prices=chosen.prices)
    from ragbandit.strategies.retrievers.rerankers.rerank_server import RerankServer  # it loads httpx

    return RerankServer(
        chosen.url,
        model=chosen.model,
        key=None if chosen.api_key_env is None else _key(chosen.api_key_env),
        form=chosen.form,
        batch=chosen.batch,
        timeout_s=chosen.timeout_s,
        retries=chosen.retries,
        price=price,
    )


def check_reranker(chosen: RerankSettings) -> None:
    """Raise ConfigError if workers could not use this reranker. Loads no model and connects to nothing."""
    if chosen.url is not None:
        make_reranker(chosen)
    elif importlib.util.find_spec("torch") is None:
        raise missing_package("torch", extra="models", field=f"{_SECTION}.model")
    else:
        at_hand(str(chosen.model), setting=f"{_SECTION}.model")


def price_of(prices: RerankPrices) -> Price:
    def dollars(scored: Scored) -> float:
        per_unit = (prices.search, scored.searches), (prices.documents, scored.documents / 1000)
        return sum(price * amount for price, amount in (*per_unit, (prices.tokens, scored.tokens / 1e6)))

    return dollars


@lru_cache(maxsize=4)
def _cross_encoder(model: str, *, device: str, prices: RerankPrices | None) -> Reranker:
    required_module("torch", extra="models", field=f"{_SECTION}.model")
    from ragbandit.strategies.retrievers.rerankers.cross_encoder import CrossEncoder  # it loads torch

    folder = resolve(model, setting=f"{_SECTION}.model").folder
    name = None if Path(model).exists() else model
    return CrossEncoder(folder, name=name, device=device, price=free if prices is None else price_of(prices))


def _key(variable: str) -> str:
    key = os.environ.get(variable)
    if not key:
        message = f"the environment variable {shown_variable(variable)} is not set"
        remedy = "set it to the key in the environment of every worker, or leave this setting out"
        raise ConfigError(message, field=f"{_SECTION}.api_key_env", remedy=remedy)
    return key


def check_depth(settings: Settings, *, arm: str, strategy: Strategy, retriever: str) -> None:
    """Raise ConfigError if the arm asks for more passages per search than its retriever's reranker scores."""
    rerank = settings.named_retrievers[retriever].rerank
    passages = _passages_of_search(strategy)
    if rerank is not None and passages > rerank.depth:
        message = f"{rerank.depth} is below the {passages} passages that the arm {arm} takes from a search"
        field = f"{section_of('retriever', retriever)}.rerank.depth"
        raise ConfigError(message, field=field, remedy="raise it well above them, or lower the arm's passages")


def _passages_of_search(strategy: Strategy) -> int:
    """The arm's param with its passages per search, or its `passages`; 0 without one."""
    params = {name: value for name, value in strategy.params.items() if isinstance(value, int)}
    of_search = [value for name, value in params.items() if name.startswith("passages_per_")]
    return int(max(of_search, default=params.get("passages", 0)))
