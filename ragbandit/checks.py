"""Checks that ship, for `reward.check`: functions of an answer, its question and its sources.

A check returns a number from 0 to 1, a bool, or None where it cannot say. `sources` are mappings with id, title, text
and url. What else a check takes comes from `reward.check_params`. Yours look the same; see docs/feedback.md.
"""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Final

_FENCE: Final = re.compile(r"```[^\n`]*\n(.*?)\n?```", re.DOTALL)
_CITATION: Final = re.compile(r"\[(\d{1,3}(?:\s*,\s*\d{1,3})*)\]")
#: words in a row that are a quotation
_QUOTED_WORDS: Final = 8


def json_parses(*, answer: str, question: str, sources: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the answer is one JSON object or array, in a code fence or not."""
    del question, sources
    whole = _FENCE.fullmatch(answer.strip())
    try:
        value = json.loads(whole[1] if whole else answer)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict | list)


def cites_source(*, answer: str, question: str, sources: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether the answer cites a source: as [1], by its url, or by eight of its words in a row.

    False where it cites [9] of five sources; None where there are no sources.
    """
    del question
    if not sources:
        return None
    cited = {int(number) for numbers in _CITATION.findall(answer) for number in numbers.split(",")}
    if cited:
        return all(1 <= number <= len(sources) for number in cited)
    quotations = _runs(answer)
    return any(
        (bool(source["url"]) and source["url"] in answer) or not quotations.isdisjoint(_runs(source["text"]))
        for source in sources
    )


def tests_pass(*, answer: str, question: str, sources: Sequence[Mapping[str, Any]], command: Sequence[str]) -> bool:
    """Whether a command that reads the answer's code from its standard input ends with status 0; with 1 it does not.

    The code is what stands in the answer's first code fence, or all of it. The command runs without a shell, in an
    empty folder, with PATH alone of the environment. It is for the command to run the code where it can do no harm, for
    example in a container without a network. Raises RuntimeError for any other status.
    """
    del question, sources
    fenced = _FENCE.search(answer)
    with tempfile.TemporaryDirectory(prefix="ragbandit-check-") as folder:
        done = subprocess.run(  # noqa: S603 - the operator's command
            list(command),
            input=(fenced[1] if fenced else answer).encode("utf-8", "replace"),
            cwd=folder,
            env={"PATH": os.defpath},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command[0]} ended with status {done.returncode}")
    return done.returncode == 0


def _runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[at : at + _QUOTED_WORDS]) for at in range(len(words) - _QUOTED_WORDS + 1)}
