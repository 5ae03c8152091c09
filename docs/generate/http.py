"""docs/http.md from the service's OpenAPI document: calls, parameters, fields, replies and errors."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from docs.generate.schemas import Schema, default_of, named_in, range_of, resolved, table, type_of
from ragbandit.router.api.app import create_app
from ragbandit.shared.errors import RagBanditError

_HEAD: Final = """# HTTP

<!-- Written by `make docs` from the service's OpenAPI document (`/openapi.json`). Change the code: requests in
     router/api/, replies in ragbandit/client/replies/. -->

Every call of the service that `ragbandit up` and `ragbandit serve` run, by default at `http://127.0.0.1:8100`.
`/docs` on the service shows the same and lets you try it. `ragbandit.Client` makes these calls from Python.

- Bodies are JSON objects in UTF-8, with the header `content-type: application/json`. An unknown field is refused.
- **Ids**: your own `decision_id` or `feedback_id`, or the header `Idempotency-Key` in their place, makes a call
  idempotent. The same id with the same body is a duplicate and gets the first reply again; with another body it is a
  409.
- A 200 or 202 means that what you sent is committed.
- From the first API key on every request but /health and /ready needs one: `Authorization: Bearer rb_...`. Without it
  the reply is 401, with a key whose role may not do it 403 ([security.md](security.md)).
"""

_ERRORS: Final = """## Errors

Every error has this shape; `field` and `remedy` may be null. `code` is stable, so write programs against it, and show
the rest to people. A body that is not JSON is a 400 `INVALID_JSON`, an unknown path a 404, a wrong method a 405
`METHOD_NOT_ALLOWED`, a body above `server.max_body_bytes` (`max_batch_bytes` for batches, `max_chat_bytes` for chats)
a 413 `BODY_TOO_LARGE`. A 503 or 429 has the header `Retry-After` in seconds; the same request may be sent again then.

    {"error": {"code": "INVALID_INPUT", "message": "...", "field": "question", "remedy": "..."}}

"""


def http_page() -> str:
    """The whole page."""
    api = create_app(_never).openapi()
    schemas = api["components"]["schemas"]
    parts = [_HEAD, _overview(api)]
    parts.extend(_call(method, path, call, schemas) for method, path, call in _calls(api))
    parts += [_ERRORS + _codes(), _shapes(api, schemas)]
    return "\n".join(parts).rstrip() + "\n"


def _never() -> Any:
    raise AssertionError("the page opens no Router")


def _calls(api: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in api["paths"].items():
        for method, call in methods.items():
            yield method.upper(), path, call


def _overview(api: Mapping[str, Any]) -> str:
    rows = []
    for method, path, call in _calls(api):
        title = f"{method} {path}"
        anchor = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_").replace(" ", "-")
        rows.append([f"[`{title}`](#{anchor})", call.get("description", "").split("\n\n")[0]])
    return table(["call", "what it does"], rows) + "\n"


def _call(method: str, path: str, call: Mapping[str, Any], schemas: Mapping[str, Schema]) -> str:
    parts = [f"## `{method} {path}`", call.get("description", "")]
    inputs = [_parameter(each, schemas) for each in call.get("parameters", ())]
    content = call.get("requestBody", {}).get("content", {}).get("application/json", {})
    body = resolved(content["schema"], schemas) if content else None
    inputs += _fields(body, schemas) if body else []
    if inputs:
        parts.append(table(["field", "in", "type", "default", "meaning"], inputs))
    parts.append(_example(method, path, body=body))
    replies = [
        [code, _reply(reply, schemas), reply["description"]]
        for code, reply in call["responses"].items()
        if not _is_error(reply)
    ]
    parts.append(table(["status", "reply", "means"], replies))
    return "\n\n".join(filter(None, parts)) + "\n"


def _example(method: str, path: str, *, body: Schema | None) -> str:
    address = "localhost:8100" + path.replace("{decision_id}", "ID")
    if body is not None:
        sent = json.dumps({field: body["example"][field] for field in body["properties"] if field in body["example"]})
        return f"    curl -s {address} -H 'content-type: application/json' \\\n         -d '{sent}'"
    return f"    curl -s {address}" if method == "GET" else f"    curl -s -X {method} {address}"


def _parameter(each: Mapping[str, Any], schemas: Mapping[str, Schema]) -> list[str]:
    shape = each["schema"]
    kind = _kind(shape, schemas)
    default = "required" if each.get("required") else default_of(shape.get("default"))
    return [f"`{each['name']}`", each["in"], kind, default, each.get("description", shape.get("description", ""))]


def _fields(body: Schema, schemas: Mapping[str, Schema]) -> list[list[str]]:
    required = set(body.get("required", ()))
    return [
        [
            f"`{name}`",
            "body",
            _kind(shape, schemas),
            "required" if name in required else _default(shape),
            shape.get("description", ""),
        ]
        for name, shape in body.get("properties", {}).items()
    ]


def _default(shape: Schema) -> str:
    # The document leaves out a default of null.
    optional = any(each.get("type") == "null" for each in shape.get("anyOf", ()))
    return default_of(shape.get("default", None if optional else {}))


def _kind(shape: Schema, schemas: Mapping[str, Schema]) -> str:
    limits = range_of(shape)
    kind = type_of(shape, schemas, linked=True)
    return f"{kind}, {limits}" if limits else kind


def _is_error(reply: Mapping[str, Any]) -> bool:
    return "ErrorReply" in _name(reply) or "HTTPValidationError" in _name(reply)


def _name(reply: Mapping[str, Any]) -> str:
    return json.dumps(reply.get("content", {}).get("application/json", {}).get("schema", {}))


def _reply(reply: Mapping[str, Any], schemas: Mapping[str, Schema]) -> str:
    kinds = (
        type_of(content["schema"], schemas, linked=True) if kind == "application/json" else f"`{kind}`"
        for kind, content in reply["content"].items()
    )
    return " or ".join(kinds)


def _codes() -> str:
    rows = sorted(
        (str(each.status), f"`{each.code}`", " ".join((each.__doc__ or "").split("\n\n")[0].split()))
        for each in _classes(RagBanditError)
    )
    return table(["status", "code", "means"], rows) + "\n"


def _classes(base: type[RagBanditError]) -> Iterator[type[RagBanditError]]:
    for each in base.__subclasses__():
        if each.__module__ == RagBanditError.__module__:
            yield each
            yield from _classes(each)


def _shapes(api: Mapping[str, Any], schemas: Mapping[str, Schema]) -> str:
    """The objects that calls and replies refer to, each once, in the order of their first use."""
    bodies = {name for _, _, call in _calls(api) for name in named_in(call.get("requestBody", {}))}
    names, todo = list[str](), list(named_in(api["paths"]))
    while todo:
        name = todo.pop(0)
        if (
            name not in names
            and "properties" in schemas[name]
            and name not in {"HTTPValidationError", "ValidationError"}
        ):
            names.append(name)
            todo = [*named_in(schemas[name]), *todo]
    parts = ["## Objects"]
    for name in (name for name in names if name not in bodies):
        schema = schemas[name]
        rows = [
            [f"`{key}`", _kind(shape, schemas), shape.get("description", "")]
            for key, shape in schema["properties"].items()
        ]
        parts.append(f"### {name}\n\n{_described(schema)}{table(['field', 'type', 'meaning'], rows)}")
    return "\n\n".join(parts)


def _described(schema: Schema) -> str:
    said = " ".join(schema.get("description", "").split())
    return f"{said}\n\n" if said else ""
