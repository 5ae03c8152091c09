"""A folder of documents to passages: text, Markdown, HTML and PDF, cut where paragraphs and sentences end."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from ragbandit.shared.errors import InvalidInput, required_module
from ragbandit.strategies.base import Passage

log = logging.getLogger("ragbandit.documents")

#: of a passage at most: some 130 words, which every encoder reads whole
CHARACTERS = 800

#: between two lines of its own at the very beginning of a Markdown file
_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_BLANK_LINE = re.compile(r"^[ \t]*\n", re.MULTILINE)
_BREAKS = frozenset({"softbreak", "hardbreak"})


def log_left_out(place: str, reason: str, /) -> None:
    """A document that is not in the corpus, as a warning in the log."""
    log.warning("%s is left out: %s", place, reason)


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
        place = path.relative_to(folder).as_posix()
        try:
            title, text = _read(path)
            pieces = list(_cut(text, markdown=path.suffix.lower() == ".md", characters=characters))
            if not pieces:
                raise InvalidInput("it holds no text")
        except InvalidInput as error:
            leave_out(place, error.message)
            continue
        for number, piece in enumerate(pieces, start=1):
            yield Passage(id=f"{place}#{number}", title=title, text=piece, url=place)
        documents += len(pieces)
    if not documents:
        remedy = f"put {', '.join(_READERS)} files with text there"
        raise InvalidInput(f"{folder} holds no document", field="corpus", remedy=remedy)


def _cut(text: str, *, markdown: bool, characters: int) -> Iterator[str]:
    library = required_module("semantic_text_splitter", extra="documents")
    splitter = (library.MarkdownSplitter if markdown else library.TextSplitter)(characters)
    return (piece for piece in splitter.chunks(text) if piece.strip())


def _read(path: Path) -> tuple[str, str]:
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
    found = _FRONT_MATTER.match(text)
    if found is None or _BLANK_LINE.search(found[1]):  # "Note: read this." is a mapping, and a paragraph as well
        return "", text
    try:
        # Of this loader every scalar is a text: a title of 1984 is no number, and one of 2024-05-01 no date.
        given = yaml.load(found[1], Loader=yaml.BaseLoader)  # noqa: S506 - it makes texts, lists and mappings alone
    except (yaml.YAMLError, RecursionError):
        return "", text
    if not isinstance(given or {}, dict):
        return "", text
    title = (given or {}).get("title")
    return " ".join(title.split()) if isinstance(title, str) else "", text[found.end() :]


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
