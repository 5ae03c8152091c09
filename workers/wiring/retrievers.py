"""Wiring of retrievers: from settings to a retriever, opened, built or described, and to what reranks its hits."""

import asyncio
import functools
import importlib.util
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.weights import at_hand, resolve
from ragbandit.router.errors import ConfigError, missing_package, required_module
from ragbandit.router.plugins import import_class
from ragbandit.router.types import Json
from ragbandit.strategies.base import Hit, Passage, Retriever
from ragbandit.strategies.outbound.addresses import shown_address
from ragbandit.strategies.registry import retrieves
from ragbandit.strategies.retrievers.hybrid import HybridRetriever
from ragbandit.strategies.retrievers.no_index import NoRetriever
from ragbandit.strategies.retrievers.reranking import RerankedRetriever, Reranker
from ragbandit.strategies.run import Strategy

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch

    from ragbandit.strategies.retrievers.sentences import SentenceEncoder

__all__ = [
    "RETRIEVERS",
    "Kind",
    "check_reranker",
    "index_folder",
    "kind_of",
    "make_retriever",
    "retriever_of",
    "search_once",
    "searches",
    "with_choice",
]

#: the setting, for messages
_RERANK = "retriever.rerank"

#: the passages, anew at every call; a number of passages done -> None
Rows = Callable[[], Iterable[Passage]]
CountDone = Callable[[int], None]
Facts = dict[str, Json]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """The operations on one kind of retriever. All raise ConfigError where its settings are wrong."""

    open: Callable[[Settings], Retriever]
    #: returns what `info` returns
    build: Callable[[Settings, Rows, CountDone], Facts]
    #: its place and its description
    info: Callable[[Settings], Facts]


def make_retriever(settings: Settings) -> Retriever:
    """The configured retriever, opened, its hits reranked if that is set.

    Raises ConfigError if it is unknown or its index is missing, or if the reranker cannot be made.
    """
    chosen, retriever = settings.retriever, kind_of(settings).open(settings)
    if chosen.rerank is None:
        return retriever
    rerank = _own_reranker(chosen.rerank) if ":" in chosen.rerank else _cross_encoder(chosen.rerank)
    return RerankedRetriever(retriever, rerank=rerank, depth=chosen.rerank_depth)


def retriever_of(settings: Settings, *, arms: Iterable[Strategy]) -> Retriever:
    """`make_retriever` where one of these arms searches; otherwise one that needs no index."""
    return make_retriever(settings) if searches(arms) else NoRetriever()


def searches(arms: Iterable[Strategy]) -> bool:
    """Whether one of these arms searches."""
    return any(map(retrieves, arms))


def check_reranker(settings: Settings) -> None:
    """Refuse a reranker that cannot be imported, or whose weights are not to be found; none is made.

    Nothing is fetched, and nothing is said of weights where the packages for them are missing. Raises ConfigError.
    """
    rerank = settings.retriever.rerank
    if rerank is None:
        return
    if ":" in rerank:
        import_class(rerank, where=_RERANK)
    elif importlib.util.find_spec("transformers") is not None:
        at_hand(rerank, setting=_RERANK)


def _own_reranker(path: str) -> Reranker:
    factory = import_class(path, where=_RERANK)
    try:
        made = factory()
    except ConfigError:
        raise
    except Exception as error:  # whatever a class of others does when it is made
        fault = f"{path!r} cannot be made: {type(error).__name__}: {error}"
        raise ConfigError(fault, field=_RERANK, remedy="it is called without arguments") from error
    name, close = getattr(made, "name", None), getattr(made, "close", None)
    faults = [] if isinstance(name, str) and name else ["has no name"]
    if not inspect.iscoroutinefunction(getattr(type(made), "__call__", None)):  # noqa: B004 - not whether, but which
        faults.append("has no `async def __call__`")
    if close is not None and not inspect.iscoroutinefunction(close):
        faults.append("has a close that is not async")
    if faults:
        remedy = "follow ragbandit.strategies.retrievers.reranking.Reranker"
        raise ConfigError(f"{path!r} {', '.join(faults)}", field=_RERANK, remedy=remedy)
    return cast(Reranker, made)


def _cross_encoder(model: str) -> Reranker:
    try:
        from ragbandit.strategies.retrievers.cross_encoder import CrossEncoder
    except ImportError as error:
        raise missing_package(error.name or "transformers", extra="models", field=_RERANK) from error
    return CrossEncoder(resolve(model, setting=_RERANK).folder, name=_short(model))


def _short(model: str) -> str:
    """A hub name as it is, and of a path the last part."""
    return Path(model).name if Path(model).exists() else model


def kind_of(settings: Settings) -> Kind:
    """Raises ConfigError, listing the known ones, for an unknown retriever."""
    if ":" in settings.retriever.name:
        return _OWN
    kind = RETRIEVERS.get(settings.retriever.name)
    if kind is None:
        known = ", ".join(sorted(RETRIEVERS))
        raise ConfigError(f"{settings.retriever.name!r} is unknown", field="retriever.name", remedy=f"known: {known}")
    return kind


def _open_own(settings: Settings) -> Retriever:
    path, where = settings.retriever.name, "retriever.name"
    factory = import_class(path, where=where)
    try:
        made = factory()
    except ConfigError:
        raise
    except Exception as error:  # whatever a function of others does
        fault = f"{path!r} cannot be made: {type(error).__name__}: {error}"
        raise ConfigError(fault, field=where, remedy="it is called without arguments") from error
    faults = [] if isinstance(getattr(made, "name", None), str) and made.name else ["has no name"]
    faults += [
        f"has no `async def {method}`"
        for method in ("search", "close")
        if not inspect.iscoroutinefunction(getattr(made, method, None))
    ]
    if faults:
        remedy = "follow ragbandit.strategies.base.Retriever, or wrap it by one of ragbandit.strategies.adapters"
        raise ConfigError(f"{path!r} {', '.join(faults)}", field=where, remedy=remedy)
    return cast(Retriever, made)


def _build_own(settings: Settings, rows: Rows, progress: CountDone) -> Facts:  # noqa: ARG001 - a Kind's
    remedy = "fill it where it is made; `index build` makes bm25, dense and elasticsearch"
    raise ConfigError(f"{settings.retriever.name!r} has an index of its own", field="retriever.name", remedy=remedy)


def _info_own(settings: Settings) -> Facts:
    return {"retriever": settings.retriever.name, "name": _open_own(settings).name}


def with_choice(settings: Settings, *, retriever: str | None = None, index: str | None = None) -> Settings:
    """The settings with another retriever, another index, or both."""
    chosen = {key: value for key, value in (("name", retriever), ("index", index)) if value}
    return settings.model_copy(update={"retriever": settings.retriever.model_copy(update=chosen)})


def index_folder(settings: Settings, *, name: str | None = None) -> Path:
    """The folder of an index of words: the configured one, or another by name or absolute path."""
    given = Path(name or settings.retriever.index)
    return given if given.is_absolute() else Path(settings.data_dir).absolute() / "indexes" / given


def _dense_folder(settings: Settings) -> Path:
    folder = index_folder(settings)
    return folder if folder.name.endswith("-dense") else folder.with_name(f"{folder.name}-dense")


def _open_bm25(settings: Settings) -> Retriever:
    from ragbandit.strategies.retrievers.bm25 import (
        Bm25Retriever,  # bm25s and its numbers are loaded by whoever searches
    )

    return Bm25Retriever(index_folder(settings))


def _build_bm25(settings: Settings, rows: Rows, progress: CountDone) -> Facts:
    from ragbandit.strategies.retrievers.bm25 import build_index

    folder = index_folder(settings)
    return {"folder": str(folder), **build_index(rows(), folder, progress=progress)}


def _info_bm25(settings: Settings) -> Facts:
    from ragbandit.strategies.retrievers.bm25 import read_meta

    return {"folder": str(index_folder(settings)), **read_meta(index_folder(settings))}


def _encoder(settings: Settings) -> "SentenceEncoder":
    return _loaded_encoder(settings.retriever.model)


@functools.lru_cache(maxsize=1)
def _loaded_encoder(model: str) -> "SentenceEncoder":
    """One for both halves of a hybrid."""
    try:
        from ragbandit.strategies.retrievers.sentences import SentenceEncoder
    except ImportError as error:
        raise missing_package(error.name or "transformers", extra="models", field="retriever.model") from error
    weights = resolve(model, setting="retriever.model")
    return SentenceEncoder(weights.folder, name=_short(model))


def _open_dense(settings: Settings) -> Retriever:
    encoder = _encoder(settings)
    from ragbandit.strategies.retrievers.dense import DenseRetriever

    return DenseRetriever(_dense_folder(settings), encoder=encoder, search_by=settings.retriever.search_by)


def _build_dense(settings: Settings, rows: Rows, progress: CountDone) -> Facts:
    encoder = _encoder(settings)
    from ragbandit.strategies.retrievers.dense import build_index

    folder, search_by = _dense_folder(settings), settings.retriever.search_by
    facts = build_index(rows(), folder, encoder=encoder, search_by=search_by, progress=progress)
    return {"folder": str(folder), **facts}


def _info_dense(settings: Settings) -> Facts:
    _check_models()
    from ragbandit.strategies.retrievers.dense import read_meta

    return {"folder": str(_dense_folder(settings)), **read_meta(_dense_folder(settings))}


def _check_models() -> None:
    required_module("torch", extra="models", field="retriever.name")  # the module below cannot do without it


def _api_key(settings: Settings) -> str | None:
    return os.environ.get(settings.retriever.api_key_env) or None


def _elasticsearch(settings: Settings) -> "Elasticsearch":
    """A client for building and describing."""
    try:
        from ragbandit.strategies.retrievers.elasticsearch import connect
    except ImportError as error:
        raise missing_package(error.name or "elasticsearch", extra="elasticsearch", field="retriever.name") from error
    return connect(settings.retriever.url, api_key=_api_key(settings))


def _open_elasticsearch(settings: Settings) -> Retriever:
    _elasticsearch(settings).close()
    from ragbandit.strategies.retrievers.elasticsearch import ElasticsearchRetriever, Search

    chosen = settings.retriever

    def opened(search: Search) -> Retriever:
        return ElasticsearchRetriever(
            chosen.url,
            index=chosen.index,
            search=search,
            encoder=_encoder(settings) if search == "meaning" else None,
            api_key=_api_key(settings),
            timeout_s=chosen.timeout_s,
        )

    if chosen.search == "both":
        return HybridRetriever(opened("words"), second=opened("meaning"))
    return opened(chosen.search)


def _build_elasticsearch(settings: Settings, rows: Rows, progress: CountDone) -> Facts:
    with _elasticsearch(settings) as client:
        from ragbandit.strategies.retrievers.elasticsearch import build_index

        chosen = settings.retriever
        encoder = None if chosen.search == "words" else _encoder(settings)
        facts = build_index(rows(), client=client, index=chosen.index, encoder=encoder, progress=progress)
    return {"url": shown_address(chosen.url), "index": chosen.index, **facts}


def _info_elasticsearch(settings: Settings) -> Facts:
    with _elasticsearch(settings) as client:
        from ragbandit.strategies.retrievers.elasticsearch import read_meta

        facts = read_meta(client, index=settings.retriever.index)
    return {"url": shown_address(settings.retriever.url), "index": settings.retriever.index, **facts}


def _halves(settings: Settings) -> tuple[Settings, Settings]:
    chosen = settings.retriever
    if chosen.first == chosen.second:
        raise ConfigError(
            f"both are {chosen.first!r}", field="retriever.second", remedy="choose two different retrievers"
        )
    return with_choice(settings, retriever=chosen.first), with_choice(settings, retriever=chosen.second)


def _open_hybrid(settings: Settings) -> Retriever:
    first, second = _halves(settings)
    return HybridRetriever(kind_of(first).open(first), second=kind_of(second).open(second))


def _build_hybrid(settings: Settings, rows: Rows, progress: CountDone) -> Facts:
    return {half.retriever.name: kind_of(half).build(half, rows, progress) for half in _halves(settings)}


def _info_hybrid(settings: Settings) -> Facts:
    return {half.retriever.name: kind_of(half).info(half) for half in _halves(settings)}


#: retriever.name -> the operations on it
RETRIEVERS: Mapping[str, Kind] = MappingProxyType(
    {
        "bm25": Kind(open=_open_bm25, build=_build_bm25, info=_info_bm25),
        "dense": Kind(open=_open_dense, build=_build_dense, info=_info_dense),
        "elasticsearch": Kind(open=_open_elasticsearch, build=_build_elasticsearch, info=_info_elasticsearch),
        "hybrid": Kind(open=_open_hybrid, build=_build_hybrid, info=_info_hybrid),
    }
)

#: of a class or function of others
_OWN = Kind(open=_open_own, build=_build_own, info=_info_own)


def search_once(retriever: Retriever, *, query: str, k: int) -> tuple[Hit, ...]:
    """One search from outside an event loop; the retriever is closed after it."""

    async def ask() -> tuple[Hit, ...]:
        try:
            return await retriever.search(query, k=k)
        finally:
            await retriever.close()

    return asyncio.run(ask())
