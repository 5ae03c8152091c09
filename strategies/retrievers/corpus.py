"""Reads the passages for an index: from JSONL, Parquet, text with tabs, or documents, which are cut into passages."""

import codecs
import csv
import hashlib
import json
import logging
import math
import os
import re
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from html import unescape
from io import StringIO
from itertools import chain, islice, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import yaml

from ragbandit.shared.additions import load_offered, offered_places_except
from ragbandit.shared.errors import InvalidInput, encodable, required_module
from ragbandit.shared.files import open_file
from ragbandit.shared.json_lines import MAX_LINE, decode_line, lines, parse_line, rereadable
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Passage

log = logging.getLogger("ragbandit.documents")

CHARACTERS = 800  #: maximum number of characters of a passage from a document, which every encoder can read whole
MAX_PASSAGE: Final = 1_000_000  #: maximum number of characters of a field of a passage
MAX_DOCUMENT: Final = 64 * 1024 * 1024  #: maximum bytes of a document
#: field of a passage -> its names in files, ours first: BEIR has "_id", IRCoT "paragraph_text", Pyserini "contents"
NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"id": ("id", "_id"), "title": ("title",), "text": ("text", "paragraph_text", "contents"), "url": ("url",)}
)
_COLUMNS: Final = frozenset(name for names in NAMES.values() for name in names)
_QUOTES: Final = 'put "..." around cells with tabs, quotes or line breaks, and double the quotes in them'

#: a part of at most 16,000 characters, since the splitter's time is quadratic in the length of a part, and of a line
_SECTION = re.compile(r"[\s\S]{1,16000}\Z|[\s\S]{8000,15998}(?:\n(?=#)|\n\n)|[\s\S]{8000,15998}[\n ,]|[\s\S]{16000}")
#: front matter in YAML or TOML at the beginning of a Markdown file. Front matter in JSON is an object, without marks
_FRONT_MATTER = re.compile(
    r"(?:---[ \t]*\n(?P<yaml>.*?)^(?:---|\.\.\.)|\+\+\+[ \t]*\n(?P<toml>.*?)^\+\+\+)[ \t]*(?:\n|\Z)",
    re.DOTALL | re.MULTILINE,
)
_BLANK_LINE = re.compile(r"^[ \t]*\n", re.MULTILINE)
#: an image or file within the text: SVG, or anything up to a white space or the end of the link, and lines of base64
_DATA_URI = re.compile(
    r"\bdata:(?=[\w.+-]++/|;)[\w.+/-]*+(?:;[\w.+-]++(?:=[^;,\s]*+)?)*,"
    r"(?:(?:<|%3C)svg\b(?:(?!(?:<|%3C)svg\b)[\s\S])*?(?:<|%3C)(?:/|%2F)svg(?:>|%3E)"
    r"|[^\s\"'<>)]*+(?:[ \t]*\n[ \t]*[A-Z0-9+/]{60,}+={0,2})*(?:[ \t]*\n[ \t]*[A-Z0-9+/]++={1,2})?)",
    re.IGNORECASE,
)
_SOFT_HYPHEN = re.compile(r"\u00ad(?:[ \t]*\n[ \t]*)?")
#: the first part of a word that a line end divides; group 2 is the second part
_DIVIDED = re.compile(r"(?<![^\W_])([^\W\d_]++)[-\u2010][ \t]*\n\s*(?=([^\W\d_]++))")

#: first bytes -> encoding: byte order marks, and the first "<" of a page in UTF-16 without a mark
_BOM = {
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
    b"<\0": "utf-16-le",
    b"\0<": "utf-16-be",
}
_DECLARED = re.compile(rb"<(?:\?xml\s[^>]*?\bencoding|meta\s[^>]*?\bcharset)\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
#: declared encoding -> encoding that browsers use instead (WHATWG's encoding standard), by their names in Python
_AS_BROWSERS = {
    **dict.fromkeys(("ascii", "iso8859-1"), "cp1252"),
    **dict.fromkeys(("iso8859-11", "tis-620"), "cp874"),
    **dict.fromkeys(("gb2312", "gbk"), "gb18030"),
    "iso8859-9": "cp1254",
    "big5": "big5hkscs",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
_INLINE = "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|ins|kbd|mark|nobr|q|rb|rp|rt|ruby|s|samp|small"
_INLINE += "|span|strike|strong|sub|sup|time|tt|u|var|wbr"
#: the position before a tag that divides words: any tag that is not inline, or the number of a footnote
_DIVIDING = re.compile(rf"(?=</?(?!(?:{_INLINE})(?![\w-]))[a-z]|<sup\b[^<>]*>\s*<a\b)", re.IGNORECASE)


def read_corpus(path: Path | str, *, leave_out: Callable[[str, str], None] | None = None) -> Iterator[Passage]:
    """Read the passages of a corpus: a file of JSONL, of Parquet or of tab-separated text, or a folder of documents.

    A line of JSONL, plain or gzipped, is an object {"id", "title", "text", "url"}, or has other names of NAMES. Text
    with tabs names these columns on its first line, and puts cells with quotes in quotes, as DPR's psgs_w100.tsv. Other
    fields and blank lines are skipped. Numbers become text. A title or url that is missing, null or NaN becomes "". A
    row whose text is null, NaN or blank is left out. leave_out: see `read_folder`.
    Raises InvalidInput, with file, line or row (from 1) and field, for broken JSON, a missing id or text, a value above
    MAX_PASSAGE, or an id that was used before.
    """
    source = Path(path)
    if source.is_dir():
        yield from read_folder(source, leave_out=leave_out or log_left_out)
        return
    with rereadable(source) as readable:
        yield from _rows_of_file(readable, source=source, leave_out=leave_out or log_left_out)


def _rows_of_file(path: Path, *, source: Path, leave_out: Callable[[str, str], None]) -> Iterator[Passage]:
    """source: the file as the user named it."""
    if path.suffix.lower() == ".parquet":
        unit, rows = "row", _parquet(path)
    else:
        unit, rows = "line", _tab_separated(path) if _has_columns(path) else _json_lines(path)
    first_rows: dict[str, int] = {}
    for number, row in rows:
        where = f"{source}, {unit} {number}"
        row = _with_our_names(row)
        if "text" in row and is_blank(_as_text(row["text"], name="text", where=where)):
            leave_out(f"{unit} {number}", "it has no text")
            continue
        passage = _read_row(row, where=where)
        if (first := first_rows.setdefault(passage.id, number)) != number:
            message = f"{where}: {passage.id!r} was used before, on {unit} {first}"
            raise InvalidInput(message, field="id", remedy="give every passage an id of its own")
        yield passage


def _columns(line: str) -> list[str]:
    return [name.strip().lower() for name in line.rstrip("\r\n").replace('"', "").split("\t")]


def _has_columns(path: Path) -> bool:
    """Whether the first line names columns with tabs between them. Raises InvalidInput."""
    _, raw = next(lines(path))
    columns = _columns(raw.decode("utf-8", "replace"))
    return len(columns) > 1 and not {*columns}.isdisjoint((*NAMES["id"], *NAMES["text"]))


def _tab_separated(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    csv.field_size_limit(MAX_LINE)  # for the whole process; by default a cell has at most 131,072 characters
    rows = csv.reader((decode_line(raw) for _, raw in lines(path, blank=True)), delimiter="\t", strict=True)
    columns, number = list[str](), 1
    try:
        for cells in rows:
            if columns and any(cells):
                if len(cells) != len(columns):
                    raise InvalidInput(f"has {len(cells)} cells for {len(columns)} columns", remedy=_QUOTES)
                yield number, dict(zip(columns, cells, strict=True))
            elif any(cells):
                columns = _columns("\t".join(cells))
                if len({*columns}) < len(columns):
                    raise InvalidInput("names a column twice", remedy="name every column once")
            number = rows.line_num + 1
    except (csv.Error, InvalidInput) as error:
        message = f"{path}, line {number} {error.message if isinstance(error, InvalidInput) else error}"
        remedy = error.remedy if isinstance(error, InvalidInput) else _QUOTES
        raise InvalidInput(message, field="corpus", remedy=remedy) from error


def _json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, raw in lines(path):
        try:
            row = parse_line(raw)
        except InvalidInput as error:
            raise InvalidInput(f"{path}, line {number} {error.message}", field="corpus", remedy=error.remedy) from error
        yield number, row


def _parquet(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    parquet = required_module("pyarrow.parquet", extra="replay")  # most corpora are JSONL

    try:
        open_file(path).close()
        with parquet.ParquetFile(path) as file:
            columns = [name for name in file.schema_arrow.names if name in _COLUMNS]
            if twice := [name for name in columns if columns.count(name) > 1]:
                raise InvalidInput(f"{path} has {twice[0]!r} twice", field=twice[0], remedy="name every column once")
            nested = [name for name in columns if file.schema_arrow.field(name).type.num_fields]
            if nested:
                message, remedy = f"{path} has lists or objects in {nested[0]!r}", "give a column of strings"
                raise InvalidInput(message, field=nested[0], remedy=remedy)
        # A text that many rows share is in the file once, and in memory too: each row is made when it is read.
        with parquet.ParquetFile(path, read_dictionary=columns) as file:
            number = 0
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=columns):
                for cells in zip(*batch.columns, strict=True):
                    number += 1
                    yield number, {name: cell.as_py() for name, cell in zip(batch.schema.names, cells, strict=True)}
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise InvalidInput(f"{path} cannot be read: {error}", field="corpus", remedy="give a Parquet file") from error


def _with_our_names(row: Mapping[str, object]) -> Mapping[str, object]:
    """The row with our names of its fields. A field that already has our name takes precedence."""
    others = {name: used for name, names in NAMES.items() for used in names[:0:-1] if used in row}
    return {**{name: row[used] for name, used in others.items()}, **row} if others else row


def _read_row(row: Mapping[str, object], *, where: str) -> Passage:
    values = {name: _as_text(row.get(name), name=name, where=where) for name in NAMES}
    for name in ("id", "text"):
        if not values[name].strip():
            fault = "is missing" if row.get(name) is None else f"is {row[name]!r:.80}"
            raise InvalidInput(f"{where}: {name!r} {fault}", field=name, remedy="give a string with text in it")
    return Passage(id=values["id"], title=values["title"], text=values["text"], url=values["url"].strip() or None)


def _as_text(value: object, *, name: str, where: str) -> str:
    """A field as text. 1.0 becomes "1", because data frames may store integers as floats. null and NaN become ""."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal | UUID):
        remedy = "give a string" if name in ("id", "text") else "give a string, or leave it out"
        raise InvalidInput(f"{where}: {name!r} is {value!r:.80}", field=name, remedy=remedy)
    text = str(value)
    if len(text) > MAX_PASSAGE:
        fault = f"{where}: {name!r} has {len(text):,} characters, and {MAX_PASSAGE:,} are allowed"
        raise InvalidInput(fault, field=name, remedy="cut it into passages, or give a folder of documents")
    return text


def model_text(text: str, *, title: str) -> str:
    return f"{title}\n{text}".strip()


def clean_text(text: str) -> str:
    """Cut the text to 100,000 characters, and replace halves of surrogate pairs, which models refuse."""
    return encodable(text[:100_000])


def log_left_out(name: str, reason: str, /) -> None:
    log.warning("%s is left out: %s", name, reason)


def read_folder(folder: Path, *, leave_out: Callable[[str, str], None] = log_left_out) -> Iterator[Passage]:
    """Read the passages of all documents in a folder and its subfolders, in the order of their paths.

    A passage has at most CHARACTERS characters. Its url is the path of the document in the folder, and its id is the
    path, "#" and a number from 1. Its title is the title of the document (in Markdown "title:" of the front matter, or
    the first heading of level 1), or the name of the file.
    leave_out: called with the path and the reason for each file that is left out, for example a link to another folder.
    Raises InvalidInput if there is no document, ConfigError if the packages are missing.
    """
    documents, root = 0, os.path.realpath(folder)
    for path in sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()):
        name = path.relative_to(folder).as_posix()
        try:
            title, text = _read_document(path, root=root)
            pieces = list(_cut_into_passages(text, markdown=path.suffix.lower() == ".md"))
            if not pieces:
                raise InvalidInput("the document has no text")
        except InvalidInput as error:
            leave_out(name, error.message)
            continue
        for number, piece in enumerate(pieces, start=1):
            yield Passage(id=f"{name}#{number}", title=title, text=piece, url=name)
        documents += len(pieces)
    if not documents:
        remedy = f"put {', '.join(_readers())} files with text into this folder"
        raise InvalidInput(f"{folder} has no document", field="corpus", remedy=remedy)


def _cut_into_passages(text: str, *, markdown: bool) -> Iterator[str]:
    library = required_module("semantic_text_splitter", extra="documents")
    splitter = (library.MarkdownSplitter if markdown else library.TextSplitter)(CHARACTERS)
    return (piece for section in _SECTION.finditer(text) for piece in splitter.chunks(section[0]) if piece.strip())


def _read_document(path: Path, *, root: str) -> tuple[str, str]:
    """Returns (title, text). The message of an InvalidInput is the reason to leave the document out."""
    if path.is_dir():
        raise InvalidInput("links to folders are not followed")
    if not Path(os.path.realpath(path)).is_relative_to(root):
        raise InvalidInput("links to files outside of the folder are not followed")
    readers = _readers()
    read = readers.get(path.suffix.lower())
    if read is None:
        raise InvalidInput(f"the file's suffix is not one of {', '.join(readers)}")
    if not path.is_file():
        raise InvalidInput("the path is not a file, or is a broken link")
    if path.stat().st_size > MAX_DOCUMENT:
        raise InvalidInput(f"the document has more than {MAX_DOCUMENT >> 20} MiB")
    return read(path)


#: rows of a Parquet file that are decoded at once
_PARQUET_ROWS: Final = 1024
#: elements of a page whose text is not read; rt: the pronunciation of a character
_UNSEEN: Final = ("script", "style", "template", "title", "rp", "rt")
#: elements without content and end tag
_VOID: Final = (
    *("area", "base", "basefont", "bgsound", "br", "col", "command", "embed", "frame", "hr", "image", "img", "input"),
    *("isindex", "keygen", "link", "menuitem", "meta", "nextid", "param", "source", "spacer", "track", "wbr"),
)
#: most elements of a page that are open at once, and divided words of a text
_MOST_PARTS: Final = 200_000
_TAG_NAME: Final = r"[a-z][^\t\n\r\f />\0]*+"
#: a comment, a section of text, an end tag, a declaration or a start tag. Markup without an end matches to the page's
#: end, so that all matches together take linear time. No possessive group may fail within a repetition: Python before
#: 3.11.5 matches too much then
_MARKUP: Final = re.compile(
    r"<(?:!--(?:-?>|[^-]*+(?:-(?!-!?\s*+>)[^-]*+)*(?:--!?\s*+>)?)"
    r"|!\[CDATA\[(?P<cdata>[^]]*+(?:](?!]>)[^]]*+)*)(?:]]>)?"
    rf"|/(?P<end>{_TAG_NAME})?[^>]*+>?|[!?][^>]*+>?"
    rf"|(?P<start>{_TAG_NAME})(?:[^=>]++|=\s*+(?:\"[^\"]*+\"|'[^']*+')?+)*+(?P<closed>>)?)",
    re.IGNORECASE,
)
#: like _MARKUP, but quotes are plain characters, so the value of an attribute ends with the tag
_UNQUOTED: Final = re.compile(_MARKUP.pattern.replace(r"""(?:\"[^\"]*+\"|'[^']*+')?+""", ""), re.IGNORECASE)
_RAW_END: Final = {tag: re.compile(rf"</{tag}[\s/>]", re.IGNORECASE) for tag in ("script", "style")}
#: what begins or ends an HTML comment or inline code of Markdown, in which a comment is text
_COMMENT_OR_CODE: Final = re.compile("<!--|-->|`+")
#: flag of a field of a PDF whose value is hidden
_PASSWORD_FIELD: Final = 1 << 13


def _read_text_file(path: Path) -> tuple[str, str]:
    return path.stem, _tidy_text(_decode_file(path))


def _decode_file(path: Path) -> str:
    """The text of a file in UTF-8, with a byte order mark, or in the encoding that it declares as HTML or XML does."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"the document cannot be read: {error.strerror}") from error
    declared = _declared_encoding(data)
    # Many pages are in UTF-8, whatever they declare. But any text in ISO-2022 is also valid UTF-8.
    encoding = declared if declared.startswith("iso2022") else "utf-8"
    encoding = next((name for mark, name in _BOM.items() if data.startswith(mark)), encoding)
    try:
        text = data.decode(encoding)
    except UnicodeError as error:
        if encoding != "utf-8" or declared == "utf-8":
            raise InvalidInput(f"the text is not {encoding.upper()}: {error}") from error
        text = data.decode(declared, "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _declared_encoding(data: bytes) -> str:
    match = _DECLARED.search(data[:8192])
    label = re.sub("^(?:x-|cs|cn-)|-[ie]$", "", match[1].decode().lower()) if match else "utf-8"
    try:
        name = codecs.lookup(label.replace("windows-31j", "cp932").replace("windows-", "cp")).name
        b"\xff".decode(name, "replace")  # some codecs are not for texts
    except (LookupError, UnicodeError):
        return "utf-8"
    return "utf-8" if name.startswith("utf") else _AS_BROWSERS.get(name, name)


def _tidy_text(text: str) -> str:
    """The text without data URIs, soft hyphens and line ends within words.

    A hyphen at a line end stays, since it may belong to a compound, unless the text has the whole word elsewhere.
    Only the first _MOST_PARTS divided words are looked up.
    """
    text = _SOFT_HYPHEN.sub("", _DATA_URI.sub("", text))
    divided = {part[1] + part[2] for part in islice(_DIVIDED.finditer(text), _MOST_PARTS)}
    words = (word[0] for word in re.finditer(r"[^\W\d_]+", text)) if divided else iter(())
    whole_words = {word for word in words if word in divided}
    return _DIVIDED.sub(lambda part: part[1] if part[1] + part[2] in whole_words else f"{part[1]}-", text)


def _read_markdown(path: Path) -> tuple[str, str]:
    name, text = _read_text_file(path)
    title, text = _front_matter(text)
    text = _without_comments(text)
    return title or _heading(text) or name, text


def _front_matter(text: str) -> tuple[str, str]:
    """Returns (title, text without the front matter)."""
    match = _FRONT_MATTER.match(text)
    try:
        if text.startswith("{"):
            values, end = json.JSONDecoder().raw_decode(text)
            if text[end:].partition("\n")[0].strip():
                return "", text
        elif match is None or _BLANK_LINE.search(match["yaml"] or ""):  # a blank line ends YAML, and begins the text
            return "", text
        elif match["toml"] is not None:
            values, end = tomllib.loads(match["toml"]), match.end()
        else:
            # This loader reads every scalar as text, for example the titles 1984 and 2024-05-01.
            values = yaml.load(match["yaml"], Loader=yaml.BaseLoader) or {}  # noqa: S506 - only texts, lists, mappings
            end = match.end()
    except (yaml.YAMLError, ValueError, RecursionError):
        return "", text
    if not isinstance(values, dict):
        return "", text
    title = values.get("title")
    return " ".join(title.split()) if isinstance(title, str) else "", text[end:]


def _without_comments(text: str) -> str:
    """The text of Markdown without HTML comments, which are not shown. Comments in code stay."""
    if "<!--" not in text:
        return text
    tokens = required_module("markdown_it", extra="documents").MarkdownIt("commonmark").parse(text)
    blocks = [token.map for token in tokens if token.type in ("fence", "code_block") and token.map]
    lines, pieces, at = text.split("\n"), [], 0
    for start, end in [*blocks, (len(lines), len(lines))]:
        before = "\n".join(lines[at:start])
        pieces += [_without_inline_comments(before), "\n".join(lines[start:end])]
        at = end
    return "\n".join(pieces).strip("\n") + "\n"


def _without_inline_comments(text: str) -> str:
    """The text without closed comments; comments in inline code stay. Takes linear time, even without closing marks."""
    marks = [*_COMMENT_OR_CODE.finditer(text)]
    ends, nearest = dict[int, int | None](), dict[str, int]()
    for mark in reversed(marks):
        ends[mark.start()] = nearest.get("-->" if mark[0] == "<!--" else mark[0])
        nearest[mark[0]] = mark.end()
    pieces, kept, read = list[str](), 0, 0
    for mark in marks:
        end = ends[mark.start()]
        if mark.start() < read or end is None or mark[0] == "-->":
            continue
        if mark[0] == "<!--":
            pieces.append(text[kept : mark.start()])
            kept = end
        read = end
    return "".join(pieces) + text[kept:]


def _heading(text: str) -> str:
    tokens = required_module("markdown_it", extra="documents").MarkdownIt("commonmark").parse(text)
    for token, inside in pairwise(tokens):
        if (token.type, token.tag, token.level) == ("heading_open", "h1", 0):  # not in a list or quotation
            parts = [part for part in inside.children if part.type != "html_inline"]
            title = "".join(" " if part.type.endswith("break") else part.content for part in parts)
            if title.strip():
                return " ".join(title.split())
    return ""


def _read_html(path: Path) -> tuple[str, str]:
    title, page = _front_matter(_decode_file(path))
    try:
        shown = _Page(_DIVIDING.sub("\n", page))
    except ValueError as error:  # a character reference has thousands of digits
        raise InvalidInput(f"the document cannot be read: {error}") from error
    text = shown.text.getvalue()
    return title or shown.title or path.stem, "\n".join(filter(None, map(str.strip, text.split("\n"))))


class _Page:
    """The text of an HTML page, and its first title.

    Time is linear, unlike that of Python's own parser. A tree, which takes the memory of a hundred pages, is not made.
    An end tag ends its element and all elements inside.
    """

    def __init__(self, page: str) -> None:
        self.text, self.title = StringIO(), ""
        self._open, self._counts = list[str](), Counter[str]()
        self._has_title, self._unseen = False, 0
        self._read(page)

    def _read(self, page: str) -> None:
        at, pattern = 0, _MARKUP
        while (mark := pattern.search(page, at)) is not None:
            tag = (mark["start"] or "").lower()
            if tag and not mark["closed"]:
                if pattern is _UNQUOTED:
                    break  # no tag ends after here: the rest is text
                pattern = _UNQUOTED  # a quote without an end: the quotes from here on are plain characters
                continue
            self._add_text(unescape(page[at : mark.start()]))
            at = mark.end()
            self._add_text(mark["cdata"] or "")
            if mark["end"]:
                self._close_element(mark["end"].lower())
            elif tag and tag not in _VOID:
                self._open_element(tag)
                if mark[0].endswith("/>") and ("=" not in mark[0] or mark[0][-3] in " \t\n\f\"'"):  # not `href=x/`
                    self._close_element(tag)
                elif tag in _RAW_END:
                    end = _RAW_END[tag].search(page, at)
                    at = end.start() if end else len(page)
        self._add_text(unescape(page[at:]))

    def _open_element(self, tag: str) -> None:
        if len(self._open) == _MOST_PARTS:
            raise InvalidInput(f"more than {_MOST_PARTS:,} elements are open at once")
        self._open.append(tag)
        self._counts[tag] += 1
        self._unseen += tag in _UNSEEN

    def _close_element(self, tag: str) -> None:
        ended = "" if self._counts[tag] else tag
        while ended != tag:
            ended = self._open.pop()
            self._counts[ended] -= 1
            self._unseen -= ended in _UNSEEN
            self._has_title = self._has_title or ended == "title"

    def _add_text(self, data: str) -> None:
        if not data:
            return
        if not data.strip(" \n\t\f\r") and not (self._counts["pre"] or self._counts["textarea"]):
            data = "\n" if "\n" in data else " "
        if self._counts["title"] and not self._has_title:
            self.title += data.strip()
        if not self._unseen:
            self.text.write(data)


def _read_pdf(path: Path) -> tuple[str, str]:
    library = required_module("pypdf", extra="documents")
    try:
        reader = library.PdfReader(path)
        title = (reader.metadata.title or "").strip() if reader.metadata else ""
        pages = ("\n".join((page.extract_text(), *_typed_texts(page))) for page in reader.pages)
        texts = _within_cap(chain(pages, _form_values(reader.get_fields() or {})))
        return title or path.stem, _tidy_text("\n\n".join(texts))
    except InvalidInput:
        raise
    except Exception as error:  # pypdf raises errors of any kind for a broken file
        raise InvalidInput(f"the document cannot be read: {type(error).__name__}: {error}") from error


def _within_cap(texts: Iterable[str]) -> Iterator[str]:
    """The texts, up to the cap. Each text is counted, because all pages of a PDF may show the same long content."""
    left = MAX_DOCUMENT
    for text in texts:
        left -= len(text)
        if left < 0:
            raise InvalidInput(f"the document has more than {MAX_DOCUMENT:,} characters of text")
        yield text


def _typed_texts(page: Any) -> Iterator[str]:
    """The texts of a page's FreeText annotations: text that people typed onto a PDF, outside fields of a form."""
    for reference in page.get("/Annots") or ():
        annotation = reference.get_object()
        if annotation.get("/Subtype") == "/FreeText" and isinstance(annotation.get("/Contents"), str):
            yield annotation["/Contents"]


def _form_values(fields: Mapping[str, Any]) -> Iterator[str]:
    """A line `name: value` for each filled field of a form. The name is the field's label for people, if it has one."""
    for name, field in fields.items():
        value = field.get("/V")
        is_secret = field.get("/FT") == "/Tx" and int(field.get("/Ff") or 0) & _PASSWORD_FIELD
        if value is None or field.get("/FT") == "/Sig" or is_secret:
            continue
        values = value if isinstance(value, list) else [value]
        texts = [text for text in (str(each).removeprefix("/").strip() for each in values) if text and text != "Off"]
        if texts:
            yield f"{str(field.get('/TU') or name).strip()}: {', '.join(texts)}"


def _read_by_addition(path: Path) -> tuple[str, str]:
    title, text = load_offered("documents")[path.suffix.lower()](path)
    return title or path.stem, _tidy_text(text)


#: suffix of a file -> function that returns (title, text) of the file
_OURS: Mapping[str, Callable[[Path], tuple[str, str]]] = MappingProxyType(
    {".txt": _read_text_file, ".md": _read_markdown, ".html": _read_html, ".htm": _read_html, ".pdf": _read_pdf}
)


def _readers() -> Mapping[str, Callable[[Path], tuple[str, str]]]:
    """Suffix of a file -> function that returns (title, text), also for suffixes that additions read."""
    return {**_OURS, **dict.fromkeys(offered_places_except(_OURS, hook="documents"), _read_by_addition)}


def passage_line(passage: Passage) -> bytes:
    """The passage as a line of JSONL. The sha256 of a corpus is the sha256 of these lines."""
    row = {"id": passage.id, "title": passage.title, "text": passage.text}
    if passage.url is not None:
        row["url"] = passage.url
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


class PassageReader:
    """Reads the passages of an index in batches. Raises InvalidInput if there are no passages, or two with the same id.

    progress: called with the number of passages done.
    """

    def __init__(self, rows: Iterable[Passage], *, progress: Callable[[int], None] = lambda _: None) -> None:
        self._rows = iter(rows)
        self._count_done = progress
        self._seen: set[str] = set()
        self._digest = hashlib.sha256()

    def batches(self, size: int) -> Iterator[list[tuple[Passage, bytes]]]:
        """Yields lists of at most `size` (passage, its line of JSONL)."""
        while passages := list(islice(self._rows, size)):
            yield [(passage, self._line(passage)) for passage in passages]
            self._count_done(len(self._seen))
        if not self._seen:
            raise InvalidInput("there is no passage", field="corpus", remedy="give at least one passage")

    def facts(self) -> dict[str, Json]:
        return {"passages": len(self._seen), "sha256": self._digest.hexdigest(), "created_at": time.time()}

    def _line(self, passage: Passage) -> bytes:
        if passage.id in self._seen:
            fault = f"passage {len(self._seen) + 1}: {passage.id!r} was used before"
            raise InvalidInput(fault, field="id", remedy="give every passage an id of its own")
        self._seen.add(passage.id)
        line = passage_line(passage)
        self._digest.update(line)
        return line


def build_command(retriever: str, *, index: Path | str) -> str:
    return f"build it with: `ragbandit index build --retriever {retriever} --corpus CORPUS.jsonl --index {index}`"
