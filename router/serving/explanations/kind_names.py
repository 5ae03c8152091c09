"""Names of kinds of questions: short sentences about what their questions are, never about what they are not."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.serving.explanations.question_facts import (
    BEGINS,
    LANGUAGE,
    NEEDS,
    NO_QUESTION_WORD,
    SESSION,
    SIGNS,
    WORDS,
    Facts,
)
from ragbandit.router.serving.explanations.question_words import HOW_MANY, YES_OR_NO
from ragbandit.shared.texts.formats import number

#: most values of a fact in a name; further ones are "others"
_MOST_NAMED: Final = 4
#: a word names a kind that has it in this share of its questions or more, if at most this share of the others have it
_MOST_OF, _FEW_OF = 0.8, 0.05
#: facts with a name of their own whether they hold or not
_EITHER: Final = {
    "a name": ("with a name", "without names"),
    "a number": ("with a number", "without numbers"),
    "a date": ("with a date", "without a date"),
    "code": ("with code", "without code"),
    "a comparison": ("with a comparison", "without a comparison"),
    "several questions": ("with several questions", "with one question at most"),
}
_BEGINNINGS: Final = {
    HOW_MANY: "asks how many, how much or how long",
    YES_OR_NO: "asks yes or no",
    NO_QUESTION_WORD: "begins without a question word",
}
NAME_OF_ALL: Final = "all questions"


@dataclass(frozen=True, slots=True)
class Condition:
    """One of the conditions of a kind: a fact has this value, or is at most this number."""

    fact: str
    value: str | float | bool
    #: whether `fact` is a word or a pair of words of the text
    is_word: bool = False


def kind_name(
    conditions: Sequence[tuple[Condition, bool]],
    *,
    facts: Sequence[Facts],
    words: Mapping[str, float],
) -> str:
    """The name of a kind, from its conditions and whether each holds. facts: of its questions. words: words that are
    in most of its questions and in hardly any other -> the share of its questions that have it.
    """
    named: list[str] = []
    by_fact: dict[str, list[tuple[Condition, bool]]] = {}
    for condition, holds in conditions:
        by_fact.setdefault("" if condition.is_word else condition.fact, []).append((condition, holds))
    for fact in sorted(by_fact, key=lambda fact: fact == ""):  # what a question is about comes last
        if fact == "":
            named += _about(by_fact[fact], words=words)
        elif isinstance(by_fact[fact][0][0].value, float):
            named.append(_of_a_number(fact, by_fact[fact], has_unknown=any(fact not in row for row in facts)))
        elif by_fact[fact][0][0].value is True:
            named.append(_either(fact, holds=by_fact[fact][0][1]))
        else:
            named.append(_of_values(fact, Counter(row.get(fact) for row in facts)))
    if len(named) < 2:
        return named[0] if named else NAME_OF_ALL
    return f"{', '.join(named[:-1])} and {named[-1]}"


def _about(conditions: Sequence[tuple[Condition, bool]], *, words: Mapping[str, float]) -> Iterator[str]:
    had = [condition.fact for condition, holds in conditions if holds]
    lacked = [condition.fact for condition, holds in conditions if not holds]
    if not had and words:
        had, lacked = [max(words, key=lambda word: words[word])], []
    if had:
        yield f"about {_listed([_quoted(word) for word in had], last='and')}"
    elif lacked:
        yield f"without {_listed([_quoted(word) for word in lacked], last='and')}"


def _of_a_number(fact: str, conditions: Sequence[tuple[Condition, bool]], *, has_unknown: bool) -> str:
    above = max((float(one.value) for one, holds in conditions if not holds), default=None)
    most = min((float(one.value) for one, holds in conditions if holds), default=None)
    if fact in (WORDS, SIGNS):
        unit = fact if (most if most is not None else above) != 1.0 else fact[:-1]
        if above is not None and most is not None:
            return f"{number(above + 1)} to {number(most)} {unit}" if most > above + 1 else f"of {number(most)} {unit}"
        text = f"up to {number(most)} {unit}" if most is not None else f"longer than {number(above)} {unit}"
        return f"{text} or of unknown length" if has_unknown else text
    if above is not None and most is not None:
        return f"{fact} above {number(above)} and up to {number(most)}"
    text = f"{fact} up to {number(most)}" if most is not None else f"{fact} above {number(above)}"
    return f"{text} or unknown" if has_unknown else text


def _either(fact: str, *, holds: bool) -> str:
    if fact in _EITHER:
        return _EITHER[fact][not holds]
    return f"{'with' if holds else 'without'} {fact.removeprefix(NEEDS)}"


def _of_values(fact: str, counts: Counter[str | float | bool | None]) -> str:
    """Names what the values are. A question without the fact has the value None."""
    values = [str(value) for value, _ in counts.most_common() if value is not None]
    shown, more = values[:_MOST_NAMED], len(values) > _MOST_NAMED
    if fact == BEGINS:
        words = [_quoted(value) for value in shown if value not in _BEGINNINGS]
        said = [f"begins with {_listed(words)}"] if words else []
        said += [_BEGINNINGS[value] for value in shown if value in _BEGINNINGS]
        said += ["begins otherwise"] if more else []
        return _listed(said + (["in another language"] if None in counts else []))
    said = [*shown, *(["others"] if more else [])]
    if fact == SESSION:
        return _listed(
            [*(f"{value} of a session" for value in shown), *(["without a session"] if None in counts else [])]
        )
    if fact == LANGUAGE:
        return _listed([f"in {value}" for value in shown] + (["in another language"] if more or None in counts else []))
    return f"{fact} {_listed(said + (['unknown'] if None in counts else []))}"


def _listed(words: Sequence[str], *, last: str = "or") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def _quoted(word: str) -> str:
    return f'"{word}"'


def telling_words(words: Mapping[str, npt.NDArray[np.bool_]], *, inside: npt.NDArray[np.intp]) -> dict[str, float]:
    """Words that most questions of a kind have, and hardly any other -> the share of its questions that have it.

    words: word -> whether each question has it. inside: places of the questions of the kind.
    """
    found = {}
    for word, has in words.items():
        within = int(has[inside].sum())
        if within >= _MOST_OF * len(inside) and has.sum() - within <= _FEW_OF * (len(has) - len(inside)):
            found[word] = within / len(inside)
    return found
