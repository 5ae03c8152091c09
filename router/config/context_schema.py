"""The schema of the context: which keys that callers send with a question may move the choice, and what each is.

The settings have one under `context`, a policy that was learned with one records it among its params. Both are read
here. The checks of values are here too, for the edge; a policy takes every other value for a missing one.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ragbandit.shared.errors import InvalidInput

#: keys of a schema, and columns that all of them make together: the work for a row grows with the square of both
MOST_KEYS: Final = 64
MOST_COLUMNS: Final = 256
#: largest number that is taken: its square must be a float
MOST_NUMBER: Final = 1e100
#: languages that a question's words tell apart
LANGUAGES: Final = ("de", "en", "es", "fr", "it", "nl", "pt")

_DEFAULT_BUCKETS: Final = 32
_DEFAULT_WORDS: Final = 8
#: types whose value callers do not send: it is read off the question
_OWN: Final = ("tenant", "language", "question_length")
#: of these, the ones that need the question's text
OF_TEXT: Final = ("language", "question_length")

Kind = Literal["number", "category", "boolean", "words", "tenant", "language", "question_length"]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00]*\S[^\x00]*$")]


class ContextKey(BaseModel):
    """What a key of the context is: its type, and for names how they become columns."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    #: number, category, boolean or words, which callers send; tenant, language or question_length, which are read off
    #: the question itself
    type: Kind
    #: of a category, tenant or language: the values that have a column each; any other value is "other"
    values: Annotated[list[Name], Field(min_length=1, max_length=MOST_COLUMNS)] | None = None
    #: of a category, tenant or words, whose values are not known beforehand: columns that they are hashed to
    hashed: Annotated[int, Field(ge=2, le=MOST_COLUMNS)] | None = None
    #: of words: the most in one question
    most: Annotated[int, Field(ge=1, le=100)] | None = None

    @model_validator(mode="after")
    def _fitting(self) -> "ContextKey":
        takes = {
            "category": ("values", "hashed"),
            "tenant": ("values", "hashed"),
            "language": ("values",),
            "words": ("hashed", "most"),
        }.get(self.type, ())
        for name in ("values", "hashed", "most"):
            if getattr(self, name) is not None and name not in takes:
                raise ValueError(f"{self.type} has no {name}; leave it out")
        if self.values is not None and self.hashed is not None:
            raise ValueError("give values or hashed, not both")
        if self.values is not None and len(set(self.values)) != len(self.values):
            raise ValueError("a value stands twice among values")
        if self.type == "category" and self.values is None and self.hashed is None:
            raise ValueError("a category needs its values: [...], or hashed: 32 where they are not known beforehand")
        return self

    @property
    def categories(self) -> tuple[str, ...] | None:
        """The values with a column each; None where they are hashed, or are no names."""
        if self.values is not None:
            return tuple(self.values)
        return LANGUAGES if self.type == "language" else None

    @property
    def buckets(self) -> int | None:
        """The columns that names are hashed to; None where they are not."""
        if self.type in ("category", "tenant", "words") and self.values is None:
            return self.hashed or _DEFAULT_BUCKETS
        return None

    @property
    def most_words(self) -> int:
        """Words in one question, at most."""
        return self.most or _DEFAULT_WORDS

    @property
    def is_own(self) -> bool:
        """Whether its value is read off the question, and callers do not send it."""
        return self.type in _OWN

    @property
    def columns(self) -> int:
        """Columns that it makes: its values, "other" beside closed ones, and "missing"."""
        named = self.categories
        if named is not None:
            return len(named) + 2
        return (self.buckets or 1) + 1


#: key -> what it is
ContextSchema = Mapping[str, ContextKey]


def check_columns(schema: ContextSchema) -> None:
    """Raises ValueError for a schema with a key that no caller can send, or with more columns than are learned."""
    for key in schema:
        if not key.strip() or len(key) > 64 or "\x00" in key:
            raise ValueError(f"{key!r:.80} is no key; use 1 to 64 characters")
    if len(schema) > MOST_KEYS:
        raise ValueError(f"{len(schema)} keys, and {MOST_KEYS} at most are learned; declare fewer")
    columns = sum(one.columns for one in schema.values())
    if columns > MOST_COLUMNS:
        widest = max(schema, key=lambda key: schema[key].columns)
        raise ValueError(
            f"{columns} columns, and {MOST_COLUMNS} at most are learned; {widest} has {schema[widest].columns}: "
            "give it fewer values, or hash it to fewer"
        )


def plain_schema(schema: ContextSchema) -> dict[str, Any]:
    """The schema as JSON, in the order of its keys: what a policy records."""
    return {key: schema[key].model_dump(exclude_none=True) for key in sorted(schema)}


def reads_text(schema: ContextSchema) -> bool:
    """Whether some of it is read off the question's text."""
    return any(one.type in OF_TEXT for one in schema.values())


def check_declared(context: Mapping[str, object], *, schema: ContextSchema) -> None:
    """Raises InvalidInput for a declared key of another type; one that is missing or null is missing."""
    for key, one in schema.items():
        value = context.get(key)
        if one.is_own:
            if key in context:
                remedy = "leave it out, or declare it under another key"
                raise _wrong(key, f"is read off the question (type: {one.type})", remedy)
        elif value is not None:
            _check_value(key, value, one=one)


def _check_value(key: str, value: object, *, one: ContextKey) -> None:
    kind = type(value).__name__
    match one.type:
        case "number":
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise _wrong(key, f"must be a number, not {kind}", "send a number, null or nothing")
            if not abs(value) <= MOST_NUMBER:  # also where it is NaN
                raise _wrong(key, f"must be a finite number up to {MOST_NUMBER:g}", "send null or leave it out")
        case "boolean":
            if not isinstance(value, bool):
                raise _wrong(key, f"must be true or false, not {kind}", "send true, false, null or nothing")
        case "words":
            if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
                raise _wrong(key, f"must be a list of words, not {kind}", 'send for example ["billing", "urgent"]')
            if len(value) > one.most_words:
                raise _wrong(key, f"has {len(value)} words", f"send at most {one.most_words} (context.{key}.most)")
        case _:
            if not isinstance(value, str):
                raise _wrong(key, f"must be text, not {kind}", "send the category's name, null or nothing")


def _wrong(key: str, message: str, remedy: str) -> InvalidInput:
    return InvalidInput(f'"context.{key}" {message}', field=f"context.{key}", remedy=remedy)


def is_number(value: object) -> bool:
    """Whether a policy can take this for a number: what was logged before it was declared may be anything."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST_NUMBER
