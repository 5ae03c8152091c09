"""Converts the declared context of a question to numbers for policies with features."""

import functools
import hashlib
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter, ValidationError

from ragbandit.router.config.context_schema import ContextKey, ContextSchema, check_columns, is_number
from ragbandit.router.policies.base import Facts
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import Features, Json, Matrix, Query, Vector

#: numbers are clipped at this many standard deviations from their mean
_CUT: Final = 3.0
#: this number of first values of a key is learned unchanged; later values are clipped (_FAR) before they are learned
_YOUNG: Final = 20
#: distance from the mean, in standard deviations, at which values are clipped before they are learned
_FAR: Final = 8.0


class ContextColumns:
    """Converts a question's declared context to `size` numbers. Learns mean and variance of each numeric key."""

    def __init__(self, schema: ContextSchema) -> None:
        self.schema = {key: schema[key] for key in sorted(schema)}
        self.size = sum(declared.columns for declared in self.schema.values())
        #: numeric key -> (number of values, mean, sum of squared deviations from the mean)
        self._moments: dict[str, tuple[int, float, float]] = {}

    def of(self, query: Query) -> Vector:
        columns = np.zeros(self.size)
        start = 0
        for key, declared in self.schema.items():
            value = value_of(query, key=key, declared=declared)
            self._fill(columns[start : start + declared.columns], key=key, declared=declared, value=value)
            start += declared.columns
        columns /= math.sqrt(len(self.schema))
        return columns

    def learn(self, query: Query) -> None:
        for key, declared in self.schema.items():
            if declared.type == "number":
                value = value_of(query, key=key, declared=declared)
                if value is not None:
                    assert isinstance(value, float)
                    self._add_to_moments(key, value)

    def _add_to_moments(self, key: str, value: float) -> None:
        rows, mean, squares = self._moments.get(key, (0, 0.0, 0.0))
        if rows >= _YOUNG and squares > 0.0:
            limit = _FAR * math.sqrt(squares / rows)
            value = min(max(value, mean - limit), mean + limit)
        deviation = value - mean
        mean += deviation / (rows + 1)
        self._moments[key] = rows + 1, mean, squares + deviation * (value - mean)

    def _fill(self, columns: Vector, *, key: str, declared: ContextKey, value: object) -> None:
        if value is None:
            columns[-1] = 1.0
        elif isinstance(value, bool):
            columns[0] = 1.0 if value else -1.0
        elif isinstance(value, float):
            rows, mean, squares = self._moments.get(key, (0, 0.0, 0.0))
            if squares > 0.0:
                columns[0] = min(max((value - mean) / math.sqrt(squares / rows), -_CUT), _CUT)
        elif isinstance(value, str):
            categories = declared.categories
            if categories is not None:
                columns[categories.index(value) if value in categories else len(categories)] = 1.0
            else:
                _add_hashed(columns[:-1], key=key, text=value)
        else:
            assert isinstance(value, tuple)
            for text in value:
                _add_hashed(columns[:-1], key=key, text=text)
            columns /= math.sqrt(max(len(value), 1))

    def state(self) -> dict[str, Json]:
        return {key: list(moments) for key, moments in sorted(self._moments.items())}

    def restore(self, facts: Facts) -> None:
        self._moments = {key: (rows, mean, squares) for key, (rows, mean, squares) in facts.items()}


def value_of(query: Query, *, key: str, declared: ContextKey) -> bool | float | str | tuple[str, ...] | None:
    """The question's value for a declared key; None if the value is missing or has another type."""
    value = query.context.get(key)
    match declared.type:
        case "tenant":
            return query.tenant
        case "number":
            return float(value) if is_number(value) else None  # type: ignore[arg-type] # checked
        case "boolean":
            return value if isinstance(value, bool) else None
        case "words":
            if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
                return None
            return tuple(sorted(set(value)))[: declared.most_words]
        case _:
            return value if isinstance(value, str) else None


def _add_hashed(columns: Vector, *, key: str, text: str) -> None:
    named = f"{key}\x00{text}".encode("utf-8", "surrogatepass")
    number = int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "big")
    columns[(number >> 1) % len(columns)] += 1.0 if number & 1 else -1.0


SKETCHED: Final = 128


def sketch(features: Features, columns: Vector) -> Vector:
    """Random sketch, (SKETCHED,), of all products of d features x and columns c; length^2 about |x|^2 / d * |c|^2."""
    signs, weights = _sketch_matrices(features.size, columns.size)
    question = np.einsum("ki,i->k", signs, features.astype(np.float64))
    context = np.einsum("kj,j->k", weights, columns)
    products: Vector = question * context / math.sqrt(features.size * SKETCHED)
    return products


@functools.lru_cache(maxsize=4)
def _sketch_matrices(features: int, columns: int) -> tuple[Matrix, Matrix]:
    """Returns (signs +1 or -1, (SKETCHED, features); uniform weights of mean 0 and variance 1, (SKETCHED, columns))."""
    bits = np.unpackbits(np.frombuffer(_bytes("signs", SKETCHED * ((features + 7) // 8)), dtype=np.uint8))
    signs: Matrix = bits.reshape(SKETCHED, -1)[:, :features].astype(np.float64) * 2.0 - 1.0
    integers = np.frombuffer(_bytes("weights", 4 * SKETCHED * columns), dtype="<u4").astype(np.float64)
    weights: Matrix = ((integers + 0.5) * 2.0**-31 - 1.0).reshape(SKETCHED, columns) * math.sqrt(3.0)
    return signs, weights


def _bytes(name: str, count: int) -> bytes:
    return hashlib.shake_256(f"ragbandit context sketch v1, {name}".encode()).digest(count)


#: name of the policy param that contains the context schema
PARAM: Final = "context"
_SCHEMA: Final = TypeAdapter(dict[str, ContextKey])


def read_schema(given: Mapping[str, Any] | None) -> ContextSchema:
    """Make the schema from plain values; {} for None. Raises ConfigError with the invalid key."""
    if not given:
        return {}
    plain = {
        key: value.model_dump(exclude_none=True) if isinstance(value, ContextKey) else value
        for key, value in given.items()
    }
    try:
        schema = _SCHEMA.validate_python(plain, strict=True)
        check_columns(schema)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        raise ConfigError(message, field=f"context.{path}", remedy="docs/context.md describes a schema") from error
    except ValueError as error:
        raise ConfigError(str(error), field="context", remedy="docs/context.md describes a schema") from error
    return schema
