"""Text of documents of Word and PowerPoint.

Both have paragraphs and tables with the same local names of elements. The content of unknown elements is read, so that
content controls, smart tags, fields, text boxes and formulas are not lost.

No library reads them, for two reasons. python-docx 1.2 keeps a tree of the whole document: a file of 70 kB with eight
million empty paragraphs takes 2.6 GB, while it is refused here with 26 MB. It also loses insertions and controls.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree.ElementTree import Element

from ragbandit.additions.office.charts import chart_lines
from ragbandit.additions.office.package import MAX_LABEL, Package, local_name, open_package
from ragbandit.shared.errors import InvalidInput

#: elements whose text is not shown: deletions, codes of fields, phonetic guides of characters
_UNSEEN: Final = frozenset({"del", "moveFrom", "cellDel", "instrText", "delText", "delInstrText", "rt"})
#: element within a run or paragraph -> text in its place
_SIGNS: Final = {"tab": " ", "ptab": " ", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
#: properties of paragraphs and runs, which have no text
_PROPERTIES: Final = frozenset({"pPr", "rPr", "sdtPr", "tblPr", "trPr", "tcPr", "bodyPr", "lstStyle"})
_PASSED_OVER: Final = _UNSEEN | _PROPERTIES
_TRUE: Final = ("1", "true", "on")
#: beginnings of the types of a slide's fields that are numbers and dates
_NUMBERS: Final = ("slidenum", "datetime")
_BODY: Final = frozenset({"body"})
_SHAPES: Final = frozenset({"spTree"})
#: type of relationship to a file of any format (HTML, RTF, ...) that a Word document includes; it is not read
_INCLUDED: Final = "aFChunk"
#: maximum number of columns that a cell covers, and of cells in a row; Word and PowerPoint have fewer than 100 of both
_MAX_SPAN: Final = 64
_MAX_CELLS: Final = 1_000

log = logging.getLogger("ragbandit.documents")


def docx(path: Path) -> tuple[str, str]:
    """(title or "", text) of a document of Word: headers, body, notes, diagrams, charts, comments and footers.

    The body includes text boxes. Insertions are read, deletions and hidden text are not. A row of a table is a line. A
    warning names files that the document includes and that are not read. Raises InvalidInput.
    """
    with open_package(path) as package:
        main = package.main_part()
        headers = dict.fromkeys(related_lines(package, main, kinds=("header",)))  # once, and not for each section
        footers = dict.fromkeys(related_lines(package, main, kinds=("footer",)))
        lines = chain(headers, part_lines(package, main, containers=_BODY), footers)
        text = package.join("\n", lines)
        for each in package.relationships(main):
            if each.kind == _INCLUDED:
                log.warning("%s: %s, which the document includes, is not read", path.name, each.target)
        return package.title, text


def pptx(path: Path) -> tuple[str, str]:
    """(title or "", text) of a presentation: slides with notes, diagrams, charts and comments. Raises InvalidInput."""
    with open_package(path) as package:
        main = package.main_part()
        slides = {each.id: each.target for each in package.relationships(main) if each.kind == "slide"}
        listed = [_related_id(each) for each in package.children(main, of=frozenset({"sldIdLst"}))]
        parts = (part_lines(package, slides[each], containers=_SHAPES) for each in listed if each in slides)
        return package.title, package.join("\n", chain.from_iterable(chain(part, ("",)) for part in parts))


def _related_id(element: Element) -> str:
    return next((value for name, value in element.attrib.items() if name.endswith("}id")), "")


def part_lines(package: Package, name: str, *, containers: frozenset[str]) -> Iterator[str]:
    """The lines of a part, then those of its notes, comments and other related parts (`_RELATED`).

    Headers and footers of pages are left out. containers: local names of the elements of the part that contain its text
    """
    yield from _lines(package.children(name, of=containers), package=package)
    yield from related_lines(package, name, kinds=_RELATED.keys() - {"header", "footer"})


def related_lines(package: Package, name: str, *, kinds: Iterable[str]) -> Iterator[str]:
    """The lines of a part's related parts of these kinds."""
    for each in package.relationships(name):
        if each.kind in kinds:
            of, read = _RELATED[each.kind]
            yield from read(package.children(each.target, of=of), package=package)


def _lines(elements: Iterable[Element], *, package: Package) -> Iterator[str]:
    """The lines of paragraphs and tables, at any depth within these elements."""
    begin = ""  #: text of paragraphs whose paragraph mark was deleted, so that the next paragraph continues them
    for element in elements:
        name = local_name(element)
        if name == "p":
            text, boxes = _read_paragraph(element, package=package)
            begin += text
            if _has_descendant(element, "pPr", "rPr", "del"):
                continue
            yield from _clean_lines(begin)
            yield from boxes
            begin = ""
        elif name == "tbl":
            yield from _table_lines(element, package=package)
        elif name == "AlternateContent":
            forms = (list(_lines(choice, package=package)) for choice in _choices(element))
            yield from next(filter(None, forms), [])
        elif len(element) and name not in _PASSED_OVER:
            yield from _lines(element, package=package)
    yield from _clean_lines(begin)


def _choices(element: Element) -> Iterable[Element]:
    """The alternative forms of a content, the best first; only one for a chart, whose text is in another part."""
    has_chart = any(local_name(each) == "chart" for choice in element[:1] for each in choice.iter())
    return element[:1] if has_chart else element


def _clean_lines(text: str) -> Iterator[str]:
    return filter(None, (" ".join(line.split()) for line in text.split("\n")))


class _Cell(NamedTuple):
    element: Element
    column: int
    columns: int  #: number of columns that the cell covers
    is_merged_down: bool  #: whether it begins or continues a merged cell of several rows
    is_below: bool  #: whether this cell continues the cell above
    is_beside: bool  #: whether this cell continues the previous cell of the row


def _table_lines(table: Element, *, package: Package) -> Iterator[str]:
    """A line for each row. The text of a merged cell belongs to each row and column that it covers."""
    rows = [_read_row(row) for row in _rows_or_cells(table, "tr") if not _has_descendant(row, "trPr", "del")]
    edges = {cell.column for row in rows for cell in row}
    above: dict[int, str] = {}  #: column -> text of the merged cell that may go on below
    for row in rows:
        texts: list[str] = []
        beginnings: list[str] = []
        for cell in row:
            text = package.join(" ", _lines([cell.element], package=package)) if len(cell.element) else ""
            if cell.is_below:
                text = above.get(cell.column) or text
            elif cell.is_beside and texts:
                text = texts[-1]
            else:
                beginnings.append(text)
            columns = range(cell.column, cell.column + cell.columns)
            for column in columns if above else ():
                above.pop(column, None)
            if cell.is_merged_down and len(text) <= MAX_LABEL:
                above |= dict.fromkeys(columns, text)
            texts += [text] * (len(edges.intersection(columns)) if len(text) <= MAX_LABEL else 1)
        if len(row) == 1 or len(list(filter(None, beginnings))) == 1 == len({*filter(None, texts)}):
            yield from filter(None, beginnings)
        elif any(beginnings):
            yield package.join(" | ", filter(None, texts))


def _rows_or_cells(element: Element, name: str) -> Iterator[Element]:
    """The rows of a table or the cells of a row, including rows or cells in content controls."""
    for child in element:
        if local_name(child) == name:
            yield child
        elif local_name(child) not in _PASSED_OVER:
            yield from _rows_or_cells(child, name)


def _read_row(row: Element) -> list[_Cell]:
    cells: list[_Cell] = []
    column = _bounded_number(_property_value(row, "trPr", "gridBefore"), least=0)
    for number, element in enumerate(_rows_or_cells(row, "tc"), start=1):
        if number > _MAX_CELLS:
            raise InvalidInput(f"a row of a table has more than {_MAX_CELLS} cells")
        if _has_descendant(element, "tcPr", "cellDel"):
            continue
        down, right = _property_value(element, "tcPr", "vMerge"), _property_value(element, "tcPr", "hMerge")
        is_below = down in ("", "continue") or element.get("vMerge") in _TRUE
        is_beside = right in ("", "continue") or element.get("hMerge") in _TRUE
        cells.append(
            _Cell(
                element=element,
                column=column,
                columns=_bounded_number(_property_value(element, "tcPr", "gridSpan"), least=1),
                is_merged_down=is_below or down is not None or element.get("rowSpan", "1") != "1",
                is_below=is_below,
                is_beside=is_beside,
            )
        )
        column += cells[-1].columns
    return cells


def _property_value(element: Element, *path: str) -> str | None:
    """The value of a property: "" for a property without a value, None for a missing property."""
    for child in element:
        if local_name(child) == path[0]:
            if len(path) > 1:
                return _property_value(child, *path[1:])
            return next((value for name, value in child.attrib.items() if name.rpartition("}")[2] == "val"), "")
    return None


def _bounded_number(text: str | None, *, least: int) -> int:
    return min(max(int(text), least), _MAX_SPAN) if text and text.isdecimal() and len(text) < 9 else least


def _comment_lines(elements: Iterable[Element], *, package: Package) -> Iterator[str]:
    """A line for each comment of a document, a slide or a sheet."""
    for element in elements:
        if local_name(element) == "commentList":
            yield from _comment_lines(element, package=package)
        elif local_name(element) in ("comment", "cm"):
            lines = list(_lines([element], package=package))
            lines = lines or [_read_paragraph(element, package=package)[0], *(each.text or "" for each in element)]
            if text := " ".join(package.join(" ", lines).split()):
                yield f"[comment: {text}]"


def _read_paragraph(element: Element, *, package: Package) -> tuple[str, list[str]]:
    """Returns (text, lines of the text boxes within the paragraph)."""
    pieces: list[str] = []
    boxes: list[str] = []
    for child in element:
        name = local_name(child)
        if name in _PASSED_OVER or (name == "r" and _is_hidden(child)) or _is_number_field(child):
            continue
        if name == "t":
            pieces.append(child.text or "")
        elif name in _SIGNS:
            pieces.append(_SIGNS[name])
        elif name in ("p", "tbl"):  # within a text box
            boxes += _lines([child], package=package)
        elif name == "AlternateContent":
            forms = (_read_paragraph(each, package=package) for each in _choices(child))
            text, inner = next(filter(any, forms), ("", []))
            pieces.append(text)
            boxes += inner
        else:
            text, inner = _read_paragraph(child, package=package)
            pieces.append(text)
            boxes += inner
    return "".join(pieces), boxes


def _is_hidden(run: Element) -> bool:
    for properties in run:
        for element in properties if local_name(properties) == "rPr" else ():
            if local_name(element) == "vanish":
                values = [value for name, value in element.attrib.items() if name.endswith("}val")]
                return not values or values[0] not in ("0", "false", "off")
    return False


def _is_number_field(element: Element) -> bool:
    return local_name(element) == "fld" and element.get("type", "").startswith(_NUMBERS)


def _has_descendant(element: Element, *path: str) -> bool:
    """Whether the element has a child with the first local name, which has a child with the second one, and so on."""
    if not path:
        return True
    return any(_has_descendant(child, *path[1:]) for child in element if local_name(child) == path[0])


#: kind of a related part with text -> (elements whose children are read, function that reads them)
_RELATED: Final[Mapping[str, tuple[frozenset[str], Callable[..., Iterator[str]]]]] = {
    "header": (frozenset({"hdr"}), _lines),
    "footer": (frozenset({"ftr"}), _lines),
    "footnotes": (frozenset({"footnote"}), _lines),
    "endnotes": (frozenset({"endnote"}), _lines),
    "diagramData": (frozenset({"pt"}), _lines),
    "chart": (frozenset({"chartSpace"}), chart_lines),
    "chartEx": (frozenset({"chartSpace"}), chart_lines),
    "notesSlide": (frozenset({"spTree"}), _lines),
    "comments": (frozenset({"comments", "cmLst"}), _comment_lines),
}
