"""Columns of the context: the numbers that a policy on features makes of a question's declared context.

Every key makes columns whose squares add up to about 1, and one that is 1 where the value is missing; all of them are
divided by the root of the number of keys, so that |c|^2 is about 1, as |x|^2 / d is of the question's features.

- number: standardised by the mean and the variance of the rows learned so far, and cut at 3 standard deviations.
- boolean: 1 or -1.
- category, tenant, language: 1 in the column of its value, or in the column of "other"; hashed ones 1 or -1 in the
  column of the hash (Weinberger et al. 2009).
- words: like hashed categories, added up and divided by the root of their number.

The mean and the variance are Welford's (1962), over the ledger's rows in their order. They are the only state. A value
that is far out counts there as 8 standard deviations, so that one of 1e90 does not make all others alike.

Whatever is not of the declared type is missing: rows that were logged before their key was declared hold anything.
"""

import hashlib
import math
from typing import Final

import numpy as np

from ragbandit.router.config.context_schema import ContextKey, ContextSchema, is_number
from ragbandit.router.policies.base import Facts
from ragbandit.router.policies.context.language import language_of
from ragbandit.shared.types import Json, Query, Vector

#: standard deviations at which a standardised number is cut
_CUT: Final = 3.0
#: rows after which a number counts in the moments as this many standard deviations from the mean at most
_YOUNG: Final = 20
_FAR: Final = 8.0


class ContextColumns:
    """A question's declared context as a vector of `size` numbers, and the moments of its numbers."""

    def __init__(self, schema: ContextSchema) -> None:
        self.schema = {key: schema[key] for key in sorted(schema)}
        self.size = sum(one.columns for one in self.schema.values())
        #: key of a number -> rows that had it, their mean, the sum of squares about it
        self._moments: dict[str, tuple[int, float, float]] = {}

    def of(self, query: Query) -> Vector:
        """The columns of a question, shape (size,)."""
        columns = np.zeros(self.size)
        at = 0
        for key, one in self.schema.items():
            self._fill(columns[at : at + one.columns], key=key, one=one, value=value_of(query, key=key, one=one))
            at += one.columns
        columns /= math.sqrt(len(self.schema))
        return columns

    def learn(self, query: Query) -> None:
        """Take the question's numbers into the moments."""
        for key, one in self.schema.items():
            if one.type in ("number", "question_length"):
                value = value_of(query, key=key, one=one)
                if value is not None:
                    assert isinstance(value, float)
                    self._take(key, value)

    def _take(self, key: str, value: float) -> None:
        rows, mean, squares = self._moments.get(key, (0, 0.0, 0.0))
        if rows >= _YOUNG and squares > 0.0:
            reach = _FAR * math.sqrt(squares / rows)
            value = min(max(value, mean - reach), mean + reach)
        apart = value - mean
        mean += apart / (rows + 1)
        self._moments[key] = rows + 1, mean, squares + apart * (value - mean)

    def _fill(self, columns: Vector, *, key: str, one: ContextKey, value: object) -> None:
        if value is None:
            columns[-1] = 1.0
        elif isinstance(value, bool):
            columns[0] = 1.0 if value else -1.0
        elif isinstance(value, float):
            rows, mean, squares = self._moments.get(key, (0, 0.0, 0.0))
            if squares > 0.0:
                columns[0] = min(max((value - mean) / math.sqrt(squares / rows), -_CUT), _CUT)
        elif isinstance(value, str):
            named = one.categories
            if named is not None:
                columns[named.index(value) if value in named else len(named)] = 1.0
            else:
                _add_hashed(columns[:-1], key=key, word=value)
        else:
            assert isinstance(value, tuple)
            for word in value:
                _add_hashed(columns[:-1], key=key, word=word)
            columns /= math.sqrt(max(len(value), 1))

    def state(self) -> dict[str, Json]:
        """The moments, as JSON."""
        return {key: list(moments) for key, moments in sorted(self._moments.items())}

    def restore(self, facts: Facts) -> None:
        """Take over saved moments."""
        self._moments = {key: (rows, mean, squares) for key, (rows, mean, squares) in facts.items()}


def value_of(query: Query, *, key: str, one: ContextKey) -> bool | float | str | tuple[str, ...] | None:
    """A declared key's value for a question; None where it is missing or of another type."""
    match one.type:
        case "tenant":
            return query.tenant
        case "language":
            return language_of(query.text)
        case "question_length":
            return float(len(query.text))
        case _:
            return _sent(query.context.get(key), one=one)


def _sent(value: object, *, one: ContextKey) -> bool | float | str | tuple[str, ...] | None:
    match one.type:
        case "number":
            return float(value) if is_number(value) else None  # type: ignore[arg-type] # checked
        case "boolean":
            return value if isinstance(value, bool) else None
        case "words":
            if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
                return None
            return tuple(sorted(set(value)))[: one.most_words]
        case _:
            return value if isinstance(value, str) else None


def _add_hashed(columns: Vector, *, key: str, word: str) -> None:
    text = f"{key}\x00{word}".encode("utf-8", "surrogatepass")
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
    columns[(number >> 1) % len(columns)] += 1.0 if number & 1 else -1.0
