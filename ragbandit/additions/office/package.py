"""The ZIP file of an Office document: its parts, which are read within caps, and the relationships between them.

Relationships, and not names, show what a part is, so a part is checked when it is read. The parser that reads a part
counts its tags and attributes, so encodings and odd names change no count. Before that, the signs `<` in the bytes of a
part are counted, because a parser takes seconds for millions of tags: a part with more signs than it may have tags is
refused, even if they are in comments. This count leaves out end tags only in UTF-8, the encoding that Office writes.
"""

import posixpath
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from ragbandit.shared.errors import InvalidInput

#: maximum bytes of all parts that are read, when they are expanded. A ZIP file may be a thousand times smaller
MAX_EXPANDED: Final = 128 * 1024 * 1024
#: maximum number of files in a document
MAX_PARTS: Final = 50_000
#: maximum number of tags and attributes in all parts that are read: 30 kB of a ZIP file may have millions. In parts
#: that become trees they count twice, since they take more time than in a sheet
MAX_MARKS: Final = 10_000_000
_TREE_COST: Final = 2
#: maximum number of tags and attributes in one paragraph, table or row, which is in memory as a whole
MAX_TREE: Final = 1_000_000
#: maximum depth of elements, since functions that read an element call themselves for its children
MAX_DEPTH: Final = 256
#: maximum bytes of one tag, because the parser returns all its attributes together; and the smaller maximum of a part
#: that another library reads, because its parser reads the tag from the beginning for every further piece
MAX_TAG: Final = 8 * 1024 * 1024
MAX_FOREIGN_TAG: Final = 1024 * 1024
#: maximum bytes in memory of all text that is made of a document, each time that it is joined: cells of a sheet may all
#: show the same long text, and a merged cell or a category of a chart repeats its own
MAX_TEXT: Final = 256 * 1024 * 1024
#: bytes of a character in memory, once a text has one that is not ASCII
_WIDE: Final = 4
#: maximum characters of a text that is repeated, for example for each row of a merged cell
MAX_LABEL: Final = 1_000

_CHUNK: Final = 256 * 1024
#: maximum number of different tags whose local names and weights are remembered
_MAX_TAGS: Final = 1_000
#: first bytes of an OLE file: an encrypted document, or one in the format before Office 2007
_OLE: Final = b"\xd0\xcf\x11\xe0"
#: compressions of Office documents. The other ones of ZIP files may expand without end within one call of `read`
_COMPRESSIONS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_CORE: Final = "docProps/core.xml"
_TOO_MANY: Final = "the document has too many tags and attributes"
_BROKEN: Final = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Relationship:
    id: str
    kind: str  #: last part of the relationship's type, for example "notesSlide"
    target: str  #: name of a part


class Package:
    """The parts of an Office document. Raises InvalidInput if all that is read exceeds one of the maxima above."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.names = frozenset(archive.namelist())
        if len(archive.infolist()) > MAX_PARTS:
            raise InvalidInput(f"the document has more than {MAX_PARTS} parts")
        if not {info.compress_type for info in archive.infolist()} <= _COMPRESSIONS:
            raise InvalidInput("the document is damaged: its compression does not occur in Office documents")
        self._bytes_left, self._marks_left, self._text_left = MAX_EXPANDED, MAX_MARKS, MAX_TEXT

    @property
    def title(self) -> str:
        """The title in the document's properties; "" without one."""
        if _CORE not in self.names:
            return ""
        values = {
            local_name(element): element.text for element in self.children(_CORE, of=frozenset({"coreProperties"}))
        }
        return " ".join((values.get("title") or "").split())

    def join(self, sign: str, texts: Iterable[str]) -> str:
        """Join the texts with a sign, and strip the result. The texts are counted before they are joined."""
        kept: list[str] = []
        length = counted = 0
        width = 1
        for text in texts:
            length += len(text) + len(sign)
            if not text.isascii():
                width = _WIDE
            self._text_left -= length * width - counted
            counted = length * width
            if self._text_left < 0:
                raise InvalidInput(f"the document has more than {MAX_TEXT >> 20} MiB of text, repeated text included")
            kept.append(text)
        whole = sign.join(kept)
        kept.clear()  # before `strip` makes another copy
        return whole.strip()

    def children(self, name: str, *, of: frozenset[str]) -> Iterator[Element]:
        """The children of the part's elements with these local names, in order."""
        return self._read(name, reading=_Reading(of=of, kept=of, costs={}, cost=_TREE_COST), longest=MAX_TAG)

    def read_within_limits(
        self, name: str, *, of: frozenset[str], kept: frozenset[str], costs: Mapping[str, int], cost: int
    ) -> Iterator[Element]:
        """Read a part to the end, and refuse it if it is too large for another library, which reads it afterwards.

        of: Local names of elements. The library reads their children one by one, so a child has at most MAX_TREE marks.
        kept: Local names, each also in `of`. The children of these elements are yielded.
        costs: Local name -> factor. An element of this name and each of its attributes count as this number of marks.
        cost: The factor of all other elements.
        """
        return self._read(name, reading=_Reading(of=of, kept=kept, costs=costs, cost=cost), longest=MAX_FOREIGN_TAG)

    def _read(self, name: str, *, reading: "_Reading", longest: int) -> Iterator[Element]:
        read, waiting = 0, 0
        self._refuse_many_tags(name, cost=reading.least_cost)
        with _as_invalid(name), self._archive.open(name) as part:
            # The parser reads an unfinished tag from its beginning again, so more of it is read at once.
            while chunk := part.read(max(_CHUNK, min(waiting, longest - waiting))):
                read += len(chunk)
                self._bytes_left -= len(chunk)
                if self._bytes_left < 0:
                    raise InvalidInput(f"the document has more than {MAX_EXPANDED >> 20} MiB when it is expanded")
                waiting = read - reading.feed(chunk, most=self._marks_left)
                if waiting > longest:
                    raise InvalidInput(f"the document has a tag of more than {longest >> 20} MiB in {name}")
                yield from reading.take()
            reading.end()
            yield from reading.take()
        self._marks_left -= reading.marks

    def _refuse_many_tags(self, name: str, *, cost: int) -> None:
        """Refuse a part whose bytes begin more tags than may still be read. cost: how often a tag counts at least"""
        size = tags = 0
        with _as_invalid(name), self._archive.open(name) as part:
            while (chunk := part.read(_CHUNK)) and size <= self._bytes_left:
                size += len(chunk)
                tags += chunk.count(b"<") - chunk.count(b"</")
                if tags * cost > self._marks_left:
                    raise InvalidInput(_TOO_MANY)

    def relationships(self, name: str) -> tuple[Relationship, ...]:
        """The relationships of a part to parts that exist, in order."""
        folder, base = posixpath.split(name)
        rels = posixpath.join(folder, "_rels", f"{base}.rels")
        if rels not in self.names:
            return ()
        found = []
        for element in self.children(rels, of=frozenset({"Relationships"})):
            target = element.get("Target", "")
            target = target[1:] if target.startswith("/") else posixpath.normpath(posixpath.join(folder, target))
            if element.get("TargetMode") != "External" and target in self.names:
                kind = element.get("Type", "").rpartition("/")[2]
                found.append(Relationship(id=element.get("Id", ""), kind=kind, target=target))
        return tuple(found)

    def main_part(self) -> str:
        """Name of the part with the document itself."""
        for relationship in self.relationships(""):
            if relationship.kind == "officeDocument":
                return relationship.target
        raise InvalidInput("the document is damaged: it has no main part")


class _Reading:
    """One pass over the XML of a part. of, kept, costs, cost: see `Package.read_within_limits`."""

    def __init__(self, *, of: frozenset[str], kept: frozenset[str], costs: Mapping[str, int], cost: int) -> None:
        #: tags and attributes so far
        self.marks = 0
        self._of, self._kept, self._costs, self._cost, self._most = of, kept, costs, cost, MAX_MARKS
        self.least_cost = min((cost, *costs.values()))
        #: value of `marks` above which the document is refused
        self._limit = MAX_MARKS
        #: tag -> (its local name, how often it counts), of the first tags: a hostile document may have millions
        self._tags: dict[str, tuple[str, int]] = {}
        self._path: list[str] = []
        self._ready: list[Element] = []
        #: builder of the child that is being read, and its depth
        self._builder: TreeBuilder | None = None
        self._child_depth = 0
        self._parser = expat.ParserCreate(namespace_separator="}")
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.StartDoctypeDeclHandler = _refuse_dtd

    def feed(self, chunk: bytes, *, most: int) -> int:
        """Parse the chunk, up to `most` marks in all. Returns the byte position up to which the parser is done."""
        self._limit, self._most = min(self._limit, most), most
        self._parser.Parse(chunk)
        return self._parser.CurrentByteIndex

    def end(self) -> None:
        self._parser.Parse(b"", True)

    def take(self) -> list[Element]:
        """Returns the children that have ended since the last call."""
        taken, self._ready = self._ready, []
        return taken

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        name, cost = self._tags.get(tag) or self._look_up(tag)
        self.marks += (1 + len(attributes)) * cost if attributes else cost
        path, builder = self._path, self._builder
        if builder is None and path and path[-1] in self._of:
            self._child_depth, self._limit = len(path), min(self._most, self.marks + MAX_TREE * self._cost)
            if path[-1] in self._kept:
                self._builder = builder = TreeBuilder()
                self._parser.CharacterDataHandler = builder.data
        if self.marks > self._limit:
            self._refuse()
        path.append(name)
        if builder is not None:
            builder.start(tag, attributes)
        if len(path) > MAX_DEPTH:
            raise InvalidInput(f"the document is damaged: its elements are nested more than {MAX_DEPTH} deep")

    def _refuse(self) -> NoReturn:
        if self.marks > self._most:
            raise InvalidInput(_TOO_MANY)
        raise InvalidInput(f"one element of the document has more than {MAX_TREE} tags and attributes")

    def _look_up(self, tag: str) -> tuple[str, int]:
        name = tag.rpartition("}")[2]
        known = (name, self._costs.get(name, self._cost))
        if len(self._tags) < _MAX_TAGS:
            self._tags[tag] = known
        return known

    def _end(self, tag: str) -> None:
        self._path.pop()
        if self._builder is None:
            return
        self._builder.end(tag)
        if len(self._path) == self._child_depth:
            self._ready.append(self._builder.close())
            self._builder = self._parser.CharacterDataHandler = None


def _refuse_dtd(*_: object) -> NoReturn:
    """Office documents have no DTD, and the entities of a DTD may expand without end."""
    raise InvalidInput("the document has a DTD, which Office documents cannot have")


@contextmanager
def open_package(path: Path) -> Iterator[Package]:
    try:
        with path.open("rb") as file:
            if file.read(4) == _OLE:
                raise InvalidInput("the document is encrypted, or in the format before Office 2007")
        with zipfile.ZipFile(path) as archive:
            if any(info.flag_bits & 1 for info in archive.infolist()):
                raise InvalidInput("the document is encrypted")
            yield Package(archive)
    except _BROKEN as error:
        raise InvalidInput(f"the document is damaged: {error}") from error


@contextmanager
def _as_invalid(name: str) -> Iterator[None]:
    try:
        yield
    except (expat.ExpatError, ValueError, LookupError, *_BROKEN) as error:
        raise InvalidInput(f"the document is damaged: {name}: {error}") from error


def local_name(element: Element) -> str:
    """The name of an element without its namespace, which differs between strict and transitional documents."""
    return element.tag.rpartition("}")[2]
