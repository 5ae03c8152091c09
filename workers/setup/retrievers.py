"""Opens, builds and describes retrievers by their settings."""

import asyncio
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from ragbandit.router.config.named_sections import errors_of, section_of
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.weights import resolve
from ragbandit.shared.errors import ConfigError, required_module
from ragbandit.shared.model_servers.outbound import shown_address
from ragbandit.shared.plugins import import_class
from ragbandit.shared.texts.formats import known_choices
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Hit, Passage, Retriever
from ragbandit.strategies.retrievers.folders import CurrentIndex
from ragbandit.strategies.retrievers.hybrid import HybridRetriever
from ragbandit.workers.setup.rerankers import reranked

if TYPE_CHECKING:
    from ragbandit.strategies.retrievers.sentences import SentenceEncoder

#: reads all passages; every call begins with the first one
Rows = Callable[[], Iterable[Passage]]
#: receives the number of passages indexed so far
CountDone = Callable[[int], None]
Facts = dict[str, Json]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """The operations on a configured retriever. All raise ConfigError if the settings are wrong."""

    open: Callable[[], Retriever]
    build: Callable[[Rows, CountDone], Facts]
    read: Callable[[], Facts]
    #: place of the index: a folder, or an address with the name of the index there
    location: Facts = field(default_factory=dict)

    def built(self, rows: Rows, progress: CountDone) -> Facts:
        """Build the index. Returns its place and description, as `info` does."""
        return {**self.location, **self.build(rows, progress)}

    def info(self) -> Facts:
        return {**self.location, **self.read()}


def open_retriever(settings: Settings, name: str, *, rerank: bool = True) -> Retriever:
    """Open the retriever with this name. Raises ConfigError with its section, for example if the index is missing.

    rerank: False opens it without its reranker
    """
    with errors_of(section_of("retriever", name), kind="retriever"):
        chosen = with_retriever(settings, name)
        return (retriever_kind if rerank else _kind_alone)(chosen).open()


def _short(model: str) -> str:
    return Path(model).name if Path(model).exists() else model


def retriever_kind(settings: Settings) -> Kind:
    """The configured retriever, with its reranker around it. Raises ConfigError."""
    kind, rerank = _kind_alone(settings), settings.retriever.rerank
    return kind if rerank is None else replace(kind, open=lambda: reranked(kind.open, chosen=rerank))


def _kind_alone(settings: Settings) -> Kind:
    name = settings.retriever.name
    if ":" in name:
        return _user_kind(settings)
    if name not in RETRIEVERS:
        remedy = f"known: {', '.join(sorted(RETRIEVERS))}"
        raise ConfigError(f"{name!r} is unknown", field="retriever.name", remedy=remedy)
    return RETRIEVERS[name](settings)


def _user_kind(settings: Settings) -> Kind:
    path = settings.retriever.name

    def opened() -> Retriever:
        factory = import_class(path, where="retriever.name")
        try:
            retriever = factory()
        except ConfigError:
            raise
        except Exception as error:  # the user's code may raise anything
            fault = f"{path!r} cannot be made: {type(error).__name__}: {error}"
            raise ConfigError(fault, field="retriever.name", remedy="let it work without arguments") from error
        missing = [m for m in ("search", "close") if not inspect.iscoroutinefunction(getattr(retriever, m, None))]
        faults = [f"has no `async def {method}`" for method in missing]
        if not isinstance(getattr(retriever, "name", None), str) or not retriever.name:
            faults.insert(0, "has no name")
        if faults:
            remedy = "follow ragbandit.strategies.base.Retriever"
            raise ConfigError(f"{path!r} {', '.join(faults)}", field="retriever.name", remedy=remedy)
        return cast(Retriever, retriever)

    def build(rows: Rows, progress: CountDone) -> Facts:  # noqa: ARG001 - signature of Kind.build
        remedy = f"fill it where it is made; `index build` makes {', '.join(sorted(RETRIEVERS))}"
        raise ConfigError(f"{path!r} has an index of its own", field="retriever.name", remedy=remedy)

    return Kind(open=opened, build=build, read=lambda: {"retriever": path, "name": opened().name})


def with_retriever(settings: Settings, name: str) -> Settings:
    """A copy of the settings in which `retriever` has the settings of the retriever with this name."""
    return settings.model_copy(update={"retriever": settings.named_retrievers[name]})


def with_choice(settings: Settings, *, retriever: str | None = None, index: str | None = None) -> Settings:
    """A copy of the settings with another index, and another retriever: a name in `retrievers`, or a kind ("bm25")."""
    if retriever is not None and retriever in settings.named_retrievers:
        settings, retriever = with_retriever(settings, retriever), None
    elif retriever is not None and retriever not in RETRIEVERS and ":" not in retriever:
        remedy = known_choices((*settings.named_retrievers, *sorted(RETRIEVERS)), given=retriever)
        raise ConfigError(f"there is no retriever {retriever!r}", field="retriever", remedy=remedy)
    chosen = {key: value for key, value in (("name", retriever), ("index", index)) if value}
    return settings.model_copy(update={"retriever": settings.retriever.model_copy(update=chosen)})


def index_folder(settings: Settings, *, name: str | None = None) -> Path:
    """The folder of a bm25 index. name: its name or absolute path; the default is the configured index."""
    folder = Path(name or settings.retriever.index)
    return folder if folder.is_absolute() else Path(settings.data_dir).absolute() / "indexes" / folder


def _bm25(settings: Settings) -> Kind:
    from ragbandit.strategies.retrievers import bm25  # imported late: only processes that search load bm25s

    folder = index_folder(settings)
    return Kind(
        open=lambda: CurrentIndex(folder, reader=lambda: bm25.Bm25Retriever(folder)),
        build=lambda rows, progress: bm25.build_index(rows(), folder, progress=progress),
        read=lambda: bm25.Bm25Retriever.read_meta(folder),
        location={"folder": str(folder)},
    )


@lru_cache(maxsize=4)
def _encoder(model: str) -> "SentenceEncoder":
    required_module("torch", extra="models", field="retriever.model")
    from ragbandit.strategies.retrievers.sentences import SentenceEncoder

    return SentenceEncoder(resolve(model, setting="retriever.model").folder, name=_short(model))


def _dense(settings: Settings) -> Kind:
    required_module("torch", extra="models", field="retriever.name")
    from ragbandit.strategies.retrievers import sentences

    folder, model = index_folder(settings), settings.retriever.model
    folder = folder if folder.name.endswith("-dense") else folder.with_name(f"{folder.name}-dense")
    return Kind(
        open=lambda: CurrentIndex(folder, reader=lambda: sentences.DenseRetriever(folder, encoder=_encoder(model))),
        build=lambda rows, progress: sentences.build_sentence_index(
            rows(), folder, encoder=_encoder(model), progress=progress
        ),
        read=lambda: sentences.DenseRetriever.read_meta(folder),
        location={"folder": str(folder)},
    )


def _elasticsearch(settings: Settings) -> Kind:
    required_module("elasticsearch", extra="elasticsearch", field="retriever.name")
    from ragbandit.strategies.retrievers.elasticsearch import ElasticsearchRetriever, Search

    chosen = settings.retriever
    api_key = os.environ.get(chosen.api_key_env) or None

    def searching(search: Search) -> Kind:
        make = partial(
            ElasticsearchRetriever,
            chosen.url,
            index=chosen.index,
            search=search,
            api_key=api_key,
            timeout_s=chosen.timeout_s,
        )

        def encoder() -> "SentenceEncoder | None":
            return _encoder(chosen.model) if search == "meaning" else None

        return Kind(
            open=lambda: make().opened(encoder()),
            build=lambda rows, progress: make().build(rows(), encoder=encoder(), progress=progress),
            read=lambda: make().facts(),
            location={"url": shown_address(chosen.url), "index": chosen.index},
        )

    if chosen.search != "both":
        return searching(chosen.search)
    by_words, by_meaning = searching("words"), searching("meaning")
    return replace(by_meaning, open=lambda: HybridRetriever(by_words.open(), second=by_meaning.open()))


def _hybrid(settings: Settings) -> Kind:
    chosen = settings.retriever
    if chosen.first == chosen.second:
        message = f"both are {chosen.first!r}"
        raise ConfigError(message, field="retriever.second", remedy="choose two different retrievers")
    halves = {name: _kind_alone(with_choice(settings, retriever=name)) for name in (chosen.first, chosen.second)}
    return Kind(
        open=lambda: HybridRetriever(halves[chosen.first].open(), second=halves[chosen.second].open()),
        build=lambda rows, progress: {
            name: half.built(rows, progress) for name, half in halves.items() if ":" not in name
        },
        read=lambda: {name: kind.info() for name, kind in halves.items()},
    )


RETRIEVERS: Mapping[str, Callable[[Settings], Kind]] = MappingProxyType(
    {"bm25": _bm25, "dense": _dense, "elasticsearch": _elasticsearch, "hybrid": _hybrid}
)


def search_once(retriever: Retriever, *, query: str, k: int) -> tuple[Hit, ...]:
    async def ask() -> tuple[Hit, ...]:
        try:
            return await retriever.search(query, k=k)
        finally:
            await retriever.close()

    return asyncio.run(ask())
