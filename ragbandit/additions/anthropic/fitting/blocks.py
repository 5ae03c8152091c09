"""Ids, names and schemas in the blocks and tools of a request for Messages."""

from functools import partial
from typing import Any

from ragbandit.shared.model_servers.fitting.fitted import RequestChanges
from ragbandit.shared.model_servers.fitting.kinds import ServerFeatures
from ragbandit.shared.model_servers.fitting.naming import (
    CallIdForms,
    Rename,
    drop_repeated_tools,
    rename_text,
    tool_name,
)
from ragbandit.shared.model_servers.fitting.schemas import close_schema, fit_schema
from ragbandit.shared.reading.fields import object_in, objects_in


def fit_block_names(body: dict[str, Any], *, server: ServerFeatures, changes: RequestChanges) -> None:
    """Change ids of calls and names of tools in a request for Messages to forms that the server accepts."""

    def fit_name(name: str) -> str:
        return tool_name(name, server=server, changes=changes)

    if isinstance(body.get("tools"), list):
        is_own = [isinstance(tool, dict) and tool.get("type") in (None, "custom") for tool in body["tools"]]
        body["tools"] = [
            rename_text(tool, "name", fit_name) if own else tool
            for tool, own in zip(body["tools"], is_own, strict=True)
        ]
        drop_repeated_tools(body, changes=changes)
    if object_in(body, "tool_choice").get("name"):
        body["tool_choice"] = rename_text(body["tool_choice"], "name", fit_name)
    ids, messages = CallIdForms(server=server, changes=changes), list[Any]()
    for message in body["messages"]:
        content = message.get("content")
        if any(block.get("type") in ("tool_use", "tool_result") for block in objects_in(content)):
            content = [_fit_block_names(block, ids=ids, fit_name=fit_name) for block in objects_in(content)]
        messages.append(message if content == message.get("content") else {**message, "content": content})
    body["messages"] = messages


def _fit_block_names(block: Any, *, ids: CallIdForms, fit_name: Rename) -> Any:
    if block.get("type") == "tool_use":
        return rename_text(rename_text(block, "id", ids.id_for_call), "name", fit_name)
    return rename_text(block, "tool_use_id", ids.id_for_result) if block.get("type") == "tool_result" else block


def _fit_tool_schema(tool: Any, *, server: ServerFeatures) -> Any:
    """The tool with a schema that this server accepts."""
    is_own = isinstance(tool, dict) and tool.get("type") in (None, "custom") and "input_schema" in tool
    if not is_own:
        return tool
    schema = fit_schema(tool["input_schema"], server=server, is_strict=tool.get("strict") is True)
    return tool if schema == tool["input_schema"] else {**tool, "input_schema": schema}


def fit_block_schemas(body: dict[str, Any], *, server: ServerFeatures, changes: RequestChanges) -> None:
    """Change the schemas of tools and answer in a request for Messages to forms that the server accepts."""
    if isinstance(body.get("tools"), list):
        tools = [changes.same.fit(tool, partial(_fit_tool_schema, server=server)) for tool in body["tools"]]
        if tools != body["tools"]:
            body["tools"] = tools
            changes.changed.add("tools.input_schema")
    config = object_in(body, "output_config")
    form = object_in(config, "format")
    if object_in(form, "schema"):
        schema = close_schema(form["schema"], words=server.closed_words)
        if schema != form["schema"]:
            body["output_config"] = {**config, "format": {**form, "schema": schema}}
            changes.changed.add("output_config.format")
