"""The ZIP file of an Office document: its parts, within caps, and the relationships between them."""

import posixpath
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from ragbandit.shared.errors import InvalidInput

#: maximum bytes of all XML of a document together when it is expanded. A ZIP file may be a thousand times smaller
MAX_EXPANDED: Final = 128 * 1024 * 1024
#: maximum number of files in a document, and of tags in its XML, since an element takes up to thirty times its bytes
MAX_PARTS: Final = 50_000
MAX_TAGS: Final = 8_000_000
#: maximum number of characters of a document's text. Cells of a sheet may all show the same long text
MAX_CHARACTERS: Final = 64 * 1024 * 1024

_CHUNK: Final = 1024 * 1024
_XML: Final = (".xml", ".rels", ".vml")
#: first bytes of an OLE file: an encrypted document, or one in the format before Office 2007
_OLE: Final = b"\xd0\xcf\x11\xe0"
_CORE: Final = "docProps/core.xml"
#: "<!DOCTYPE" in the encodings that XML parts may have. Office documents have no DTD, and a DTD may expand without end
_DTD: Final = tuple("<!DOCTYPE".encode(encoding) for encoding in ("utf-8", "utf-16-le", "utf-16-be"))
_BROKEN: Final = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Relationship:
    id: str
    kind: str  #: last part of its type, for example "notesSlide"
    target: str  #: name of a part


class Package:
    """The parts of an Office document whose XML is within MAX_EXPANDED. Raises InvalidInput with what is wrong."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.names = frozenset(archive.namelist())
        if len(archive.infolist()) > MAX_PARTS:
            raise InvalidInput(f"the document has more than {MAX_PARTS} parts")
        self._left, self._tags_left = MAX_EXPANDED, MAX_TAGS
        for info in archive.infolist():
            if info.filename.lower().endswith(_XML):
                self._check(info)

    @property
    def title(self) -> str:
        """The title in the document's properties; "" without one."""
        if _CORE not in self.names:
            return ""
        values = {local(element): element.text for element in self.children(_CORE, of=frozenset({"coreProperties"}))}
        return " ".join((values.get("title") or "").split())

    def children(self, name: str, *, of: frozenset[str]) -> Iterator[Element]:
        """The children of the part's elements with these local names, in order. A child is empty after its turn."""
        path: list[str] = []
        with self.opened(name) as part, _as_invalid(name):
            for event, element in ElementTree.iterparse(part, events=("start", "end")):  # noqa: S314 - parts have no DTD
                if event == "start":
                    path.append(local(element))
                    continue
                path.pop()
                if path and path[-1] in of:
                    yield element
                    element.clear()

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

    def main(self) -> str:
        """Name of the part with the document itself."""
        for relationship in self.relationships(""):
            if relationship.kind == "officeDocument":
                return relationship.target
        raise InvalidInput("the document is damaged: it has no main part")

    @contextmanager
    def opened(self, name: str) -> Iterator[IO[bytes]]:
        with _as_invalid(name), self._archive.open(name) as part:
            yield part

    def _check(self, info: zipfile.ZipInfo) -> None:
        """Expand a part once, since its stated size may be wrong, and subtract it from what is left of the caps."""
        before = b""
        with self.opened(info.filename) as part:
            while chunk := part.read(_CHUNK):
                self._left -= len(chunk)
                self._tags_left -= chunk.count(b"<")
                if self._left < 0:
                    raise InvalidInput(f"the document has more than {MAX_EXPANDED >> 20} MiB when it is expanded")
                if self._tags_left < 0:
                    raise InvalidInput(f"the document has more than {MAX_TAGS} tags")
                if any(mark in before + chunk for mark in _DTD):
                    raise InvalidInput(f"the document has a DTD in {info.filename}, which Office documents cannot have")
                before = chunk[-32:]


@contextmanager
def opened_package(path: Path) -> Iterator[Package]:
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
    except (ElementTree.ParseError, KeyError, ValueError, LookupError, RecursionError, *_BROKEN) as error:
        raise InvalidInput(f"the document is damaged: {name}: {error}") from error


def local(element: Element) -> str:
    """The name of an element without its namespace: strict and transitional documents have different ones."""
    return element.tag.rpartition("}")[2]
