"""Ready-made checks for the setting `reward.check`: functions of an answer, its question and its sources.

A check returns a quality from 0 to 1, a bool, or None if it cannot judge the answer. Each source has id, title, text
and url. Further arguments come from `reward.check_params`. See docs/feedback.md for checks of your own.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_FENCE: Final = re.compile(r"```[^\n`]*\n(.*?)\n?```", re.DOTALL)
_CITATION: Final = re.compile(r"\[(\d{1,3}(?:\s*,\s*\d{1,3})*)\]")
_QUOTED_WORDS: Final = 8


def json_parses(*, answer: str, question: str, sources: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the answer is one JSON object or array, with or without a code fence around it."""
    del question, sources
    fenced = _FENCE.fullmatch(answer.strip())
    try:
        value = json.loads(fenced[1] if fenced else answer)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict | list)


def cites_source(*, answer: str, question: str, sources: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether the answer cites a source: as [1], by its url, or by eight consecutive words of its text.

    False if a cited number is out of range, such as [9] with five sources. None if there are no sources.
    """
    del question
    if not sources:
        return None
    cited = {int(number) for numbers in _CITATION.findall(answer) for number in numbers.split(",")}
    if cited:
        return all(1 <= number <= len(sources) for number in cited)
    sequences = _word_sequences(answer)
    return any(
        (bool(source["url"]) and source["url"] in answer) or not sequences.isdisjoint(_word_sequences(source["text"]))
        for source in sources
    )


def _word_sequences(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[start : start + _QUOTED_WORDS]) for start in range(len(words) - _QUOTED_WORDS + 1)}
