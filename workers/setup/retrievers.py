"""Opens, builds and describes retrievers by their settings."""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Final, cast

from ragbandit.router.config.named_sections import rename_errors, section_of
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.weights import resolve
from ragbandit.shared.additions import section_parts, with_additions
from ragbandit.shared.errors import ConfigError, required_module
from ragbandit.shared.plugins import import_class
from ragbandit.shared.texts.formats import known_choices
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Hit, Passage, Retriever
from ragbandit.strategies.retrievers.folders import CurrentIndex

if TYPE_CHECKING:
    from ragbandit.strategies.retrievers.sentences import SentenceEncoder

#: reads all passages; every call begins with the first one
Rows = Callable[[], Iterable[Passage]]
#: receives the number of passages indexed so far
CountDone = Callable[[int], None]
Facts = dict[str, Json]


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrieverKind:
    """A configured retriever before it is opened. Making a kind loads no model and no package of a retriever.

    All functions raise ConfigError if the settings are wrong.
    """

    open: Callable[[], Retriever]
    #: build the retriever's index from passages. Returns the description of the index
    build: Callable[[Rows, CountDone], Facts]
    #: read the description of the retriever's index
    read: Callable[[], Facts]
    #: where the index is: a folder, or an address with the name of the index there
    location: Facts = field(default_factory=dict)
    #: check what a worker would need to open the retriever, without loading a model or asking a server
    check: Callable[[], None] = lambda: None
    #: check the number of passages that an arm takes from a search. Arguments: name of the arm, number
    check_passages: Callable[[str, int], None] = lambda arm, passages: None  # noqa: ARG005
    #: whether a search only waits for a server, so that the HTTP service itself may run it
    only_waits: bool = False
    #: setting within its section -> address of a server that `ragbandit validate` tries to reach
    servers: Mapping[str, str] = field(default_factory=dict)
    #: settings that change what a search costs, as text. Stored answers with another text are not used
    prices: str = ""

    def build_index(self, rows: Rows, progress: CountDone) -> Facts:
        """Build the index. Returns its location and description, as `info` does."""
        return {**self.location, **self.build(rows, progress)}

    def info(self) -> Facts:
        return {**self.location, **self.read()}


@contextmanager
def named_kind(settings: Settings, name: str, *, wrapped: bool = True) -> Iterator[RetrieverKind]:
    """The retriever with this name. Errors about it name its section. wrapped: see `retriever_kind`."""
    with rename_errors(section_of("retriever", name), kind="retriever"):
        yield retriever_kind(with_retriever(settings, name), wrapped=wrapped)


def open_retriever(settings: Settings, name: str, *, wrapped: bool = True) -> Retriever:
    """Open the retriever with this name. Raises ConfigError with its section, for example if the index is missing."""
    with named_kind(settings, name, wrapped=wrapped) as kind:
        return kind.open()


def retriever_kind(settings: Settings, *, wrapped: bool = True) -> RetrieverKind:
    """The configured retriever. wrapped: with the wrappers that additions offer. Raises ConfigError."""
    name = settings.retriever.name
    if ":" in name:
        kind = _user_kind(settings)
    elif name in _kinds():
        kind = _kinds()[name](settings)
    else:
        remedy = f"known: {', '.join(_kinds())}"
        raise ConfigError(f"{name!r} is unknown", field="retriever.name", remedy=remedy)
    for part in section_parts("retriever") if wrapped else ():
        kind = part.around(settings.retriever, kind)
    return kind


def _kinds() -> Mapping[str, Callable[[Settings], RetrieverKind]]:
    return with_additions(KINDS, hook="retrievers")


def _user_kind(settings: Settings) -> RetrieverKind:
    path = settings.retriever.name

    def open_it() -> Retriever:
        factory = import_class(path, where="retriever.name")
        try:
            retriever = factory()
        except ConfigError:
            raise
        except Exception as error:  # the user's code may raise anything
            fault = f"{path!r} cannot be made: {type(error).__name__}: {error}"
            raise ConfigError(
                fault, field="retriever.name", remedy="correct this error; the function is called without arguments"
            ) from error
        missing = [m for m in ("search", "close") if not inspect.iscoroutinefunction(getattr(retriever, m, None))]
        faults = [f"has no `async def {method}`" for method in missing]
        if not isinstance(getattr(retriever, "name", None), str) or not retriever.name:
            faults.insert(0, "has no name")
        if faults:
            remedy = "follow ragbandit.strategies.base.Retriever"
            raise ConfigError(f"{path!r} {', '.join(faults)}", field="retriever.name", remedy=remedy)
        return cast(Retriever, retriever)

    def build(rows: Rows, progress: CountDone) -> Facts:  # noqa: ARG001 - signature of RetrieverKind.build
        remedy = f"build it with its own tool; `index build` builds {', '.join(_kinds())}"
        raise ConfigError(f"`index build` cannot build the index of {path!r}", field="retriever.name", remedy=remedy)

    return RetrieverKind(
        open=open_it,
        build=build,
        read=lambda: {"retriever": path, "name": open_it().name},
        check=lambda: check_class(path, key="name"),
    )


def check_class(path: str, *, key: str) -> None:
    """Raise ConfigError if `path` is MODULE:NAME and cannot be imported. key: key of `retriever` that has the path"""
    if ":" in path:
        import_class(path, where=f"retriever.{key}")


def with_retriever(settings: Settings, name: str) -> Settings:
    """A copy of the settings in which `retriever` has the settings of the retriever with this name."""
    return settings.model_copy(update={"retriever": settings.named_retrievers[name]})


def with_choice(settings: Settings, *, retriever: str | None = None, index: str | None = None) -> Settings:
    """A copy of the settings with another index, and another retriever.

    retriever: a name in `retrievers`, a kind ("bm25") or "module:Class"
    """
    if retriever is not None and retriever in settings.named_retrievers:
        settings, retriever = with_retriever(settings, retriever), None
    elif retriever is not None and retriever not in _kinds() and ":" not in retriever:
        remedy = known_choices((*settings.named_retrievers, *_kinds()), given=retriever)
        raise ConfigError(f"there is no retriever {retriever!r}", field="retriever", remedy=remedy)
    chosen = {key: value for key, value in (("name", retriever), ("index", index)) if value}
    return settings.model_copy(update={"retriever": settings.retriever.model_copy(update=chosen)})


def index_folder(settings: Settings) -> Path:
    """The folder of `retriever.index`; a relative one is in the folder `indexes` of data_dir."""
    folder = Path(settings.retriever.index)
    return folder if folder.is_absolute() else Path(settings.data_dir).absolute() / "indexes" / folder


def _bm25(settings: Settings) -> RetrieverKind:
    folder = index_folder(settings)

    def bm25() -> ModuleType:
        from ragbandit.strategies.retrievers import bm25  # imported late: only processes that search load bm25s

        return bm25

    def open_it() -> Retriever:
        retriever = bm25().Bm25Retriever
        return CurrentIndex(folder, reader=lambda: retriever(folder))

    return RetrieverKind(
        open=open_it,
        build=lambda rows, progress: bm25().build_index(rows(), folder, progress=progress),
        read=lambda: bm25().Bm25Retriever.read_meta(folder),
        location={"folder": str(folder)},
    )


@lru_cache(maxsize=4)
def sentence_encoder(model: str) -> "SentenceEncoder":
    """The encoder `retriever.model`, loaded once. Raises ConfigError."""
    required_module("torch", extra="models", field="retriever.model")
    from ragbandit.strategies.retrievers.sentences import SentenceEncoder

    name = Path(model).name if Path(model).exists() else model
    return SentenceEncoder(resolve(model, setting="retriever.model").folder, name=name)


def _dense(settings: Settings) -> RetrieverKind:
    folder, model = index_folder(settings), settings.retriever.model
    folder = folder if folder.name.endswith("-dense") else folder.with_name(f"{folder.name}-dense")

    def sentences() -> ModuleType:
        required_module("torch", extra="models", field="retriever.name")
        from ragbandit.strategies.retrievers import sentences

        return sentences

    def open_it() -> Retriever:
        retriever = sentences().DenseRetriever
        return CurrentIndex(folder, reader=lambda: retriever(folder, encoder=sentence_encoder(model)))

    def build(rows: Rows, progress: CountDone) -> Facts:
        make = sentences().build_sentence_index
        return cast(Facts, make(rows(), folder, encoder=sentence_encoder(model), progress=progress))

    return RetrieverKind(
        open=open_it,
        build=build,
        read=lambda: sentences().DenseRetriever.read_meta(folder),
        location={"folder": str(folder)},
    )


#: `retriever.name` -> kind, of the core; additions have more
KINDS: Final[Mapping[str, Callable[[Settings], RetrieverKind]]] = MappingProxyType({"bm25": _bm25, "dense": _dense})


def search_once(retriever: Retriever, *, query: str, k: int) -> tuple[Hit, ...]:
    async def ask() -> tuple[Hit, ...]:
        try:
            return await retriever.search(query, k=k)
        finally:
            await retriever.close()

    return asyncio.run(ask())
