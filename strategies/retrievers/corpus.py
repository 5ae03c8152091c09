"""Passages before they are indexed, and beside an index: reading a corpus, and keeping its rows on disk."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.errors import ConfigError, InvalidInput, required_module
from ragbandit.router.storage.files.json_lines import lines, parsed
from ragbandit.router.types import Json
from ragbandit.strategies.base import Passage

__all__ = [
    "META",
    "OFFSETS",
    "PASSAGES",
    "PassageFile",
    "build_command",
    "check_target",
    "count_rows",
    "model_text",
    "passage_line",
    "read_corpus",
    "read_json",
]

_FIRST: Final = json.JSONDecoder()

#: the files that every index in a folder has: what it is, its passages as JSONL, where each line begins
META, PASSAGES, OFFSETS = "index.json", "passages.jsonl", "offsets.npy"


def read_corpus(path: Path | str, *, leave_out: Callable[[str, str], None] | None = None) -> Iterator[Passage]:
    """The passages of a corpus: a JSONL file, a .parquet file with the same columns, or a folder of documents.

    JSONL, plain or gzipped, is one object {"id", "title", "text", "url"} a line; other fields and blank lines are
    passed over, a missing title is "", a missing or empty url none. See `strategies.retrievers.documents` for folders,
    which are cut into passages; `leave_out` is theirs.
    Raises InvalidInput naming the line or row (from 1) and the field: broken JSON, a missing text, an id used twice.
    """
    source = Path(path)
    if source.is_dir():
        from ragbandit.strategies.retrievers.documents import read_folder  # its libraries are an extra of their own

        yield from read_folder(source) if leave_out is None else read_folder(source, leave_out=leave_out)
        return
    unit, rows = ("row", _parquet(source)) if source.suffix == ".parquet" else ("line", _json_lines(source))
    first_rows: dict[str, int] = {}
    for number, row in rows:
        passage = _read_row(row, place=f"{unit} {number}")
        first = first_rows.setdefault(passage.id, number)
        if first != number:
            raise InvalidInput(
                f"{unit} {number}: {passage.id!r} was used before, on {unit} {first}",
                field="id",
                remedy="give every passage its own",
            )
        yield passage


def _json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, raw in lines(path):
        try:
            row = parsed(raw)
        except InvalidInput as error:
            raise InvalidInput(f"line {number} {error.message}", field="corpus", remedy=error.remedy) from error
        yield number, row


def _parquet(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    parquet = required_module("pyarrow.parquet", extra="parquet")
    try:
        with parquet.ParquetFile(path) as file:
            columns = [name for name in ("id", "title", "text", "url") if name in file.schema_arrow.names]
            batches = file.iter_batches(columns=columns)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                # A null title is none, as where the column is missing.
                yield number, {key: value for key, value in row.items() if value is not None}
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise InvalidInput(f"{path} cannot be read: {error}", field="corpus", remedy="give a Parquet file") from error


def count_rows(path: Path | str) -> int | None:
    """Lines of a plain JSONL corpus, for a progress bar; None for another, and where reading it says what is wrong."""
    if Path(path).suffix in (".parquet", ".gz"):
        return None
    try:
        with Path(path).open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    except OSError:
        return None


def _read_row(row: Mapping[str, object], *, place: str) -> Passage:
    values: dict[str, str] = {}
    for name in ("id", "title", "text"):
        value = row.get(name, "" if name == "title" else None)
        if not isinstance(value, str) or (name != "title" and not value.strip()):
            fault = "is missing" if name not in row else f"is {value!r}"
            raise InvalidInput(f"{place}: {name!r} {fault}", field=name, remedy="give a string with text in it")
        values[name] = value
    url = row.get("url")
    if url is not None and not isinstance(url, str):
        raise InvalidInput(f"{place}: 'url' is {url!r}", field="url", remedy="give a string, or leave it out")
    return Passage(**values, url=url or None)


def model_text(text: str, *, title: str) -> str:
    """The text of a passage as models read it: its title on a line of its own, and its text."""
    return f"{title}\n{text}".strip()


def passage_line(passage: Passage) -> bytes:
    """The passage as one line of JSONL. The sha256 of a corpus is that of these lines, whatever the index."""
    row = {"id": passage.id, "title": passage.title, "text": passage.text}
    if passage.url is not None:  # without one the line, and so the sha256 of a corpus, is as it was before
        row["url"] = passage.url
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


class PassageFile:
    """The passages of an index in a folder, memory-mapped, by position from 0.

    Raises OSError or ValueError where the files are missing or do not belong together.
    """

    def __init__(self, folder: Path) -> None:
        self._offsets: npt.NDArray[np.int64] = np.load(folder / OFFSETS, mmap_mode="r")  # (passages + 1,)
        self._rows = np.memmap(folder / PASSAGES, dtype=np.uint8, mode="r")
        if int(self._offsets[-1]) != len(self._rows):
            raise ValueError("its files do not belong together")
        self._hashing = threading.Lock()
        self._hashed: tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, place: int) -> Passage:
        row = json.loads(self._line(place))
        return Passage(id=row["id"], title=row["title"], text=row["text"], url=row.get("url"))

    def _line(self, place: int) -> str:
        return bytes(self._rows[self._offsets[place] : self._offsets[place + 1]]).decode("utf-8", "surrogatepass")

    def find(self, ids: Iterable[str]) -> tuple[Passage, ...]:
        """Those of these passages that are there, in the order asked for, each once.

        The first call reads the ids of all passages, seconds per million, and keeps 16 bytes for each.
        """
        found = []
        for key in dict.fromkeys(ids):
            place = self._place_of(key)
            if place is not None:
                found.append(self[place])
        return tuple(found)

    def _place_of(self, key: str) -> int | None:
        hashes, places = self._by_hash()
        wanted = _hash(key)
        at = int(np.searchsorted(hashes, np.uint64(wanted)))
        while at < len(hashes) and int(hashes[at]) == wanted:  # two ids may have one hash
            if _id_of(self._line(int(places[at]))) == key:
                return int(places[at])
            at += 1
        return None

    def _by_hash(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """(hashes of the ids in rising order, their positions), both of shape (passages,)."""
        with self._hashing:
            if self._hashed is None:
                hashes = np.fromiter((_hash(_id_of(self._line(n))) for n in range(len(self))), dtype=np.uint64)
                order = np.argsort(hashes, kind="stable").astype(np.int64)
                self._hashed = hashes[order], order
            return self._hashed


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _id_of(line: str) -> str:
    """The id of a line, which stands first in it (`passage_line`), without reading the text behind it."""
    head, begin = line.partition(": ")[0], line.find(": ") + 2
    key: str = _FIRST.raw_decode(line, begin)[0] if head == '{"id"' else json.loads(line)["id"]
    return key


def read_json(folder: Path, *, reads: object, remedy: str) -> dict[str, Json]:
    """The facts in `index.json`. Raises ConfigError with the remedy, if it is no index of the format `reads`."""
    file = folder / META
    if not file.is_file():
        raise ConfigError(f"{folder} holds no index", field="retriever.index", remedy=remedy)
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} is damaged: {error}", field="retriever.index", remedy=remedy) from error
    version = meta.get("format") if isinstance(meta, dict) else None
    if version != reads or not isinstance(meta, dict):
        fault = f"has format {version!r}, and this version reads {reads!r}"
        raise ConfigError(f"{folder} {fault}", field="retriever.index", remedy=remedy)
    return meta


def check_target(folder: Path, *, family: type[int] | str) -> None:
    """Refuse to build over what is no index of the same retriever, of whatever version. Raises ConfigError.

    family: the type of its formats, or what they begin with. A damaged `index.json` may be built over.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / META).is_file():
        fault = f"{folder} exists and is no index"
        raise ConfigError(fault, field="retriever.index", remedy="give a new or an empty folder")
    try:
        version = json.loads((folder / META).read_text(encoding="utf-8"))["format"]
    except (OSError, ValueError, LookupError, TypeError):
        return
    if not (str(version).startswith(family) if isinstance(family, str) else isinstance(version, family)):
        fault = f"{folder} is an index of another retriever, of format {version!r}"
        raise ConfigError(fault, field="retriever.index", remedy="give another folder")


def build_command(retriever: str, *, index: Path | str) -> str:
    """The remedy of a missing or damaged index."""
    return f"build it with: ragbandit index build --retriever {retriever} --corpus CORPUS.jsonl --index {index}"
