"""Exports of chats: each message of the user on the branch that is shown becomes a record, with the answer to it."""

from collections.abc import Iterator, Mapping
from typing import Any

from ragbandit.additions.other_tools.forms import FORMS
from ragbandit.additions.other_tools.turns import answer_of, question_of, role_of, sort_by_time

Record = Mapping[str, Any]


def find_chat_questions(entry: Record) -> Iterator[Record] | None:
    """The questions of a chat of Open WebUI, ChatGPT, LibreChat, Claude or ShareGPT; None for any other record."""
    chat = entry["chat"] if isinstance(entry.get("chat"), dict) else entry
    history = chat["history"] if isinstance(chat.get("history"), dict) else {}
    if isinstance(history.get("messages"), dict):
        return _question_records(entry, _shown_branch(history["messages"], history.get("currentId")), tool="Open WebUI")
    if isinstance(entry.get("mapping"), dict):
        nodes = {key: _read_node(node) for key, node in entry["mapping"].items() if isinstance(node, dict)}
        return _question_records(entry, _shown_branch(nodes, entry.get("current_node")), tool="ChatGPT")
    for name, tool in FORMS["chats"].items():
        messages = _flatten(entry.get(name))
        if messages and all(not message.get("role") and role_of(message) for message in messages):
            by_id = {
                str(message.get("messageId") or number): message
                for number, message in enumerate(sort_by_time(messages))
            }
            is_tree = any(str(message.get("parentMessageId")) in by_id for message in messages)
            shown = _shown_branch(by_id, next(reversed(by_id))) if is_tree else list(by_id.values())[::-1]
            return _question_records(entry, shown, tool=tool)
    return None


def _flatten(messages: Any) -> list[dict[str, Any]]:
    """The messages of a list, including messages in `children`; [] if the list has other items."""
    found, pending = list[dict[str, Any]](), list(messages)[::-1] if isinstance(messages, list) else []
    while pending:
        message = pending.pop()
        if not isinstance(message, dict):
            return []
        found.append(message)
        children = message.get("children")
        pending += children[::-1] if isinstance(children, list) else []
    return found


def _read_node(node: Record) -> dict[str, Any]:
    message = node["message"] if isinstance(node.get("message"), dict) else {}
    metadata = message["metadata"] if isinstance(message.get("metadata"), dict) else {}
    return {"model": metadata.get("model_slug"), **message, "parentId": node.get("parent"), "role": role_of(message)}


def _shown_branch(by_key: Record, current: Any) -> list[dict[str, Any]]:
    """The messages of the shown branch, the newest first. current: key of its last message; None if it is unknown."""
    messages, shown = dict(by_key), list[dict[str, Any]]()
    key: Any = next((key for key in (current, *reversed(messages)) if isinstance(key, str)), None)
    while isinstance(key, str) and isinstance(messages.get(key), dict):
        shown.append({"id": key, **messages.pop(key)})  # removed, because a damaged tree may have a cycle
        key = shown[-1].get("parentId") or shown[-1].get("parentMessageId")
    return shown


def _question_records(entry: Record, shown: list[dict[str, Any]], *, tool: str) -> Iterator[Record]:
    """A record of each message of the user; without one, a record of turn 0. shown: the messages, the newest first."""
    roles = [role_of(message) for message in shown]
    asked = [at for at, role in enumerate(roles) if role == "user"][::-1]
    session = entry.get("id") or entry.get("conversationId") or entry.get("conversation_id") or entry.get("uuid")
    for turn, at in enumerate(asked, start=1):
        user = {"user": entry.get("user_id"), "chat_of": tool, "turn_of_chat": turn, "session": session}
        later = asked[turn] if turn < len(asked) else -1
        answers = [place for place in range(later + 1, at) if roles[place] == "assistant"]
        answer = next((shown[place] for place in answers if answer_of(_with_role(shown[place]))), {})
        texts = {
            "asked": question_of([_with_role(shown[at])])[0],
            "answered": answer_of(_with_role(answer)) if answer else None,
        }
        key = shown[at].get("id") or shown[at].get("messageId") or shown[at].get("uuid") or f"{session}-{turn}"
        yield {**answer, "id": key, **user, **texts}
    yield from () if asked else [{"id": session, "chat_of": tool, "turn_of_chat": 0}]


def _with_role(message: Record) -> Record:
    return {**message, "role": role_of(message)}
