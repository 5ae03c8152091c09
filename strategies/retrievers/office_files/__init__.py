"""Reads .docx, .pptx and .xlsx files (ISO/IEC 29500, Office Open XML) as text."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ragbandit.strategies.retrievers.office_files.documents import docx, pptx
from ragbandit.strategies.retrievers.office_files.sheets import xlsx

#: suffix -> function that returns (title or "", text) of a file. Raises InvalidInput
READERS: Final[Mapping[str, Callable[[Path], tuple[str, str]]]] = MappingProxyType(
    {".docx": docx, ".pptx": pptx, ".xlsx": xlsx}
)
