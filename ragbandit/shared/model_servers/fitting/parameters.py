"""Fits parameters that a server refuses or knows by another name, and the format of the answer."""

import json
from typing import Any

from ragbandit.shared.model_servers.efforts import sent_effort
from ragbandit.shared.model_servers.fitting.contents import with_texts
from ragbandit.shared.model_servers.fitting.fitted import RequestChanges
from ragbandit.shared.model_servers.fitting.kinds import ServerFeatures
from ragbandit.shared.reading.fields import object_in


def fit_parameters(body: dict[str, Any], *, server: ServerFeatures, changes: RequestChanges) -> None:
    """Leave out parameters that the server refuses, rename others, and ask for a schema in words."""
    refused = server.refused
    if server.refused_thinking:
        effort = sent_effort(body)
        thinks = server.thinks if effort is None else effort != "none"
        refused = refused | server.refused_thinking if thinks else refused
    for name in refused & body.keys():
        if body.pop(name) is not None:
            changes.changed.add(name)
    for name, known in (server.renamed or {}).items():
        if name in body:
            value = body.pop(name)
            body.setdefault(known, value)
    stops = body.get("stop")
    if server.most_stops is not None and isinstance(stops, list) and len(stops) > server.most_stops:
        body["stop"] = stops[: server.most_stops]
        changes.changed.add("stop")
    if not server.json_schema and object_in(body, "response_format").get("type") == "json_schema":
        _ask_for_schema(body)
        changes.changed.add("response_format")


def _ask_for_schema(body: dict[str, Any]) -> None:
    """Ask in words for an answer that follows a schema, because the server can only promise JSON."""
    schema = object_in(object_in(body, "response_format"), "json_schema").get("schema") or {}
    text = f"Answer in JSON that fits this JSON Schema:\n{json.dumps(schema, ensure_ascii=False)}"
    messages = list(body["messages"])
    if messages and messages[0].get("role") == "system":
        messages[0] = with_texts(messages[0], after=[text])
    else:
        messages.insert(0, {"role": "system", "content": text})
    body |= {"messages": messages, "response_format": {"type": "json_object"}}
