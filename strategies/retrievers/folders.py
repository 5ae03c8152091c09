import asyncio
import fcntl
import glob
import json
import logging
import os
import shutil
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.files import Folder, read_text, replace_folder
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Hit, Passage, Retriever
from ragbandit.strategies.retrievers.corpus import PassageReader, build_command

log = logging.getLogger("ragbandit.index")

META = "index.json"
PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"  #: byte offset of each line in PASSAGES


class FolderRetriever(Retriever):
    """A retriever whose index is a folder.

    `meta` is the content of `index.json`: format, passages (their number), sha256 of the passages, created_at (Unix
    time, seconds), and settings or model. `name` has the first 12 digits of the sha256, so every outcome records the
    corpus. Raises ConfigError if the index is missing, damaged or of an unknown format.
    """

    kind: ClassVar[str]  #: value of the setting `retriever.name`
    format: ClassVar[str]  #: version of the layout and analyzer

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self.meta = self.read_meta(self._folder)
        with self._report_damage():
            self.name = f"{self.kind}:{str(self.meta['sha256'])[:12]}"
            self._offsets: npt.NDArray[np.int64] = np.load(self._folder / OFFSETS, mmap_mode="r")  # (passages + 1,)
            self._rows = np.memmap(self._folder / PASSAGES, dtype=np.uint8, mode="r")
            self._check_build(len(self) == self.meta["passages"] and self._offsets[-1] == len(self._rows))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @classmethod
    def read_meta(cls, folder: Path) -> dict[str, Json]:
        file = folder / META
        if not file.is_file():
            raise cls._fault(f"{folder} has no index", folder=folder)
        try:
            meta = json.loads(read_text(file))
        except (OSError, ValueError, RecursionError) as error:
            raise cls._fault(f"{folder} is damaged: {error}", folder=folder) from error
        version = meta.get("format") if isinstance(meta, dict) else None
        if version != cls.format or not isinstance(meta, dict):
            raise cls._fault(f"{folder} has format {version!r}, and this version reads {cls.format!r}", folder=folder)
        return meta

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        return await asyncio.to_thread(self._search, query, k=k)

    @abstractmethod
    def _scores(self, query: str) -> npt.NDArray[np.float32]:
        """Scores of all passages; -inf for a passage that is not found."""

    def _search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        if k < 1:
            return ()
        try:
            scores = self._scores(query)
            found = np.flatnonzero(scores > -np.inf)
            if len(found) > k:
                found = found[scores[found] >= np.partition(scores[found], -k)[-k]]
            best = found[np.argsort(-scores[found], kind="stable")[:k]]  # equal scores are in the order of the index
            return tuple(Hit(passage=self._passage(position), score=float(scores[position])) for position in best)
        except (OSError, ValueError, LookupError, RuntimeError) as error:
            remedy = build_command(self.kind, index=self._folder)
            raise ArmFailed(f"the index in {self._folder} cannot be read: {error}", remedy=remedy) from error

    def _passage(self, position: int) -> Passage:
        row = json.loads(bytes(self._rows[self._offsets[position] : self._offsets[position + 1]]))
        return Passage(id=row["id"], title=row["title"], text=row["text"], url=row.get("url"))

    @contextmanager
    def _report_damage(self) -> Iterator[None]:
        """During the block, raise errors of a damaged index as ConfigError."""
        try:
            yield
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise self._fault(f"{self._folder} is damaged: {error}", folder=self._folder) from error

    @staticmethod
    def _check_build(fits: object) -> None:
        if not fits:
            raise ValueError("the files of the index come from different builds")

    @classmethod
    def _fault(cls, fault: str, *, folder: Path) -> ConfigError:
        return ConfigError(fault, field="retriever.index", remedy=build_command(cls.kind, index=folder))


class CurrentIndex(Retriever):
    """Searches the newest index in a folder. After a build, the next search opens the new index."""

    def __init__(self, folder: Path, *, reader: Callable[[], FolderRetriever]) -> None:
        self._folder, self._reader = Folder(str(folder), field="retriever.index"), reader
        self._lock = threading.Lock()
        self._version = self._version_now()
        self._index = reader()
        self.name = self._index.name

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        return await (await asyncio.to_thread(self._open_newest)).search(query, k=k)

    def _version_now(self) -> str | None:
        with suppress(OSError):
            return self._folder.fingerprint(META)
        return None

    def _open_newest(self) -> FolderRetriever:
        with self._lock:
            version = self._version_now()
            if version not in (None, self._version):
                self._version = version
                try:
                    index = self._reader()
                    if self._version_now() == version:  # otherwise the reader may have mixed two builds
                        self._index, self.name = index, index.name
                except ConfigError as error:
                    log.warning("the new index cannot be opened, the earlier index is searched: %s", error)
            return self._index


def store_passages(reader: PassageReader, folder: Path, *, size: int) -> Iterator[list[Passage]]:
    offsets = [0]
    with (folder / PASSAGES).open("wb") as file:
        for batch in reader.batches(size):
            for _, line in batch:
                file.write(line)
                offsets.append(offsets[-1] + len(line))
            yield [passage for passage, _ in batch]
    np.save(folder / OFFSETS, np.array(offsets, dtype=np.int64))


@contextmanager
def new_index(target: Path) -> Iterator[Path]:
    """Yields an empty folder, which replaces `target` at the end. Raises ConfigError if `target` has other files."""
    if target.exists() and not (target / META).is_file() and not (target.is_dir() and not any(target.iterdir())):
        fault = f"{target} exists and is not an index"
        raise ConfigError(fault, field="retriever.index", remedy="give a new or an empty folder")
    building = target.with_name(f".{target.name}.building-{os.getpid()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    for folder in target.parent.glob(f".{glob.escape(target.name)}.building-*"):
        with suppress(OSError), _lock(folder):  # no process holds the lock: a killed build left the folder
            shutil.rmtree(folder, ignore_errors=True)
    building.mkdir()
    try:
        with _lock(building):
            yield building
            replace_folder(target, source=building)
    finally:
        shutil.rmtree(building, ignore_errors=True)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Lock a folder during the block. The lock ends with the process. Raises OSError if another process has it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def write_meta(folder: Path, meta: dict[str, Json]) -> dict[str, Json]:
    """Write `index.json`, which must be the last file, because a folder with it is a complete index. Returns `meta`."""
    (folder / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    return meta
