"""Text of charts: titles, and a line for each series with its name, its categories and their values.

The values are the chart's own copies of its cells. Charts since Office 2016 (`cx:chartSpace`) store them in an element
of their own, `data`, to which a series refers by an id.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final
from xml.etree.ElementTree import Element

from ragbandit.additions.office.package import MAX_LABEL, Package, local_name
from ragbandit.additions.office.percentages import as_percentage

#: elements of a series with categories or first coordinates; elements with values or second coordinates
_CATEGORIES: Final = ("cat", "xVal")
_VALUES: Final = ("val", "yVal")
#: maximum number of levels of categories
_MAX_LEVELS: Final = 16

#: number of a point -> its text
_Points = dict[int, str]


def chart_lines(elements: Iterable[Element], *, package: Package) -> Iterator[str]:
    """The lines of a chart. elements: the children of its part's root."""
    return filter(None, _chart_lines(list(elements), package=package))


def _chart_lines(parts: list[Element], *, package: Package) -> Iterator[str]:
    """Yield the lines of a chart; "" for a title or a series without text."""
    data = {each.get("id", ""): each for part in parts for each in _find_all(part, "data")}
    pending = parts[::-1]
    while pending:
        element = pending.pop()
        match local_name(element):
            case "title":
                yield _element_text(element)
            case "ser":
                categories = _axis_points(element, _CATEGORIES, package=package)
                values = _axis_points(element, _VALUES, package=package)
                yield _series_line(_series_name(element), categories, values, package=package)
            case "series":
                ids = [each.get("val", "") for each in _find_all(element, "dataId")]
                for each in (data.pop(each) for each in ids if each in data):
                    yield _series_line(_series_name(element), *_dimensions(each, package=package), package=package)
            case _:
                pending += _children_reversed(element)


def _series_line(name: str, categories: _Points, values: _Points, *, package: Package) -> str:
    """A line such as "Sales: North: 3; South: 4"."""
    numbers = sorted({*categories, *values})
    points = (": ".join(filter(None, (categories.get(n, ""), values.get(n, "")))) for n in numbers)
    return package.join(": ", filter(None, (name, package.join("; ", points))))


def _children_reversed(element: Element) -> list[Element]:
    """The children of an element, in reverse order. Extensions are left out: their series are not shown."""
    return [child for child in reversed(element) if local_name(child) != "extLst"]


def _walk(element: Element) -> Iterator[Element]:
    """Yield the element and all elements within it, in order."""
    pending = [element]
    while pending:
        yield (each := pending.pop())
        pending += _children_reversed(each)


def _find_all(element: Element, *names: str) -> Iterator[Element]:
    return (each for each in _walk(element) if local_name(each) in names)


def _series_name(series: Element) -> str:
    return next((_element_text(each) for each in series if local_name(each) == "tx"), "")


def _element_text(element: Element) -> str:
    """Text of the element's paragraphs, or else of its stored cells."""
    runs = "".join(" " if local_name(each) == "p" else each.text or "" for each in _find_all(element, "p", "t"))
    return " ".join((runs or " ".join(each.text or "" for each in _find_all(element, "v"))).split())


def _axis_points(series: Element, names: tuple[str, ...], *, package: Package) -> _Points:
    return next((_points(each, package=package) for each in series if local_name(each) in names), {})


def _dimensions(data: Element, *, package: Package) -> tuple[_Points, _Points]:
    """(categories, values) of a chart since Office 2016."""
    texts = next((_points(each, package=package) for each in _find_all(data, "strDim")), {})
    return texts, next((_points(each, package=package) for each in _find_all(data, "numDim")), {})


def _points(axis: Element, *, package: Package) -> _Points:
    """The points of an axis. Categories may have levels, the inner level first. An outer category covers the inner
    categories up to the next outer category.
    """
    code = next((each.text or "" for each in _find_all(axis, "formatCode")), "")
    levels = [_level(each, code=code, package=package) for each in islice(_find_all(axis, "lvl"), _MAX_LEVELS)]
    inner, *outer = levels or [_level(axis, code=code, package=package)]
    for level in outer:
        label, joined = "", _Points()
        for number in sorted({*inner, *level}):
            label = level.get(number, label)[:MAX_LABEL]
            joined[number] = package.join(" ", filter(None, (label, inner.get(number, ""))))[:MAX_LABEL]
        inner = joined
    return inner


def _level(level: Element, *, code: str, package: Package) -> _Points:
    code = level.get("formatCode", code)
    points = _Points()
    for point in _find_all(level, "pt"):
        number = point.get("idx", "")
        text = next((each.text for each in point if local_name(each) == "v"), point.text) or ""
        if number.isdecimal():
            points[int(number[:9])] = package.join("", [_format_number(" ".join(text.split()), code=code)])
    return points


def _format_number(text: str, *, code: str) -> str:
    try:
        return as_percentage(float(text), code=code) or text
    except ValueError:
        return text
