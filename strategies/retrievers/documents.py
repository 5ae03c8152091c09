"""A folder of documents to passages: text, Markdown, HTML and PDF, cut where paragraphs and sentences end."""

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from router.errors import InvalidInput
from strategies.base import Passage
from strategies.retrievers.corpus import needed

__all__ = ["CHARACTERS", "read_folder"]

log = logging.getLogger("ragbandit.documents")

#: of a passage at most: some 130 words, which every encoder reads whole
CHARACTERS = 800


def read_folder(folder: Path, *, characters: int = CHARACTERS) -> Iterator[Passage]:
    """The passages of all documents under a folder, in the order of their paths.

    A passage has at most `characters` of them; its id is the document's path in the folder, "#" and its number from 1,
    its title the document's own, or the name of its file. Files of other kinds and documents without text (a scanned
    PDF) are left out, and the log names each.
    Raises InvalidInput naming a document that cannot be read, or if there is none; ConfigError without the packages.
    """
    found = 0
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = path.relative_to(folder).as_posix()
        read = _READERS.get(path.suffix.lower())
        if read is None:
            log.warning("%s is left out: not one of %s", place, ", ".join(_READERS))
            continue
        title, text = read(path)
        pieces = list(_cut(text, markdown=path.suffix.lower() == ".md", characters=characters))
        if not pieces:
            log.warning("%s is left out: it holds no text", place)
        for number, piece in enumerate(pieces, start=1):
            yield Passage(id=f"{place}#{number}", title=title, text=piece)
        found += len(pieces)
    if not found:
        remedy = f"put {', '.join(_READERS)} files with text there"
        raise InvalidInput(f"{folder} holds no document", field="corpus", remedy=remedy)


def _cut(text: str, *, markdown: bool, characters: int) -> Iterator[str]:
    library = needed("semantic_text_splitter", extra="documents")
    splitter = (library.MarkdownSplitter if markdown else library.TextSplitter)(characters)
    return (piece for piece in splitter.chunks(text) if piece.strip())


def _text(path: Path) -> tuple[str, str]:
    try:
        return path.stem, path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error=error) from error


def _html(path: Path) -> tuple[str, str]:
    soup = needed("bs4", extra="documents").BeautifulSoup(_text(path)[1], "html.parser")
    title = soup.title.get_text(strip=True) if soup.title else ""
    for unseen in soup(["script", "style", "template", "title"]):
        unseen.decompose()
    return title or path.stem, soup.get_text("\n", strip=True)


def _pdf(path: Path) -> tuple[str, str]:
    library = needed("pypdf", extra="documents")
    try:
        reader = library.PdfReader(path)
        title = reader.metadata.title if reader.metadata else None
        return title or path.stem, "\n\n".join(page.extract_text() for page in reader.pages)
    except (OSError, ValueError, KeyError, library.errors.PyPdfError) as error:
        raise _unreadable(path, error=error) from error


def _unreadable(path: Path, *, error: Exception) -> InvalidInput:
    return InvalidInput(f"{path} cannot be read: {error}", field="corpus", remedy="mend it, or take it out")


#: end of a file's name -> its reader, which gives (title, text)
_READERS: Mapping[str, Callable[[Path], tuple[str, str]]] = MappingProxyType(
    {".txt": _text, ".md": _text, ".html": _html, ".htm": _html, ".pdf": _pdf}
)
