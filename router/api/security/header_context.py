"""Context keys that HTTP headers set (`context.KEY.header`)."""

from collections.abc import Mapping

from fastapi import Request

from ragbandit.router.config.context_schema import ContextKey
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Json

#: largest number of characters of a header's value
_LONGEST = 512


def with_headers(
    context: Mapping[str, Json], *, request: Request, schema: Mapping[str, ContextKey]
) -> Mapping[str, Json]:
    """The context with the keys that headers set. A caller cannot send these keys in a body: raises InvalidInput.

    A header that was sent twice does not count, since a client may send one before the proxy adds its own.
    """
    keyed = {key: declared for key, declared in schema.items() if declared.header}
    if not keyed:
        return context
    is_proxy = request.app.state.gate.is_proxy(request.scope.get("client"))
    values = dict(context)
    for key, declared in keyed.items():
        if context.get(key) is not None:
            remedy = f"leave it out, or send the header {declared.header}"
            raise InvalidInput(f"context.{key} comes from a header", field=f"context.{key}", remedy=remedy)
        sent = request.headers.getlist(str(declared.header)) if is_proxy or not declared.proxy else []
        if len(sent) == 1 and sent[0].strip():
            text = sent[0].strip()[:_LONGEST]
            values[key] = value_of(declared.map.get(text, text), declared=declared, field=str(declared.header))
    return values


def value_of(text: str, *, declared: ContextKey, field: str) -> Json:
    """A text as the value of a context key. Raises InvalidInput."""
    match declared.type:
        case "number":
            try:
                return float(text)
            except ValueError:
                raise InvalidInput(f'"{field}" is not a number', field=field, remedy='send for example "3.5"') from None
        case "boolean":
            if text.strip().lower() not in ("true", "false"):
                raise InvalidInput(f'"{field}" is not true or false', field=field, remedy='send "true" or "false"')
            return text.strip().lower() == "true"
        case "words":
            return [word.strip() for word in text.split(",") if word.strip()]
        case _:
            return text
