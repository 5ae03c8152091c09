"""Passages before they are indexed: a corpus of JSONL or Parquet, or a folder of documents that is cut into passages.

Documents are text, Markdown, HTML and PDF, cut where paragraphs and sentences end.
"""

import asyncio
import hashlib
import json
import logging
import re
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import yaml

from ragbandit.shared.errors import ArmFailed, ConfigError, InvalidInput, required_module
from ragbandit.shared.files import lines, parsed
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Hit, Passage, Retriever

log = logging.getLogger("ragbandit.documents")

#: of a passage at most: some 130 words, which every encoder reads whole
CHARACTERS = 800

#: between two lines of its own at the very beginning of a Markdown file
_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_BLANK_LINE = re.compile(r"^[ \t]*\n", re.MULTILINE)
_BREAKS = frozenset({"softbreak", "hardbreak"})


def read_corpus(path: Path | str, *, leave_out: Callable[[str, str], None] | None = None) -> Iterator[Passage]:
    """The passages of a corpus: a JSONL file, a .parquet file with the same columns, or a folder of documents.

    JSONL, plain or gzipped, is one object {"id", "title", "text", "url"} a line; other fields and blank lines are
    passed over, a missing title is "", a missing or empty url none. See `read_folder` for folders, which are cut into
    passages; `leave_out` is theirs.
    Raises InvalidInput naming the file, the line or row (from 1) and the field: broken JSON, a missing text, an id used
    twice.
    """
    source = Path(path)
    if source.is_dir():
        yield from read_folder(source, leave_out=leave_out or log_left_out)
        return
    unit, rows = ("row", _parquet(source)) if source.suffix == ".parquet" else ("line", _json_lines(source))
    first_rows: dict[str, int] = {}
    for number, row in rows:
        passage = _read_row(row, where=f"{source}, {unit} {number}")
        first = first_rows.setdefault(passage.id, number)
        if first != number:
            raise InvalidInput(
                f"{source}, {unit} {number}: {passage.id!r} was used before, on {unit} {first}",
                field="id",
                remedy="give every passage its own",
            )
        yield passage


def _json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, raw in lines(path):
        try:
            row = parsed(raw)
        except InvalidInput as error:
            raise InvalidInput(f"{path}, line {number} {error.message}", field="corpus", remedy=error.remedy) from error
        yield number, row


def _parquet(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    parquet = required_module("pyarrow.parquet", extra="replay")  # most corpora are JSONL

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


def _read_row(row: Mapping[str, object], *, where: str) -> Passage:
    values: dict[str, str] = {}
    for name in ("id", "title", "text"):
        value = row.get(name, "" if name == "title" else None)
        if not isinstance(value, str) or (name != "title" and not value.strip()):
            fault = "is missing" if name not in row else f"is {value!r}"
            raise InvalidInput(f"{where}: {name!r} {fault}", field=name, remedy="give a string with text in it")
        values[name] = value
    url = row.get("url")
    if url is not None and not isinstance(url, str):
        raise InvalidInput(f"{where}: 'url' is {url!r}", field="url", remedy="give a string, or leave it out")
    return Passage(**values, url=url or None)


def model_text(text: str, *, title: str) -> str:
    """The text of a passage as models read it: its title on a line of its own, and its text."""
    return f"{title}\n{text}".strip()


def log_left_out(name: str, reason: str, /) -> None:
    """A document that is not in the corpus, as a warning in the log."""
    log.warning("%s is left out: %s", name, reason)


def read_folder(
    folder: Path, *, characters: int = CHARACTERS, leave_out: Callable[[str, str], None] = log_left_out
) -> Iterator[Passage]:
    """The passages of all documents under a folder, in the order of their paths.

    A passage has at most `characters` of them; its id is the document's path in the folder, "#" and its number from 1,
    its url that path, its title the document's own (of Markdown "title:" in the front matter, which is no text, or the
    first heading of the first level), or the name of its file. Whatever gives no text is left out: files of other
    kinds, what cannot be read (a broken PDF, text that is not UTF-8), what holds no text (a scanned PDF), folders
    behind a link.
    leave_out: called with the path in the folder and the reason; the log names each where none is given.
    Raises InvalidInput if no document is left; ConfigError without the packages.
    """
    documents = 0
    for path in sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()):
        name = path.relative_to(folder).as_posix()
        try:
            title, text = _read_document(path)
            pieces = list(_cut(text, markdown=path.suffix.lower() == ".md", characters=characters))
            if not pieces:
                raise InvalidInput("it holds no text")
        except InvalidInput as error:
            leave_out(name, error.message)
            continue
        for number, piece in enumerate(pieces, start=1):
            yield Passage(id=f"{name}#{number}", title=title, text=piece, url=name)
        documents += len(pieces)
    if not documents:
        remedy = f"put {', '.join(_READERS)} files with text there"
        raise InvalidInput(f"{folder} holds no document", field="corpus", remedy=remedy)


def _cut(text: str, *, markdown: bool, characters: int) -> Iterator[str]:
    library = required_module("semantic_text_splitter", extra="documents")
    splitter = (library.MarkdownSplitter if markdown else library.TextSplitter)(characters)
    return (piece for piece in splitter.chunks(text) if piece.strip())


def _read_document(path: Path) -> tuple[str, str]:
    """(title, text). Raises InvalidInput with the reason for which it is left out."""
    if path.is_dir():
        raise InvalidInput("a link to a folder is not followed")
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise InvalidInput(f"not one of {', '.join(_READERS)}")
    if not path.is_file():
        raise InvalidInput("it is no file, or a link to none")
    return read(path)


def _text(path: Path) -> tuple[str, str]:
    try:
        return path.stem, path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"it is not UTF-8: {error}") from error
    except OSError as error:
        raise InvalidInput(f"it cannot be read: {error.strerror}") from error


def _markdown(path: Path) -> tuple[str, str]:
    name, text = _text(path)
    title, text = _front_matter(text)
    return title or _heading(text) or name, text


def _front_matter(text: str) -> tuple[str, str]:
    """(its title or "", the text behind it). What is no mapping, or has a blank line, is text between two rules."""
    match = _FRONT_MATTER.match(text)
    if match is None or _BLANK_LINE.search(match[1]):  # "Note: read this." is a mapping, and a paragraph as well
        return "", text
    try:
        # Of this loader every scalar is a text: a title of 1984 is no number, and one of 2024-05-01 no date.
        given = yaml.load(match[1], Loader=yaml.BaseLoader)  # noqa: S506 - it makes texts, lists and mappings alone
    except (yaml.YAMLError, RecursionError):
        return "", text
    if not isinstance(given or {}, dict):
        return "", text
    title = (given or {}).get("title")
    return " ".join(title.split()) if isinstance(title, str) else "", text[match.end() :]


def _heading(text: str) -> str:
    """The first heading of the first level, without its markup; "" if there is none."""
    tokens = required_module("markdown_it", extra="documents").MarkdownIt("commonmark").parse(text)
    titles = (
        _plain(inside)
        for token, inside in pairwise(tokens)
        if (token.type, token.tag, token.level) == ("heading_open", "h1", 0)  # deeper it is in a list or a quotation
    )
    return next((title for title in titles if title), "")


def _plain(inside: Any) -> str:
    parts = (" " if part.type in _BREAKS else part.content for part in inside.children if part.type != "html_inline")
    return " ".join("".join(parts).split())


def _html(path: Path) -> tuple[str, str]:
    soup = required_module("bs4", extra="documents").BeautifulSoup(_text(path)[1], "html.parser")
    title = soup.title.get_text(strip=True) if soup.title else ""
    for unseen in soup(["script", "style", "template", "title"]):
        unseen.decompose()
    return title or path.stem, soup.get_text("\n", strip=True)


def _pdf(path: Path) -> tuple[str, str]:
    library = required_module("pypdf", extra="documents")
    try:
        reader = library.PdfReader(path)
        title = (reader.metadata.title or "").strip() if reader.metadata else ""
        return title or path.stem, "\n\n".join(page.extract_text() for page in reader.pages)
    except Exception as error:  # of a broken file pypdf raises whatever its parts do
        raise InvalidInput(f"it cannot be read: {type(error).__name__}: {error}") from error


#: end of a file's name -> its reader, which gives (title, text)
_READERS: Mapping[str, Callable[[Path], tuple[str, str]]] = MappingProxyType(
    {".txt": _text, ".md": _markdown, ".html": _html, ".htm": _html, ".pdf": _pdf}
)


_FIRST: Final = json.JSONDecoder()

#: the files that every index in a folder has: what it is, its passages as JSONL, where each line begins
META, PASSAGES, OFFSETS = "index.json", "passages.jsonl", "offsets.npy"


def passage_line(passage: Passage) -> bytes:
    """The passage as one line of JSONL. The sha256 of a corpus is that of these lines, whatever the index."""
    row = {"id": passage.id, "title": passage.title, "text": passage.text}
    if passage.url is not None:
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

    def __getitem__(self, position: int) -> Passage:
        row = json.loads(self._line(position))
        return Passage(id=row["id"], title=row["title"], text=row["text"], url=row.get("url"))

    def _line(self, position: int) -> str:
        return bytes(self._rows[self._offsets[position] : self._offsets[position + 1]]).decode("utf-8", "surrogatepass")

    def find(self, ids: Iterable[str]) -> tuple[Passage, ...]:
        """Those of these passages that are there, in the order asked for, each once.

        The first call reads the ids of all passages, seconds per million, and keeps 16 bytes for each.
        """
        passages = []
        for key in dict.fromkeys(ids):
            position = self._position_of(key)
            if position is not None:
                passages.append(self[position])
        return tuple(passages)

    def _position_of(self, key: str) -> int | None:
        hashes, positions = self._by_hash()
        wanted = _hash(key)
        at = int(np.searchsorted(hashes, np.uint64(wanted)))
        while at < len(hashes) and int(hashes[at]) == wanted:  # two ids may have one hash
            if _id_of(self._line(int(positions[at]))) == key:
                return int(positions[at])
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


class FolderRetriever(Retriever):
    """A retriever whose index is a folder.

    `meta` is what its `index.json` says. `name` is the kind and the first 12 digits of the sha256 of the passages, so
    that an outcome tells which corpus it was made from.
    Raises ConfigError, with the command that builds the index, if there is none, or it is damaged or of another format.
    """

    #: of `retriever.name`
    kind: ClassVar[str]
    #: version of the folder's layout; another one cannot be read
    format: ClassVar[int | str]

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self.meta = self.read_meta(self._folder)
        with self._whole():
            self.name = f"{self.kind}:{str(self.meta['sha256'])[:12]}"
            self._passages = PassageFile(self._folder)
            if len(self) != self.meta["passages"]:
                raise ValueError("its files do not belong together")

    def __len__(self) -> int:
        return len(self._passages)

    @classmethod
    def read_meta(cls, folder: Path) -> dict[str, Json]:
        """The facts in `index.json`. Raises ConfigError, with the command that builds it, if it is no index of ours."""
        file = folder / META
        if not file.is_file():
            raise cls._fault(folder, "holds no index")
        try:
            meta = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise cls._fault(folder, f"is damaged: {error}") from error
        version = meta.get("format") if isinstance(meta, dict) else None
        if version != cls.format or not isinstance(meta, dict):
            raise cls._fault(folder, f"has format {version!r}, and this version reads {cls.format!r}")
        return meta

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """The at most k best passages, best first; equal scores in the order indexed.

        Runs in a thread. Raises ArmFailed if the files cannot be read any more.
        """
        return await asyncio.to_thread(self._search, query, k=k)

    async def passages(self, ids: Sequence[str]) -> tuple[Passage, ...]:
        """Those of these passages that are there, in the order asked for, each once. Runs in a thread.

        Raises ArmFailed if the files cannot be read any more.
        """
        return await asyncio.to_thread(self._find, ids)

    async def close(self) -> None:
        """Nothing to give back: the mapped files go with the object."""

    @abstractmethod
    def _best(self, query: str, *, k: int) -> Iterable[tuple[int, float]]:
        """(position, score) of the at most k best passages, best first; k is at least 1."""

    def _search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        with self._readable():
            positions = self._best(query, k=k) if k > 0 else ()
            return tuple(Hit(passage=self._passages[position], score=score) for position, score in positions)

    def _find(self, ids: Sequence[str]) -> tuple[Passage, ...]:
        with self._readable():
            return self._passages.find(ids)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, LookupError, RuntimeError) as error:
            remedy = build_command(self.kind, index=self._folder)
            raise ArmFailed(f"the index in {self._folder} cannot be read: {error}", remedy=remedy) from error

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What fails inside is a damaged index."""
        try:
            yield
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise self._unusable(f"is damaged: {error}") from error

    def _unusable(self, fault: str) -> ConfigError:
        return self._fault(self._folder, fault)

    @classmethod
    def _fault(cls, folder: Path, fault: str) -> ConfigError:
        remedy = build_command(cls.kind, index=folder)
        return ConfigError(f"{folder} {fault}", field="retriever.index", remedy=remedy)


def best_positions(scores: npt.NDArray[np.float32], *, k: int) -> list[int]:
    """Positions of the k highest scores, ties in order of position: argpartition would cut through ties."""
    positions = np.arange(len(scores))
    if len(scores) > k:
        positions = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
    order = np.argsort(-scores[positions], kind="stable")[:k]
    return [int(position) for position in positions[order]]


def numbered(rows: Iterable[Passage], *, seen: set[str]) -> Iterator[tuple[int, Passage, bytes]]:
    """(number from 1, passage, its line). Raises InvalidInput for an id that was seen, or where there is no passage."""
    for number, passage in enumerate(rows, start=1):
        if passage.id in seen:
            fault = f"passage {number}: {passage.id!r} was used before"
            raise InvalidInput(fault, field="id", remedy="give every passage its own")
        seen.add(passage.id)
        yield number, passage, passage_line(passage)
    if not seen:
        raise InvalidInput("there is no passage", field="corpus", remedy="give at least one")


def write_meta(folder: Path, facts: dict[str, Json]) -> dict[str, Json]:
    """Write `index.json`, the last file of an index: a folder that has one is complete."""
    (folder / META).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts


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
