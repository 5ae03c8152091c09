"""Formulas of a sheet whose values were not stored: a program wrote them, and no Excel has opened the file since."""

from typing import Any, Final
from xml.etree.ElementTree import Element

from ragbandit.additions.office.package import local
from ragbandit.shared.errors import required_module

#: maximum length of a formula in Excel
_MAX_FORMULA: Final = 8_192
#: maximum length of all formulas of a sheet that are moved from the cell that several ones share
_MAX_MOVED: Final = 4_000_000


class UnstoredFormula:
    """A formula that stands in a cell instead of a value."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return f"[formula: ={self._text}]" if self._text else "[formula]"


class Formulas:
    """The formulas of one sheet. Several cells may share a formula, whose references then move with the cell."""

    def __init__(self) -> None:
        #: number of a shared formula -> (its text, the first cell with it), then the translator that moves it
        self._shared: dict[str, tuple[str, str]] = {}
        self._movable: dict[str, Any] = {}
        self._left = _MAX_MOVED

    def with_formula(self, cell: dict[str, Any], *, element: Element) -> dict[str, Any]:
        """The cell that openpyxl read of this element, with its formula if it has no value."""
        formula = next((child for child in element if local(child) == "f"), None)
        if formula is None:
            return cell
        text = (formula.text or "").strip()
        number = formula.get("si", "") if formula.get("t") == "shared" else ""
        place = element.get("r") or f"{_letters(cell['column'])}{cell['row']}"
        if number and text:
            self._shared[number] = (text, place)
        has_text = element.get("t") == "str" and any(local(child) == "v" for child in element)
        if cell["value"] is not None or has_text:
            return cell
        if number and not text:
            text = self._moved(number, place=place)
        return {**cell, "value": UnstoredFormula(text[:_MAX_FORMULA])}

    def _moved(self, number: str, *, place: str) -> str:
        """The shared formula as it is at a place; "" if it is not known."""
        text, origin = self._shared.get(number, ("", ""))
        self._left -= len(text)
        if not text or len(text) > _MAX_FORMULA or self._left < 0:
            return ""
        library = required_module("openpyxl.formula.translate", extra="documents")
        try:
            if number not in self._movable:
                self._movable[number] = library.Translator(f"={text}", origin)
            return str(self._movable[number].translate_formula(place)).removeprefix("=")
        except Exception:  # openpyxl raises errors of any kind for a formula that it does not know
            return ""


def _letters(column: int) -> str:
    return str(required_module("openpyxl.utils", extra="documents").get_column_letter(column))
