"""Small logs in the forms of other tools. In each, the question "Who wrote Dracula?" got the answer "Bram Stoker"."""

import json

ASKED, ANSWERED = "Who wrote Dracula?", "Bram Stoker"
USER, ASSISTANT = {"role": "user", "content": ASKED}, {"role": "assistant", "content": ANSWERED}
CHAT = [{"role": "system", "content": "Be brief."}, USER]


def lines(*rows):
    return "\n".join(map(json.dumps, rows))


def value_of(value):
    """A value as OTLP writes it."""
    if isinstance(value, list):
        return {"arrayValue": {"values": [*map(value_of, value)]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": value_of(part)} for key, part in value.items()]}}
    return {{str: "stringValue", int: "intValue", float: "doubleValue"}[type(value)]: value}


def attributes(**values):
    """Attributes of OTLP; `__` in a name stands for a dot."""
    return [{"key": key.replace("__", "."), "value": value_of(value)} for key, value in values.items()]


def span(**values):
    """A span with these attributes."""
    return otlp({"traceId": "t1", "spanId": "a", "parentSpanId": "", "attributes": attributes(**values)})


def otlp(*spans):
    return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": [*spans]}]}]})


def parts(role, *texts):
    return json.dumps([{"role": role, "parts": [{"type": kind, "content": text} for kind, text in texts]}])


_HTTP_SPAN = {"traceId": "h", "spanId": "h", "attributes": attributes(http__method="GET")}
_AGENT = {
    "traceId": "t1",
    "spanId": "a",
    "parentSpanId": "",
    "startTimeUnixNano": "1767225600000000000",
    "attributes": attributes(
        gen_ai__operation__name="invoke_agent",
        gen_ai__conversation__id="s1",
        gen_ai__input__messages=parts("user", ("text", ASKED)),
        gen_ai__output__messages=parts("assistant", ("reasoning", "An Irish author."), ("text", ANSWERED)),
    ),
}
_CALL = {
    "traceId": "t1",
    "spanId": "b",
    "parentSpanId": "a",
    "startTimeUnixNano": "1767225601000000000",
    "attributes": attributes(
        gen_ai__operation__name="chat",
        gen_ai__request__model="mini",
        gen_ai__usage__input_tokens=12,
        gen_ai__usage__output_tokens=3,
        gen_ai__input__messages=parts("user", ("text", "author of Dracula")),
    ),
}
_TOOL = {
    "traceId": "t1",
    "spanId": "c",
    "parentSpanId": "a",
    "attributes": attributes(gen_ai__operation__name="execute_tool", gen_ai__tool__name="search"),
}
_EVENTS = {
    "traceId": "t1",
    "spanId": "a",
    "attributes": attributes(gen_ai__system="openai", gen_ai__request__model="mini", gen_ai__usage__input_tokens=12),
    "events": [
        {"name": "gen_ai.system.message", "attributes": attributes(content="Be brief.")},
        {"name": "gen_ai.user.message", "attributes": attributes(content=ASKED)},
        {"name": "gen_ai.choice", "attributes": attributes(index=0, message=json.dumps(ASSISTANT))},
    ],
}
_RUN = {
    "id": "r1",
    "trace_id": "r1",
    "parent_run_id": None,
    "run_type": "chain",
    "session_id": "the id of a project",
    "inputs": {
        "messages": [
            [{"lc": 1, "id": ["langchain", "schema", "messages", "HumanMessage"], "kwargs": {"content": ASKED}}]
        ]
    },
    "outputs": {"input": ASKED, "output": ANSWERED},
    "reference_outputs": {"answer": "Stoker"},
    "total_cost": "0.004",
    "prompt_tokens": 12,
    "completion_tokens": 3,
    "feedback_stats": {"correct": {"n": 2, "avg": 0.5}},
    "extra": {"metadata": {"thread_id": "s1", "user_id": "jo@example.org"}},
}
_RUN_CALL = {
    "id": "r2",
    "trace_id": "r1",
    "parent_run_id": "r1",
    "run_type": "llm",
    "inputs": {"prompts": ["Answer: ..."]},
    "outputs": {},
    "total_cost": 0.004,
    "extra": {"invocation_params": {"model": "mini"}},
}
_OBSERVATIONS = [
    {
        "id": "o1",
        "traceId": "t1",
        "type": "SPAN",
        "startTime": "2026-01-01T00:00:00.000Z",
        "input": {"args": [], "kwargs": {"question": ASKED}},
        "output": ANSWERED,
        "parentObservationId": None,
    },
    {
        "id": "o2",
        "traceId": "t1",
        "type": "GENERATION",
        "startTime": "2026-01-01T00:00:01.000Z",
        "model": "mini",
        "input": CHAT,
        "output": ASSISTANT,
        "usageDetails": {"input": 12, "output": 3},
        "costDetails": {"total": 0.004},
        "parentObservationId": "o1",
    },
]
_TRACE = {
    "id": "t1",
    "timestamp": "2026-01-01T00:00:00.000Z",
    "userId": "jo@example.org",
    "sessionId": "s1",
    "input": {"messages": CHAT},
    "output": ASSISTANT,
    "scores": [{"name": "thumbs", "value": 1}, {"name": "note", "stringValue": "good", "value": None}],
    "observations": [{**_OBSERVATIONS[1], "parentObservationId": None}],
    "metadata": {"plan": "pro"},
}
_MESSAGES = {
    "u1": {"id": "u1", "parentId": None, "role": "user", "content": ASKED},
    "a1": {
        "id": "a1",
        "parentId": "u1",
        "role": "assistant",
        "content": ANSWERED,
        "model": "mini",
        "usage": {"prompt_tokens": 12, "completion_tokens": 3},
        "annotation": {"rating": 1},
        "timestamp": 1767225600,
    },
    "a2": {"id": "a2", "parentId": "u1", "role": "assistant", "content": "Mary Shelley", "model": "mini"},
    "u2": {"id": "u2", "parentId": "a1", "role": "user", "content": "When?"},
    "a3": {"id": "a3", "parentId": "u2", "role": "assistant", "content": "1897", "model": "mini"},
}
_STORED = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1767225600,
    "model": "mini",
    "choices": [{"index": 0, "message": ASSISTANT, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 12, "completion_tokens": 3},
}
_SPEND = {
    "request_id": "r1",
    "call_type": "acompletion",
    "spend": 0.004,
    "prompt_tokens": 12,
    "completion_tokens": 3,
    "startTime": "2026-01-01T00:00:00Z",
    "model": "mini",
    "end_user": "jo@example.org",
    "session_id": "s1",
    "messages": CHAT,
    "response": {"choices": [{"message": ASSISTANT}]},
}
_PHOENIX = (
    "name,span_kind,parent_id,start_time,context.span_id,context.trace_id,attributes.input.value,attributes.output.value,"
    "attributes.llm.model_name,attributes.llm.token_count.prompt,attributes.llm.token_count.completion\n"
    f"query,CHAIN,,2026-01-01T00:00:00Z,a,t1,{ASKED},{ANSWERED},,,\n"
    f"search,RETRIEVER,a,2026-01-01T00:00:01Z,b,t1,{ASKED},,,,\n"
    'llm,LLM,a,2026-01-01T00:00:02Z,c,t1,"{""messages"": []}",,mini,12,3\n'
)
#: a data frame in CSV: lists as pandas writes them
_PHOENIX_FRAME = (
    "context.trace_id,span_kind,attributes.llm.input_messages,attributes.llm.output_messages,attributes.llm.model_name\n"
    f"t1,LLM,\"[{{'message.role': 'user', 'message.content': '{ASKED}'}}]\","
    f"\"[{{'message.role': 'assistant', 'message.content': '{ANSWERED}'}}]\",mini\n"
)
_PHOENIX_SPAN = {
    "context": {"trace_id": "t1", "span_id": "a"},
    "span_kind": "LLM",
    "parent_id": None,
    "start_time": "2026-01-01T00:00:00+00:00",
    "attributes": {
        "llm": {
            "model_name": "mini",
            "token_count": {"prompt": 12, "completion": 3},
            "input_messages": [{"message": USER}],
            "output_messages": [{"message": ASSISTANT}],
        }
    },
}
#: messages in numbered attributes, in structured values and in JSON, as instrumentations write them
_SPANS = {
    "openllmetry": span(
        gen_ai__request__model="mini",
        gen_ai__prompt__0__role="system",
        gen_ai__prompt__0__content="Be brief.",
        gen_ai__prompt__1__role="user",
        gen_ai__prompt__1__content=json.dumps([{"type": "text", "text": ASKED}]),
        gen_ai__completion__0__role="assistant",
        gen_ai__completion__0__content=ANSWERED,
        gen_ai__usage__prompt_tokens=12,
    ),
    "openllmetry_old": span(
        llm__request__model="mini",
        gen_ai__response__model="mini",
        llm__prompts__0__role="user",
        llm__prompts__0__content=ASKED,
        llm__completions__0__role="assistant",
        llm__completions__0__content=ANSWERED,
    ),
    "structured": span(
        gen_ai__request__model="mini",
        gen_ai__input__messages=[{"role": "user", "parts": [{"type": "text", "content": ASKED}]}],
        gen_ai__output__messages=[{"role": "assistant", "parts": [{"type": "text", "content": ANSWERED}]}],
    ),
    "ai_sdk": span(
        ai__operationId="ai.generateText",
        ai__model__id="mini",
        ai__prompt=json.dumps({"system": "Be brief.", "prompt": ASKED}),
        ai__response__text=ANSWERED,
        ai__usage__promptTokens=12,
        ai__usage__completionTokens=3,
    ),
    "pydantic_ai": span(
        model_name="mini",
        pydantic_ai__all_messages=json.dumps(
            [
                {"role": role, "parts": [{"type": "text", "content": text}]}
                for role, text in (("user", ASKED), ("assistant", ANSWERED))
            ]
        ),
    ),
    "logfire": span(
        gen_ai__request__model="mini",
        events=json.dumps(
            [
                {"event.name": "gen_ai.user.message", "role": "user", "content": ASKED},
                {"event.name": "gen_ai.choice", "index": 0, "message": ASSISTANT},
            ]
        ),
    ),
}
_OPENINFERENCE = span(
    openinference__span__kind="LLM",
    llm__model_name="mini",
    llm__input_messages__0__message__role="user",
    llm__input_messages__0__message__contents__0__message_content__type="text",
    llm__input_messages__0__message__contents__0__message_content__text=ASKED,
    llm__output_messages__0__message__role="assistant",
    llm__output_messages__0__message__content=ANSWERED,
)
_RECORDS = [
    {"traceId": "t1", "spanId": "a", "eventName": "gen_ai.user.message", "body": value_of({"content": ASKED})},
    {
        "traceId": "t1",
        "spanId": "a",
        "attributes": attributes(event__name="gen_ai.choice", gen_ai__request__model="mini"),
        "body": value_of({"index": 0, "message": ASSISTANT}),
    },
]
_RECORD = {
    "traceId": "t1",
    "eventName": "gen_ai.client.inference.operation.details",
    "attributes": attributes(
        gen_ai__request__model="mini",
        gen_ai__input__messages=[{"role": "user", "parts": [{"type": "text", "content": ASKED}]}],
        gen_ai__output__messages=parts("assistant", ("text", ANSWERED)),
    ),
}


def records(*made):
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [*made]}]}]})


_RESPONSES = {
    "request_id": "r1",
    "call_type": "aresponses",
    "spend": 0.004,
    "model": "mini",
    "messages": {},
    "proxy_server_request": {"input": [{"role": "user", "content": [{"type": "input_text", "text": ASKED}]}]},
    "response": {
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "An Irish author."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWERED}]},
        ]
    },
}
_LIBRECHAT = [
    {
        "messageId": "a",
        "parentMessageId": "u",
        "sender": "mini",
        "isCreatedByUser": False,
        "text": "",
        "content": [{"type": "think", "think": "An Irish author."}, {"type": "text", "text": ANSWERED}],
        "model": "mini",
        "createdAt": "2026-01-01T00:00:01Z",
    },
    {"messageId": "u", "sender": "User", "isCreatedByUser": True, "text": ASKED, "createdAt": "2026-01-01T00:00:00Z"},
]
_NODES = {
    "r": {"id": "r", "message": None, "parent": None},
    "u": {
        "id": "u",
        "message": {"author": {"role": "user"}, "content": {"content_type": "text", "parts": [ASKED]}},
        "parent": "r",
    },
    "a": {
        "id": "a",
        "message": {
            "author": {"role": "assistant"},
            "metadata": {"model_slug": "mini"},
            "content": {"parts": [ANSWERED]},
        },
        "parent": "u",
    },
}
_STRINGS = {
    "id": "o1",
    "traceId": "t1",
    "type": "GENERATION",
    "model": "mini",
    "input": json.dumps(json.dumps({"question": ASKED})),
    "output": json.dumps(ANSWERED),
}
_EXAMPLE = {
    "id": "e1",
    "dataset_id": "d1",
    "inputs": {"question": ASKED},
    "outputs": {"answer": "Stoker"},
    "metadata": {},
}
#: name of a file -> (name of its form, its text)
LOGS = {
    **{f"{name}.json": ("OpenTelemetry GenAI spans", text) for name, text in _SPANS.items()},
    "openinference.json": ("Phoenix spans", _OPENINFERENCE),
    "otlp_logs.json": ("OpenTelemetry GenAI spans", records(*_RECORDS)),
    "otlp_log.jsonl": ("OpenTelemetry GenAI spans", records(_RECORD)),
    "litellm_responses.json": ("LiteLLM spend logs", json.dumps([_RESPONSES])),
    "helicone.jsonl": (
        "requests and responses",
        lines(
            {
                "request_id": "r1",
                "response_model": "mini",
                "request_body": {"messages": CHAT},
                "response_body": {"choices": [{"message": ASSISTANT}]},
                "cost_usd": 0.004,
            }
        ),
    ),
    "anthropic.jsonl": (
        "requests and responses",
        lines(
            {
                "request": {"model": "mini", "messages": CHAT},
                "response": {
                    "model": "mini",
                    "content": [{"type": "thinking", "thinking": "x"}, {"type": "text", "text": ANSWERED}],
                },
            }
        ),
    ),
    "vertex.jsonl": (
        "requests and responses",
        lines(
            {
                "endpoint": "e",
                "model": "mini",
                "logging_time": "2026-01-01T00:00:00Z",
                "request_id": "7",
                "full_request": {"contents": [{"role": "user", "parts": [{"text": ASKED}]}]},
                "full_response": json.dumps(
                    {
                        "candidates": [{"content": {"role": "model", "parts": [{"text": ANSWERED}]}}],
                        "usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 3},
                    }
                ),
            }
        ),
    ),
    "kong.jsonl": (
        "requests and responses",
        lines(
            {
                "started_at": 1767225600000,
                "ai": {
                    "ai-proxy": {
                        "payload": {
                            "request": json.dumps({"messages": CHAT}),
                            "response": json.dumps({"choices": [{"message": ASSISTANT}]}),
                        },
                        "meta": {"response_model": "mini"},
                        "usage": {"prompt_tokens": 12, "completion_tokens": 3, "cost": 0.004},
                    }
                },
            }
        ),
    ),
    "azure_gateway.csv": (
        "requests and responses",
        "TimeGenerated [UTC],CorrelationId,ModelName,PromptTokens,CompletionTokens,RequestMessages,ResponseMessages\n"
        + ",".join(
            [
                '"1/1/2026, 12:00:00.000 AM",c1,mini,12,3',
                *('"{}"'.format(json.dumps([message]).replace('"', '""')) for message in (USER, ASSISTANT)),
            ]
        ),
    ),
    "librechat.json": (
        "LibreChat chats",
        json.dumps({"conversationId": "s1", "title": "Books", "messages": _LIBRECHAT}),
    ),
    "librechat_tree.json": (
        "LibreChat chats",
        json.dumps({"conversationId": "s1", "messagesTree": [{**_LIBRECHAT[1], "children": [_LIBRECHAT[0]]}]}),
    ),
    "chatgpt.json": ("ChatGPT chats", json.dumps([{"id": "s1", "mapping": _NODES, "current_node": "a"}])),
    "claude.json": (
        "Claude chats",
        json.dumps(
            [
                {
                    "uuid": "s1",
                    "model": "mini",
                    "chat_messages": [
                        {"sender": "human", "text": ASKED},
                        {"sender": "assistant", "text": ANSWERED, "model": "mini"},
                    ],
                }
            ]
        ),
    ),
    "sharegpt.json": (
        "ShareGPT chats",
        json.dumps(
            [
                {
                    "id": "s1",
                    "conversations": [
                        {"from": "human", "value": ASKED},
                        {"from": "gpt", "value": ANSWERED, "model": "mini"},
                    ],
                }
            ]
        ),
    ),
    "langfuse_strings.json": ("a Langfuse export", json.dumps({"data": [_STRINGS], "meta": {"cursor": "x"}})),
    "tuning_chat.jsonl": ("messages or fine-tuning examples", lines({"messages": [*CHAT, ASSISTANT], "model": "mini"})),
    "tuning_text.jsonl": (
        "messages or fine-tuning examples",
        lines({"prompt": ASKED, "completion": f" {ANSWERED}", "model": "mini"}),
    ),
    "tuning_preference.jsonl": (
        "messages or fine-tuning examples",
        lines(
            {
                "input": {"messages": CHAT},
                "preferred_output": [ASSISTANT],
                "non_preferred_output": [{**ASSISTANT, "content": "Shelley"}],
                "model": "mini",
            }
        ),
    ),
    "otlp.json": ("OpenTelemetry GenAI spans", otlp(_HTTP_SPAN, _CALL, _TOOL, _AGENT)),
    "otlp_events.jsonl": ("OpenTelemetry GenAI spans", otlp(_EVENTS)),
    "phoenix.csv": ("Phoenix spans", _PHOENIX),
    "phoenix_frame.csv": ("Phoenix spans", _PHOENIX_FRAME),
    "phoenix.jsonl": ("Phoenix spans", lines(_PHOENIX_SPAN)),
    "litellm.json": ("LiteLLM spend logs", json.dumps([_SPEND])),
    "langsmith.jsonl": ("LangSmith runs", lines(_RUN_CALL, _RUN)),
    "langfuse.json": ("a Langfuse export", json.dumps([_TRACE])),
    "langfuse_api.json": ("a Langfuse export", json.dumps({"data": [_TRACE], "meta": {"page": 1}})),
    "observations.jsonl": ("a Langfuse export", lines(*reversed(_OBSERVATIONS))),
    "openai.json": (
        "OpenAI completions",
        json.dumps({"object": "list", "data": [{**_STORED, "messages": {"object": "list", "data": CHAT}}]}),
    ),
    "openwebui.json": (
        "Open WebUI chats",
        json.dumps(
            [{"id": "s1", "user_id": "jo", "chat": {"history": {"currentId": "a3", "messages": _MESSAGES}, "tags": []}}]
        ),
    ),
    "table.csv": (
        "a table",
        f"\ufeffQuestion;Response;Expected Answer;Model;Cost\r\n{ASKED};{ANSWERED};Stoker;mini;0,004\r\n",
    ),
    "table.jsonl": ("a table", lines({"prompt": ASKED, "response": ANSWERED, "model": "mini"})),
}
