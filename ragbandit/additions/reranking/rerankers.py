"""Wraps retrievers in the rerankers of the settings."""

import importlib.util
import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from ragbandit.additions.reranking.settings import RerankPrices, RerankSettings
from ragbandit.router.encoders.weights import is_at_hand, resolve
from ragbandit.shared.errors import ConfigError, missing_package, required_module
from ragbandit.shared.texts.redaction import variable_or_hidden
from ragbandit.strategies.base import Retriever
from ragbandit.strategies.retrievers.rerankers.reranked import (
    Price,
    RerankedRetriever,
    Reranker,
    ScoredAmounts,
    no_price,
)
from ragbandit.workers.setup.retrievers import RetrieverKind

_SECTION = "retriever.rerank"


def wrap_with_reranker(kind: RetrieverKind, *, chosen: RerankSettings) -> RetrieverKind:
    """The retriever, with its hits reranked as the settings `chosen` require."""

    def open_reranked() -> Retriever:
        rerank = make_reranker(chosen)
        return RerankedRetriever(kind.open(), rerank=rerank, depth=chosen.depth)

    def check() -> None:
        kind.check()
        check_reranker(chosen)

    def check_passages(arm: str, passages: int) -> None:
        kind.check_passages(arm, passages)
        if passages > chosen.depth:
            message = f"{chosen.depth} is below the {passages} passages that the arm {arm} takes from a search"
            remedy = "raise it well above them, or lower the arm's passages"
            raise ConfigError(message, field=f"{_SECTION}.depth", remedy=remedy)

    return replace(
        kind,
        open=open_reranked,
        check=check,
        check_passages=check_passages,
        only_waits=kind.only_waits and chosen.url is not None,
        servers={**kind.servers, **({} if chosen.url is None else {"rerank.url": chosen.url})},
        prices=kind.prices + ("" if chosen.prices is None else chosen.prices.model_dump_json()),
    )


def make_reranker(chosen: RerankSettings) -> Reranker:
    price = no_price if chosen.prices is None else price_of(chosen.prices)
    if chosen.url is None:
        assert chosen.model is not None  # checked by the settings
        return _cross_encoder(chosen.model, device=chosen.device, prices=chosen.prices)
    from ragbandit.additions.reranking.rerank_server import RerankServer  # this import loads httpx

    return RerankServer(
        chosen.url,
        model=chosen.model,
        key=None if chosen.api_key_env is None else _api_key(chosen.api_key_env),
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
        is_at_hand(str(chosen.model), setting=f"{_SECTION}.model")


def price_of(prices: RerankPrices) -> Price:
    def dollars(scored: ScoredAmounts) -> float:
        per_unit = (prices.search, scored.searches), (prices.documents, scored.documents / 1000)
        return sum(price * amount for price, amount in (*per_unit, (prices.tokens, scored.tokens / 1e6)))

    return dollars


@lru_cache(maxsize=4)
def _cross_encoder(model: str, *, device: str, prices: RerankPrices | None) -> Reranker:
    required_module("torch", extra="models", field=f"{_SECTION}.model")
    from ragbandit.additions.reranking.cross_encoder import CrossEncoder  # this import loads torch

    folder = resolve(model, setting=f"{_SECTION}.model").folder
    name = None if Path(model).exists() else model
    return CrossEncoder(folder, name=name, device=device, price=no_price if prices is None else price_of(prices))


def _api_key(variable: str) -> str:
    key = os.environ.get(variable)
    if not key:
        message = f"the environment variable {variable_or_hidden(variable)} is not set"
        remedy = "set it to the key in the environment of every worker, or leave this setting out"
        raise ConfigError(message, field=f"{_SECTION}.api_key_env", remedy=remedy)
    return key
