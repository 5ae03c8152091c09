"""Text of .docx and .pptx files.

Both have paragraphs and tables with the same local names of elements. The content of unknown elements is read, so that
content controls, smart tags, fields, text boxes and formulas are not lost.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element

from ragbandit.additions.office.package import MAX_CHARACTERS, Package, local, opened_package
from ragbandit.shared.errors import InvalidInput

#: elements whose text is not shown: deletions, codes of fields, readings of characters
_UNSEEN: Final = frozenset({"del", "moveFrom", "cellDel", "instrText", "delText", "delInstrText", "rt"})
#: element within a run or paragraph -> text in its place
_SIGNS: Final = {"tab": " ", "ptab": " ", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
#: properties of paragraphs and runs, which have no text
_PROPERTIES: Final = frozenset({"pPr", "rPr", "sdtPr", "tblPr", "trPr", "tcPr", "bodyPr", "lstStyle"})
_PASSED_OVER: Final = _UNSEEN | _PROPERTIES
#: beginnings of the types of a slide's fields that are numbers and dates
_NUMBERS: Final = ("slidenum", "datetime")
#: kinds of related parts with text -> elements whose children are read
_RELATED: Final = {
    "footnotes": frozenset({"footnote"}),
    "endnotes": frozenset({"endnote"}),
    "diagramData": frozenset({"pt"}),
    "notesSlide": frozenset({"spTree"}),
}
_BODY: Final = frozenset({"body"})
_SHAPES: Final = frozenset({"spTree"})


def docx(path: Path) -> tuple[str, str]:
    """(title or "", text) of a .docx file: its body with text boxes, then foot- and endnotes and diagrams.

    Insertions are read, deletions and hidden text are not. A row of a table is a line. Raises InvalidInput.
    """
    with opened_package(path) as package:
        main = package.main()
        return package.title, _checked(_part(package, main, of=_BODY))


def pptx(path: Path) -> tuple[str, str]:
    """(title or "", text) of a .pptx file: each slide with its tables, diagrams and notes. Raises InvalidInput."""
    with opened_package(path) as package:
        main = package.main()
        slides = {each.id: each.target for each in package.relationships(main) if each.kind == "slide"}
        listed = [_related_id(each) for each in package.children(main, of=frozenset({"sldIdLst"}))]
        parts = [_part(package, slides[each], of=_SHAPES) for each in listed if each in slides]
        return package.title, _checked(line for part in parts for line in (*part, ""))


def _related_id(element: Element) -> str:
    return next((value for name, value in element.attrib.items() if name.endswith("}id")), "")


def _part(package: Package, name: str, *, of: frozenset[str]) -> Iterator[str]:
    """The lines of a part, and of the related parts that have text."""
    yield from _lines(package.children(name, of=of))
    for each in package.relationships(name):
        if each.kind in _RELATED:
            yield from _lines(package.children(each.target, of=_RELATED[each.kind]))


def _checked(lines: Iterable[str]) -> str:
    kept: list[str] = []
    size = 0
    for line in lines:
        size += len(line) + 1
        if size > MAX_CHARACTERS:
            raise InvalidInput(f"the document has more than {MAX_CHARACTERS} characters")
        kept.append(line)
    return "\n".join(kept).strip()


def _lines(elements: Iterable[Element]) -> Iterator[str]:
    """The lines of paragraphs and tables, at any depth within these elements."""
    begin = ""  #: text of paragraphs whose end was deleted
    for element in elements:
        name = local(element)
        if name == "p":
            text, boxes = _paragraph(element)
            begin += text
            if _has(element, "pPr", "rPr", "del"):
                continue
            yield from _stripped(begin)
            yield from boxes
            begin = ""
        elif name == "tr":
            cells = [] if _has(element, "trPr", "del") else [" ".join(_lines(cell)) for cell in _cells(element)]
            if any(cells):
                yield " | ".join(filter(None, cells))
        elif name == "AlternateContent":
            yield from next(filter(None, (list(_lines(choice)) for choice in element)), [])
        elif len(element) and name not in _PASSED_OVER:
            yield from _lines(element)
    yield from _stripped(begin)


def _stripped(text: str) -> Iterator[str]:
    return filter(None, (" ".join(line.split()) for line in text.split("\n")))


def _cells(row: Element) -> Iterator[Element]:
    for element in row:
        if local(element) == "tc":
            if not _has(element, "tcPr", "cellDel"):
                yield element
        elif local(element) not in _PASSED_OVER:  # content controls around cells
            yield from _cells(element)


def _paragraph(element: Element) -> tuple[str, list[str]]:
    """Returns (text, lines of the text boxes within the paragraph)."""
    pieces: list[str] = []
    boxes: list[str] = []
    for child in element:
        name = local(child)
        if name in _PASSED_OVER or (name == "r" and _is_hidden(child)) or _is_number(child):
            continue
        if name == "t":
            pieces.append(child.text or "")
        elif name in _SIGNS:
            pieces.append(_SIGNS[name])
        elif name in ("p", "tbl"):  # within a text box
            boxes += _lines([child])
        elif name == "AlternateContent":
            text, inner = next(filter(any, map(_paragraph, child)), ("", []))
            pieces.append(text)
            boxes += inner
        else:
            text, inner = _paragraph(child)
            pieces.append(text)
            boxes += inner
    return "".join(pieces), boxes


def _is_hidden(run: Element) -> bool:
    for properties in run:
        for element in properties if local(properties) == "rPr" else ():
            if local(element) == "vanish":
                values = [value for name, value in element.attrib.items() if name.endswith("}val")]
                return not values or values[0] not in ("0", "false", "off")
    return False


def _is_number(element: Element) -> bool:
    return local(element) == "fld" and element.get("type", "").startswith(_NUMBERS)


def _has(element: Element, *path: str) -> bool:
    """Whether the element has children of children with these local names."""
    if not path:
        return True
    return any(_has(child, *path[1:]) for child in element if local(child) == path[0])
