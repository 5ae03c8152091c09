"""HTTP: valid and invalid requests generated from the OpenAPI document, on every endpoint, with all checks.

`make test` sends two fixed requests to each operation; API_FUZZ=10000 (`make api-fuzz`) sends 10,000 random ones.
"""

import contextlib
import itertools
import json
import os
import random
import re
import sys
import threading
import time
from collections import Counter

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup

from ragbandit.shared.additions import additions
from tests.support.additions import is_served
from tests.support.servers.http_service import worker_answers

#: number of requests; 0: as `make test` sends
WANTED = int(os.environ.get("API_FUZZ", "0"))


@pytest.fixture(scope="module")
def answering(serve_module):
    """A service whose questions are answered at once, as by a worker."""
    server = {"max_wait_s": 60.0, "answer_wait_s": 5.0}
    service = serve_module(feedback_events={"copied": 0.8}, server=server)
    ask, threads = service.jobs.enqueue_answers, []

    def enqueue_answers(ids):
        ask(ids)
        for decision_id in ids:
            threads.append(threading.Thread(target=worker_answers, args=[service, decision_id, "Bram Stoker"]))
            threads[-1].start()

    service.jobs.enqueue_answers = enqueue_answers
    yield service
    for thread in threads:
        thread.join(20)


@pytest.fixture(scope="module")
def operations(answering):
    """The operations of the document; what they generate from is built once."""
    api = answering.http.get("/openapi.json").json()
    # In 3.1 the keywords of JSON Schema that 3.0 has no word for, such as propertyNames, are read as they are meant.
    schema = schemathesis.openapi.from_dict(api | {"openapi": "3.1.0"})
    schema.config.update(base_url=answering.url)
    return [found.ok() for found in schema.get_all_operations()]


def excused(failure: Exception, reply) -> bool:
    """What no document can say: one id that is sent twice, bytes of a body, a time that ends before it begins.

    OpenAI's paths take what they do not read: most of what its clients send is ignored, whatever it is.
    """
    doors = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings")
    name, chat = type(failure).__name__, reply.request.url.endswith(doors)
    if name == "RejectedPositiveData":
        no_question = chat and any(text in reply.text for text in ("not the user", "no message of a user has text"))
        # 7.0 is an integer of JSON Schema, and none of ours.
        whole = re.search(r"must be a whole number( or null)?, not -?\d+\.0", reply.text)
        # One field bounds the other.
        bounded = any(text in reply.text for text in ("send an earlier since", "too long for its step"))
        # What arms can do is a matter of the configuration.
        unmet = chat and "no arm can answer this request" in reply.text
        told = no_question or bool(whole) or bounded or unmet
        return reply.status_code == 413 or "is not the body's" in reply.text or told
    # Old outcomes may violate a newer rule: repeating one is reported as a duplicate, and not refused.
    repeated = reply.request.url.endswith("/v1/outcomes") and '"duplicate":true' in reply.text
    return name == "AcceptedNegativeData" and (reply.status_code == 413 or chat or repeated)


def run(strategy, check, *, examples: int) -> None:
    """Call `check` with this many cases."""
    settings = hypothesis.settings(
        max_examples=examples,
        database=None,
        derandomize=not WANTED,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    given = hypothesis.given(case=strategy)
    test = settings(hypothesis.seed(random.SystemRandom().randrange(2**32))(given(check)) if WANTED else given(check))
    with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # an operation without inputs has no invalid request
        test()


def test_requests_of_the_document(operations):
    """No request is answered with a 5xx or off the document; what fits it is taken, and what does not is refused."""
    each = max(1, min(50, WANTED // (2 * len(operations))))
    counts, failures = Counter(), {}

    def check(case):
        began = time.monotonic()
        reply = case.call(timeout=30)
        label = case.operation.label
        counts[label, reply.status_code] += 1
        assert time.monotonic() - began < 30
        try:
            case.validate_response(reply)
        except (FailureGroup, AssertionError) as group:
            for failure in getattr(group, "exceptions", [group]):
                if not excused(failure, reply):
                    told = f"{failure}\n{case.as_curl_command()[:1500]}\n{reply.status_code} {reply.text[:500]}"
                    failures.setdefault((label, type(failure).__name__), told)
        if reply.status_code >= 500:
            failures.setdefault((label, reply.status_code), f"{case.as_curl_command()[:1500]}\n{reply.text[:500]}")

    while sum(counts.values()) < (WANTED or 1):
        for operation in operations:
            run(operation.as_strategy(generation_mode=GenerationMode.POSITIVE), check, examples=each)
            few = each if WANTED else 1
            run(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE), check, examples=few)
    if WANTED:
        lines = [f"{label:45} {status} {count:6}" for (label, status), count in sorted(counts.items())]
        broken = sum(count for (_, status), count in counts.items() if status >= 500)
        sys.stderr.write("\n".join([*lines, f"{sum(counts.values())} requests, {broken} with 5xx", ""]))
    assert not failures, "\n\n".join(f"{key}: {told}" for key, told in failures.items())


#: requests with parts that the document's generator seldom reaches: path, body
NESTED = [
    ("/v1/responses", {"model": "auto", "input": [{"type": "message", "role": "user", "content": "x"}]}),
    ("/v1/responses", {"model": "auto", "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]}),
    ("/v1/responses", {"model": "auto", "input": "x", "metadata": {"a": "b"}, "text": {"format": {"type": "text"}}}),
    ("/v1/chat/completions", {"model": "auto", "messages": [{"role": "user", "content": "x"}], "metadata": {"a": "b"}}),
    (
        "/v1/chat/completions",
        {"model": "auto", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
    ),
    ("/v1/route", {"question": "x", "arms": ["single_step"], "context": {"a": "b"}, "aim": {"quality": 0.5}}),
]
NESTED = [(path, body) for path, body in NESTED if is_served(path)]
if "mcp" in additions():
    CALL = {"name": "x", "arguments": {"a": "b"}}
    NESTED.append(("/mcp", {"jsonrpc": "2.0", "id": "1", "method": "tools/call", "params": CALL}))


def with_half_pairs(value, place=""):
    """Yield (place, the value), once for each string and each key of it that is a lone surrogate instead.

    Items of a list have the same place.
    """
    if isinstance(value, str):
        yield place, "\ud800"
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(parts):
        inside = f"{place}/{key}" if isinstance(value, dict) else f"{place}/-"
        for where, other in with_half_pairs(part, inside):
            copy = value.copy()
            copy[key] = other
            yield where, copy
        if isinstance(value, dict):
            yield f"{inside} (key)", {name: one for name, one in value.items() if name != key} | {"\ud800": part}


def test_lone_surrogates(answering, operations):
    """Half a surrogate pair, which JSON can carry, is no 5xx in any string or key of a body that the document knows."""
    bodies, broken = list(NESTED), []

    def collect(case):
        if isinstance(case.body, dict) and len(json.dumps(case.body)) < 2000:
            bodies.append((case.formatted_path, case.body))

    for operation in operations:
        if operation.method.upper() == "POST":
            run(operation.as_strategy(generation_mode=GenerationMode.POSITIVE), collect, examples=3)
    seen = set()
    for path, body in bodies:
        for place, other in itertools.islice(with_half_pairs(body), 15):
            if (path, place) in seen:
                continue
            seen.add((path, place))
            headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
            reply = answering.http.post(path, content=json.dumps(other), headers=headers)
            if reply.status_code >= 500:
                broken.append(f"{path} {json.dumps(other)[:300]} {reply.text[:300]}")
    assert len(seen) > 100
    assert not broken, "\n".join(broken)
