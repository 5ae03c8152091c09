"""Schema of the context: the keys, sent with a question, that the policy learns from."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ragbandit.shared.errors import InvalidInput

MOST_KEYS: Final = 64
#: maximum number of feature columns of all keys; the work per decision grows with the square of the number of columns
MOST_COLUMNS: Final = 256
#: largest absolute value of a number: the policy squares it, and the square must be a finite float
MOST_NUMBER: Final = 1e100

Kind = Literal["number", "category", "boolean", "words", "tenant"]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00]*\S[^\x00]*$")]


class ContextKey(BaseModel):
    """Type of a context key, and how its values become feature columns."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    #: number, category, boolean and words are sent by callers; tenant is the question's tenant
    type: Kind
    #: for category and tenant: values that get a column each; all other values share the column "other"
    values: Annotated[list[Name], Field(min_length=1, max_length=MOST_COLUMNS)] | None = None
    #: for category, tenant and words: number of columns that values are hashed to, if they are not known in advance
    hashed: Annotated[int, Field(ge=2, le=MOST_COLUMNS)] | None = None
    #: for words: most words per question
    most: Annotated[int, Field(ge=1, le=100)] | None = None
    #: HTTP header that sets the key, instead of the caller's context
    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,100}$")] | None = None
    #: value of the header -> value of the key; values that are not listed are used as they are
    map: dict[str, str] = Field(default_factory=dict)
    #: true: the header counts only on connections from server.trusted_proxies
    proxy: bool = False

    @model_validator(mode="after")
    def _check_options(self) -> "ContextKey":
        takes = {
            "category": ("values", "hashed"),
            "tenant": ("values", "hashed"),
            "words": ("hashed", "most"),
        }.get(self.type, ())
        for name in ("values", "hashed", "most"):
            if getattr(self, name) is not None and name not in takes:
                raise ValueError(f"a key of the type {self.type} has no {name}; leave out {name}")
        if self.header is None and (self.map or self.proxy):
            raise ValueError("map and proxy belong to a header; set header, or leave them out")
        if self.header is not None and self.is_computed:
            raise ValueError("the tenant comes from the API key; leave out header")
        if self.values is not None and self.hashed is not None:
            raise ValueError("give `values` or `hashed`, not both")
        if self.values is not None and len(set(self.values)) != len(self.values):
            raise ValueError("values has a value twice; list every value once")
        if self.type == "category" and self.values is None and self.hashed is None:
            raise ValueError("a category needs its values: [...], or hashed: 32 if the values are not known in advance")
        return self

    @property
    def categories(self) -> tuple[str, ...] | None:
        """The values that get a column each; None if values are hashed, or are numbers or booleans."""
        return None if self.values is None else tuple(self.values)

    @property
    def buckets(self) -> int | None:
        """Number of columns that values are hashed to; None if values are not hashed."""
        if self.type in ("category", "tenant", "words") and self.values is None:
            return self.hashed or 32
        return None

    @property
    def most_words(self) -> int:
        return self.most or 8

    @property
    def is_computed(self) -> bool:
        return self.type == "tenant"

    @property
    def columns(self) -> int:
        """Number of feature columns. The last one is "missing"; if values are listed, "other" comes before it."""
        categories = self.categories
        if categories is not None:
            return len(categories) + 2
        return (self.buckets or 1) + 1


ContextSchema = Mapping[str, ContextKey]


def check_columns(schema: ContextSchema) -> ContextSchema:
    """Returns the schema. Raises ValueError for an invalid key, or for more keys or columns than the policy learns."""
    for key in schema:
        if not key.strip() or len(key) > 64 or "\x00" in key:
            raise ValueError(f"the key {key!r:.80} is invalid; use 1 to 64 characters")
    if len(schema) > MOST_KEYS:
        raise ValueError(f"there are {len(schema)} keys, but at most {MOST_KEYS} are learned; declare fewer")
    columns = sum(key.columns for key in schema.values())
    if columns > MOST_COLUMNS:
        widest = max(schema, key=lambda name: schema[name].columns)
        raise ValueError(
            f"there are {columns} columns, but at most {MOST_COLUMNS} are learned; {widest} has "
            f"{schema[widest].columns}: list fewer values, or hash them to fewer columns"
        )
    return schema


def plain_schema(schema: ContextSchema) -> dict[str, Any]:
    """The schema that a policy learns from: without the settings of headers, which may change."""
    others = {"header", "map", "proxy"}
    return {key: schema[key].model_dump(exclude=others, exclude_none=True) for key in sorted(schema)}


def check_declared(context: Mapping[str, object], *, schema: ContextSchema) -> None:
    """Raises InvalidInput if the value of a declared key has a wrong type. Values may be missing or null."""
    for key, declared in schema.items():
        field, value = f"context.{key}", context.get(key)
        if declared.is_computed:
            if key in context:
                remedy = "leave it out, or declare your value under another key"
                raise _wrong(field, f'"{field}" is computed by the service (type: {declared.type})', remedy)
        elif value is not None:
            _check_value(field, value, declared=declared)


def _check_value(field: str, value: object, *, declared: ContextKey) -> None:
    kind = type(value).__name__
    match declared.type:
        case "number":
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise _wrong(field, f'"{field}" must be a number, not {kind}', "send a number, null or nothing")
            if not abs(value) <= MOST_NUMBER:  # also true for NaN
                raise _wrong(field, f'"{field}" must be a finite number up to {MOST_NUMBER:g}', "send null instead")
        case "boolean":
            if not isinstance(value, bool):
                raise _wrong(field, f'"{field}" must be true or false, not {kind}', "send true, false, null or nothing")
        case "words":
            if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
                raise _wrong(
                    field, f'"{field}" must be a list of words, not {kind}', 'send words, as ["billing", "urgent"]'
                )
            if len(value) > declared.most_words:
                remedy = f"send at most {declared.most_words} ({field}.most)"
                raise _wrong(field, f'"{field}" has {len(value)} words', remedy)
        case _:
            if not isinstance(value, str):
                raise _wrong(field, f'"{field}" must be text, not {kind}', "send the category's name, null or nothing")


def _wrong(field: str, message: str, remedy: str) -> InvalidInput:
    return InvalidInput(message, field=field, remedy=remedy)


def is_number(value: object) -> bool:
    """Whether the value is a usable number. Values logged before their key was declared may have any type."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST_NUMBER
