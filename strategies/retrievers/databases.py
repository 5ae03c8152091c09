"""Common base of the retrievers for databases: PostgreSQL, Qdrant, Elasticsearch."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

import numpy as np
import numpy.typing as npt

from ragbandit.shared.errors import ArmFailed, ConfigError, RagBanditError, encodable
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Hit, Passage, Retriever
from ragbandit.strategies.retrievers.corpus import PassageReader, build_command, model_text

if TYPE_CHECKING:  # reading the facts of an index needs no torch
    from ragbandit.strategies.retrievers.sentences import SentenceEncoder

#: measure for two vectors; "dot" is the inner product
Distance = Literal["cosine", "dot", "euclid"]
#: (passages, their vectors of shape (passages, width), or None for an index without vectors)
Batches = Iterable[tuple[list[Passage], npt.NDArray[np.float32] | None]]
#: passages per batch of a build
BATCH: Final = 256
#: most connections of a retriever
CONNECTIONS: Final = 10


class DatabaseRetriever(Retriever):
    """Searches passages in a database. The first connection is made by `opened`, `facts` or `build`.

    At most CONNECTIONS searches run concurrently, each in a thread. `name` is the label, by default the kind, followed
    by 12 digits of the passages' sha256, or by the name of the table or collection if it is the user's own.
    """

    kind: ClassVar[str]
    #: what the client raises
    errors: ClassVar[tuple[type[Exception], ...]]
    #: what a build of ours has written: passages, sha256, created_at, model, width; empty where it is yours
    meta: Mapping[str, Json]
    #: size of a vector; None without vectors
    width: int | None
    _encoder: "SentenceEncoder | None"

    def __init__(self, *, index: str, fields: Mapping[str, str] | None = None, label: str | None = None) -> None:
        self.index, self.fields = index, dict(fields or {})
        self._label = label or self.kind
        self.name = f"{self._label}:{index}"
        # Own threads, so that a hanging server does not block all threads of the event loop.
        self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix=f"ragbandit-{self.kind}")

    def opened(self, encoder: "SentenceEncoder | None" = None) -> Self:
        """Check the index. Returns itself, ready to search by vectors of `encoder`, or by words if it is None.

        Raises ConfigError.
        """
        try:
            with self._in_our_words(ConfigError):
                self._read()
            model = self.meta.get("model", encoder and encoder.name)
            if encoder is not None and (self.width not in (None, encoder.width) or model != encoder.name):
                fault = f"has vectors of {model!r} with {self.width} numbers, and {encoder.name!r} has {encoder.width}"
                raise self._unusable(fault, field="model", remedy="set retriever.model to the model of these vectors")
        except ConfigError:
            self._disconnect()
            raise
        if self.meta:
            self.name = f"{self._label}:{str(self.meta['sha256'])[:12]}"
        self._encoder = encoder
        return self

    def facts(self) -> dict[str, Json]:
        """`meta`, or number and width of the user's own passages. Closes the connections. Raises ConfigError."""
        try:
            with self._in_our_words(ConfigError):
                self._read()
                return dict(self.meta) or {"passages": self._count(), "width": self.width}
        finally:
            self._disconnect()

    def build(
        self,
        rows: Iterable[Passage],
        *,
        encoder: "SentenceEncoder | None" = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> dict[str, Json]:
        """Make the index, or replace an index of RagBandit, atomically. Returns its `meta`. Closes the connections.

        Raises InvalidInput for an id used twice or without passages, ConfigError if the name is used, ArmFailed.
        """
        for field, name in self.fields.items():
            if "." in name:
                remedy = "give a plain name: paths into JSON are only for your own passages"
                raise ConfigError(f"{name!r} has a dot", field=f"retriever.fields.{field}", remedy=remedy)
        facts: dict[str, Json] = {"model": encoder and encoder.name, "width": encoder and encoder.width}
        reader = PassageReader(rows, progress=progress)

        def batches() -> Batches:
            for batch in reader.batches(BATCH):
                passages = [self._stored(passage) for passage, _ in batch]
                texts = [model_text(passage.text, title=passage.title) for passage in passages]
                yield passages, None if encoder is None else encoder.encode(texts)
            facts.update(reader.facts())

        try:
            with self._in_our_words(ArmFailed):
                self._fill(batches(), facts=facts)
        finally:
            self._disconnect()
        return facts

    def _stored(self, passage: Passage) -> Passage:
        values = {name: getattr(passage, name) for name in ("id", "title", "text", "url")}
        return replace(passage, **{name: self._storable(value) for name, value in values.items() if value is not None})

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """The at most k best passages; none for a query without letters and digits. Raises ArmFailed."""
        if k < 1 or not any(character.isalnum() for character in query):
            return ()
        search = self._in_our_words(ArmFailed)(partial(self._search, query, k=k))
        return tuple(await asyncio.get_running_loop().run_in_executor(self._threads, search))

    def _search(self, query: str, *, k: int) -> list[Hit]:
        assert self._encoder is not None  # a subclass that can search by words overrides this
        return self._nearest(self._encoder.encode([query])[0], k=k)

    async def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown(wait=False)
        self._disconnect()

    def _passage(self, values: Mapping[str, Any]) -> Passage:
        """Make a passage from values by field. Raises ArmFailed for a passage without text."""
        if not isinstance(values["text"], str):
            fault = f"passage {values['id']!r} of {self.index!r} has no text, but {values['text']!r}"
            raise ArmFailed(fault, remedy="set retriever.fields.text, or give every passage a text")
        title, url = ("" if values.get(name) is None else str(values[name]) for name in ("title", "url"))
        return Passage(id=str(values["id"]), title=title, text=values["text"], url=url or None)

    def _unusable(self, fault: str, *, field: str = "index", remedy: str | None = None) -> ConfigError:
        remedy = remedy or build_command(self.kind, index=self.index)
        return ConfigError(f"{self.index!r} {fault}", field=f"retriever.{field}", remedy=remedy)

    def _not_ours(self, name: str) -> ConfigError:
        remedy = f"choose another name for the index, or delete {name!r}"
        return ConfigError(f"{name!r} exists, and is not made by ragbandit", field="retriever.index", remedy=remedy)

    @contextmanager
    def _in_our_words(self, kind: type[RagBanditError]) -> Iterator[None]:
        try:
            yield
        except self.errors as error:
            raise self._worded(error, kind=kind) from error

    @abstractmethod
    def _worded(self, error: Exception, *, kind: type[RagBanditError]) -> RagBanditError: ...

    #: sets `meta` and `width`; raises ConfigError for missing fields
    @abstractmethod
    def _read(self) -> None: ...

    @abstractmethod
    def _nearest(self, vector: npt.NDArray[np.float32], *, k: int) -> list[Hit]: ...

    @abstractmethod
    def _count(self) -> int: ...

    #: writes all batches, then publishes them with `facts`, which are complete after the last batch
    @abstractmethod
    def _fill(self, batches: Batches, *, facts: dict[str, Json]) -> None: ...

    #: a second call does nothing
    @abstractmethod
    def _disconnect(self) -> None: ...

    @staticmethod
    def _storable(text: str) -> str:
        """The text with NUL replaced by U+FFFD, and half a surrogate pair by "?"."""
        return encodable(text.replace("\x00", "\ufffd"))
