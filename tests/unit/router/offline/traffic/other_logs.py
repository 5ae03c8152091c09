"""Small logs in the forms of other tools. In each, the question "Who wrote Dracula?" got the answer "Bram Stoker"."""

import json

ASKED, ANSWERED = "Who wrote Dracula?", "Bram Stoker"
USER, ASSISTANT = {"role": "user", "content": ASKED}, {"role": "assistant", "content": ANSWERED}
CHAT = [{"role": "system", "content": "Be brief."}, USER]


def lines(*rows):
    return "\n".join(map(json.dumps, rows))


def attributes(**values):
    """Attributes of OTLP; `__` in a name stands for a dot."""
    kinds = {str: "stringValue", int: "intValue", float: "doubleValue"}
    return [{"key": key.replace("__", "."), "value": {kinds[type(value)]: value}} for key, value in values.items()]


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
#: name of a file -> (name of its form, its text)
LOGS = {
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
