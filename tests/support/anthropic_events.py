"""Events of Anthropic's Messages, made of a message and joined to one."""

import json


def events_of(message, *, cut=3):
    """The events of a message; its texts come in pieces of `cut` characters."""
    usage = {"input_tokens": 9, "cache_read_input_tokens": 4, "output_tokens": 1}
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None, "usage": usage}}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        place = {"index": index}
        texts = {"text": "text_delta", "thinking": "thinking_delta", "signature": "signature_delta"}
        empty = {name: "" for name in texts if name in block} | ({"input": {}} if "input" in block else {})
        begun = {name: value for name, value in {**block, **empty}.items() if name != "citations"}
        yield {"type": "content_block_start", **place, "content_block": begun}
        pieces = [(kind, name, block[name]) for name, kind in texts.items() if block.get(name)]
        pieces += [("input_json_delta", "partial_json", json.dumps(block["input"]))] if block.get("input") else []
        for kind, name, text in pieces:
            size = len(text) if name == "signature" else cut
            for at in range(0, len(text), size):
                delta = {"type": kind, name: text[at : at + size]}
                yield {"type": "content_block_delta", **place, "delta": delta}
        for citation in block.get("citations", ()):
            yield {"type": "content_block_delta", **place, "delta": {"type": "citations_delta", "citation": citation}}
        yield {"type": "content_block_stop", **place}
    delta = {name: message.get(name) for name in ("stop_reason", "stop_sequence", "container")}
    edits = {name: message[name] for name in ("context_management",) if name in message}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}, **edits}
    yield {"type": "message_stop"}


def sse_of(events):
    """The events as the bytes of a stream."""
    return b"".join(b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events)


def joined(events):
    """The message of these events, as Anthropic's client joins them. Blocks follow each other."""
    message, open_at, written = {}, None, ""
    for event in events:
        match event["type"]:
            case "message_start":
                assert not message
                message = {**event["message"], "content": []}
            case "content_block_start":
                assert open_at is None
                open_at, written = event["index"], ""
                assert open_at == len(message["content"])
                message["content"].append(dict(event["content_block"]))
            case "content_block_delta":
                assert event["index"] == open_at
                block, delta = message["content"][open_at], dict(event["delta"])
                kind = delta.pop("type")
                ((name, value),) = delta.items()
                if name == "partial_json":
                    written += value
                elif name == "citation":
                    block["citations"] = [*block.get("citations", []), value]
                else:
                    block[name] = value if kind == "signature_delta" else block[name] + value
            case "content_block_stop":
                if written:
                    message["content"][open_at]["input"] = json.loads(written)
                open_at = None
            case "message_delta":
                assert open_at is None
                message |= event["delta"] | {"usage": {**message["usage"], **event["usage"]}}
                message |= {name: event.get(name) for name in ("ragbandit", "context_management")}
    assert events[-1]["type"] == "message_stop"
    return message
