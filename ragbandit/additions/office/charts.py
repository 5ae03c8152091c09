"""Text of charts: titles, and a line for each series with its name, its categories and their values.

The values are the copies that a chart has of its cells. Charts since Office 2016 (`cx:chartSpace`) keep them apart.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final
from xml.etree.ElementTree import Element

from ragbandit.additions.office.package import MAX_LABEL, Package, local
from ragbandit.additions.office.percentages import as_percentage

#: elements of a series with categories or the first of two coordinates; and with values
_CATEGORIES: Final = ("cat", "xVal")
_VALUES: Final = ("val", "yVal")
#: maximum number of levels of categories
_MAX_LEVELS: Final = 16

#: number of a point -> its text
_Points = dict[int, str]


def chart_lines(elements: Iterable[Element], *, package: Package) -> Iterator[str]:
    """The lines of a chart. elements: the children of its part's root."""
    return filter(None, _lines(list(elements), package=package))


def _lines(parts: list[Element], *, package: Package) -> Iterator[str]:
    """The same, with "" for titles and series that have no text here."""
    data = {each.get("id", ""): each for part in parts for each in _named(part, "data")}
    waiting = parts[::-1]
    while waiting:
        element = waiting.pop()
        match local(element):
            case "title":
                yield _text(element)
            case "ser":
                categories = _axis(element, _CATEGORIES, package=package)
                values = _axis(element, _VALUES, package=package)
                yield _line(_name(element), categories, values, package=package)
            case "series":
                ids = [each.get("val", "") for each in _named(element, "dataId")]
                for each in (data.pop(each) for each in ids if each in data):
                    yield _line(_name(element), *_dimensions(each, package=package), package=package)
            case _:
                waiting += _parts(element)


def _line(name: str, categories: _Points, values: _Points, *, package: Package) -> str:
    """As "Sales: North: 3; South: 4"."""
    numbers = sorted({*categories, *values})
    points = (": ".join(filter(None, (categories.get(n, ""), values.get(n, "")))) for n in numbers)
    return package.joined(": ", filter(None, (name, package.joined("; ", points))))


def _parts(element: Element) -> list[Element]:
    """The children of an element, in reverse order. Extensions are left out: their series are not shown."""
    return [child for child in reversed(element) if local(child) != "extLst"]


def _seen(element: Element) -> Iterator[Element]:
    """The element and all within it, in order."""
    waiting = [element]
    while waiting:
        yield (each := waiting.pop())
        waiting += _parts(each)


def _named(element: Element, *names: str) -> Iterator[Element]:
    return (each for each in _seen(element) if local(each) in names)


def _name(series: Element) -> str:
    return next((_text(each) for each in series if local(each) == "tx"), "")


def _text(element: Element) -> str:
    """Text of the element's paragraphs, or else of its stored cells."""
    runs = "".join(" " if local(each) == "p" else each.text or "" for each in _named(element, "p", "t"))
    return " ".join((runs or " ".join(each.text or "" for each in _named(element, "v"))).split())


def _axis(series: Element, names: tuple[str, ...], *, package: Package) -> _Points:
    return next((_points(each, package=package) for each in series if local(each) in names), {})


def _dimensions(data: Element, *, package: Package) -> tuple[_Points, _Points]:
    """(categories, values) of a chart since Office 2016."""
    texts = next((_points(each, package=package) for each in _named(data, "strDim")), {})
    return texts, next((_points(each, package=package) for each in _named(data, "numDim")), {})


def _points(axis: Element, *, package: Package) -> _Points:
    """The points of an axis. Categories may have levels, the inner level first. An outer category covers the inner
    categories up to the next outer category.
    """
    code = next((each.text or "" for each in _named(axis, "formatCode")), "")
    levels = [_level(each, code=code, package=package) for each in islice(_named(axis, "lvl"), _MAX_LEVELS)]
    inner, *outer = levels or [_level(axis, code=code, package=package)]
    for level in outer:
        label, joined = "", _Points()
        for number in sorted({*inner, *level}):
            label = level.get(number, label)[:MAX_LABEL]
            joined[number] = package.joined(" ", filter(None, (label, inner.get(number, ""))))[:MAX_LABEL]
        inner = joined
    return inner


def _level(level: Element, *, code: str, package: Package) -> _Points:
    code = level.get("formatCode", code)
    points = _Points()
    for point in _named(level, "pt"):
        number = point.get("idx", "")
        text = next((each.text for each in point if local(each) == "v"), point.text) or ""
        if number.isdecimal():
            points[int(number[:9])] = package.joined("", [_shown(" ".join(text.split()), code=code)])
    return points


def _shown(text: str, *, code: str) -> str:
    try:
        return as_percentage(float(text), code=code) or text
    except ValueError:
        return text
