"""Formulas of a sheet without stored values: a program wrote them, and Excel has not opened the file since."""

from typing import Any, Final
from xml.etree.ElementTree import Element

from ragbandit.additions.office.package import local_name
from ragbandit.shared.errors import required_module

#: maximum length of a formula in Excel
_MAX_FORMULA: Final = 8_192
#: maximum total length of a sheet's shared formulas that are translated to other cells, characters
_MAX_TRANSLATED: Final = 4_000_000


class UnstoredFormula:
    """The value of a cell that has only a formula. As text it is "[formula: =...]"."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return f"[formula: ={self._text}]" if self._text else "[formula]"


class Formulas:
    """The formulas of one sheet. Several cells may share a formula, whose references then move with the cell."""

    def __init__(self) -> None:
        #: number of a shared formula -> (its text, the first cell with it)
        self._shared: dict[str, tuple[str, str]] = {}
        #: number of a shared formula -> the translator of its references
        self._translators: dict[str, Any] = {}
        self._left = _MAX_TRANSLATED

    def add_formula(self, cell: dict[str, Any], *, element: Element) -> dict[str, Any]:
        """Add the formula of the element to the cell that openpyxl read from it, if the cell has no value."""
        formula = next((child for child in element if local_name(child) == "f"), None)
        if formula is None:
            return cell
        text = (formula.text or "").strip()
        number = formula.get("si", "") if formula.get("t") == "shared" else ""
        place = element.get("r") or f"{_column_letters(cell['column'])}{cell['row']}"
        if number and text:
            self._shared[number] = (text, place)
        has_text = element.get("t") == "str" and any(local_name(child) == "v" for child in element)
        if cell["value"] is not None or has_text:
            return cell
        if number and not text:
            text = self._translate_shared(number, place=place)
        return {**cell, "value": UnstoredFormula(text[:_MAX_FORMULA])}

    def _translate_shared(self, number: str, *, place: str) -> str:
        """The shared formula with references moved to the cell `place`; "" if it is unknown, too long or unreadable."""
        text, origin = self._shared.get(number, ("", ""))
        self._left -= len(text)
        if not text or len(text) > _MAX_FORMULA or self._left < 0:
            return ""
        library = required_module("openpyxl.formula.translate", extra="documents")
        try:
            if number not in self._translators:
                self._translators[number] = library.Translator(f"={text}", origin)
            return str(self._translators[number].translate_formula(place)).removeprefix("=")
        except Exception:  # openpyxl raises errors of any kind for a formula that it does not know
            return ""


def _column_letters(column: int) -> str:
    return str(required_module("openpyxl.utils", extra="documents").get_column_letter(column))
