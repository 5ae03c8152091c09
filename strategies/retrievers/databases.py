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

if TYPE_CHECKING:  # this import loads torch, which is not needed to read the metadata of an index
    from ragbandit.strategies.retrievers.sentences import SentenceEncoder

Distance = Literal["cosine", "dot", "euclid"]
#: batches of (passages, their vectors). The vectors have the shape (passages, width); None in an index without vectors
Batches = Iterable[tuple[list[Passage], npt.NDArray[np.float32] | None]]
BATCH: Final = 256  #: passages per batch of a build
CONNECTIONS: Final = 10  #: maximum number of connections of a retriever


class DatabaseRetriever(Retriever):
    """Searches passages in a database. The first connection is made by `opened`, `facts` or `build`.

    `name` is the label (by default the kind) and 12 digits of the passages' sha256. If RagBandit did not build the
    index, the name of the index replaces these digits.
    """

    kind: ClassVar[str]
    errors: ClassVar[tuple[type[Exception], ...]]  #: exceptions that the client of the database raises
    #: passages, sha256, created_at, model and width of the index; empty if RagBandit did not build the index
    meta: Mapping[str, Json]
    width: int | None  #: number of components of a vector; None without vectors
    _encoder: "SentenceEncoder | None"

    def __init__(self, *, index: str, fields: Mapping[str, str] | None = None, label: str | None = None) -> None:
        self.index, self.fields = index, dict(fields or {})
        self._label = label or self.kind
        self.name = f"{self._label}:{index}"
        # The retriever has threads of its own: a server that hangs must not block all threads of the event loop.
        self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix=f"ragbandit-{self.kind}")

    def opened(self, encoder: "SentenceEncoder | None" = None) -> Self:
        """Check the index, and return self. encoder: None to search by words. Raises ConfigError."""
        try:
            with self._translated_errors(ConfigError):
                self._read()
            model = self.meta.get("model", encoder and encoder.name)
            if encoder is not None and (self.width not in (None, encoder.width) or model != encoder.name):
                vectors = f"vectors of {model!r} with {self.width} numbers"
                fault = f"{self.index!r} has {vectors}, and {encoder.name!r} has {encoder.width}"
                raise self._unusable(fault, field="model", remedy="set retriever.model to the model of these vectors")
        except ConfigError:
            self._disconnect()
            raise
        if self.meta:
            self.name = f"{self._label}:{str(self.meta['sha256'])[:12]}"
        self._encoder = encoder
        return self

    def facts(self) -> dict[str, Json]:
        """Returns `meta`; if it is empty, the number of passages and the width. Disconnects. Raises ConfigError."""
        try:
            with self._translated_errors(ConfigError):
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
        """Build the index, or replace an index that RagBandit built, atomically. Returns its `meta`. Disconnects.

        Raises InvalidInput if there are no passages or two with the same id, ConfigError if RagBandit did not build the
        index of this name, and ArmFailed if the database fails.
        """
        for field, name in self.fields.items():
            if "." in name:
                remedy = "give a plain name: paths into JSON are only for your own passages"
                raise ConfigError(f"{name!r} has a dot", field=f"retriever.fields.{field}", remedy=remedy)
        meta: dict[str, Json] = {"model": encoder and encoder.name, "width": encoder and encoder.width}
        reader = PassageReader(rows, progress=progress)

        def batches() -> Batches:
            for batch in reader.batches(BATCH):
                passages = [self._stored(passage) for passage, _ in batch]
                texts = [model_text(passage.text, title=passage.title) for passage in passages]
                yield passages, None if encoder is None else encoder.encode(texts)
            meta.update(reader.facts())

        try:
            with self._translated_errors(ArmFailed):
                self._fill(batches(), meta=meta)
        finally:
            self._disconnect()
        return meta

    def _stored(self, passage: Passage) -> Passage:
        values = {name: getattr(passage, name) for name in ("id", "title", "text", "url")}
        return replace(passage, **{name: self._storable(value) for name, value in values.items() if value is not None})

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        if k < 1 or not any(character.isalnum() for character in query):
            return ()
        search = self._translated_errors(ArmFailed)(partial(self._search, query, k=k))
        return tuple(await asyncio.get_running_loop().run_in_executor(self._threads, search))

    def _search(self, query: str, *, k: int) -> list[Hit]:
        assert self._encoder is not None  # a subclass that can search by words overrides this
        return self._nearest(self._encoder.encode([query])[0], k=k)

    async def close(self) -> None:
        self._threads.shutdown(wait=False)
        self._disconnect()

    def _passage(self, values: Mapping[str, Any]) -> Passage:
        if not isinstance(values["text"], str):
            fault = f"passage {values['id']!r} of {self.index!r} has no text, but {values['text']!r}"
            raise ArmFailed(fault, remedy="set retriever.fields.text, or give every passage a text")
        title, url = ("" if values.get(name) is None else str(values[name]) for name in ("title", "url"))
        return Passage(id=str(values["id"]), title=title, text=values["text"], url=url or None)

    def _unusable(self, fault: str, *, field: str = "index", remedy: str | None = None) -> ConfigError:
        remedy = remedy or build_command(self.kind, index=self.index)
        return ConfigError(fault, field=f"retriever.{field}", remedy=remedy)

    def _not_ours(self, name: str) -> ConfigError:
        remedy = f"choose another name for the index, or delete {name!r}"
        return ConfigError(f"{name!r} exists, and is not made by ragbandit", field="retriever.index", remedy=remedy)

    @contextmanager
    def _translated_errors(self, kind: type[RagBanditError]) -> Iterator[None]:
        try:
            yield
        except self.errors as error:
            raise self._translated(error, kind=kind) from error

    @abstractmethod
    def _translated(self, error: Exception, *, kind: type[RagBanditError]) -> RagBanditError: ...

    #: sets `meta` and `width`; raises ConfigError if a field of the passages is missing
    @abstractmethod
    def _read(self) -> None: ...

    @abstractmethod
    def _nearest(self, vector: npt.NDArray[np.float32], *, k: int) -> list[Hit]: ...

    @abstractmethod
    def _count(self) -> int: ...

    #: writes all batches, then stores `meta`, which is complete only after the last batch
    @abstractmethod
    def _fill(self, batches: Batches, *, meta: dict[str, Json]) -> None: ...

    @abstractmethod
    def _disconnect(self) -> None: ...

    @staticmethod
    def _storable(text: str) -> str:
        """The text with U+FFFD for NUL and "?" for half a surrogate pair, which databases refuse."""
        return encodable(text.replace("\x00", "\ufffd"))
