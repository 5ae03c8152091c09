"""Reads Word, PowerPoint and Excel files (ISO/IEC 29500, Office Open XML) as text, also templates and slide shows."""

from ragbandit.shared.additions import Addition

#: function that reads a form -> endings of its files. The ones with an m have macros, which are not read and never run
_ENDINGS = {
    "documents:docx": (".docx", ".docm", ".dotx", ".dotm"),
    "documents:pptx": (".pptx", ".pptm", ".ppsx", ".ppsm", ".potx", ".potm"),
    "sheets:xlsx": (".xlsx", ".xlsm", ".xltx", ".xltm"),
}
ADDITION = Addition(documents={ending: read for read, endings in _ENDINGS.items() for ending in endings})
