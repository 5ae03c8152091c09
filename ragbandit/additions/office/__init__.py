"""Reads .docx, .pptx and .xlsx files (ISO/IEC 29500, Office Open XML) as text."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(documents={".docx": "documents:docx", ".pptx": "documents:pptx", ".xlsx": "sheets:xlsx"})
