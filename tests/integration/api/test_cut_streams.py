"""A model's server that breaks off, at the doors of chats: no half answer is complete, and every answer is paid for."""

import re

import pytest

from ragbandit.router.storage.access.spending import Spender, read_spending
from tests.support.additions import is_served
from tests.support.servers.cut_server import CHAT, TEXT, CutServer

#: cuts within, before and after every event
CUTS = sorted({place.start() + more for place in re.finditer(b"data: ", CHAT) for more in (0, 1, 30)} | {len(CHAT)})
QUESTION = {"messages": [{"role": "user", "content": "Who?"}]}
#: door -> (body, mark of a complete answer)
DOORS = {
    "/v1/chat/completions": (QUESTION, '"finish_reason":"stop"'),
    "/v1/responses": ({"input": "Who?"}, '"type":"response.completed"'),
    "/v1/messages": (QUESTION | {"max_tokens": 50}, '"type":"message_stop"'),
}
DOORS = {path: more for path, more in DOORS.items() if is_served(path)}


def test_a_client_gets_no_half_answer_as_complete(serve):
    """A stream is complete if and only if the answer came whole; budgets have the dollars of every outcome."""
    kinds, dollars = set(), 0.0
    with CutServer(CHAT, is_counted=False) as server:
        options = {"base_url": server.url, "retries": 0, "stream": True}
        generator = {"name": "openai", "model": "m", "openai": options, "token_prices": {"input": 1.0, "output": 2.0}}
        service = serve(inline=True, generator=generator, arms={"a": {"class": "model"}}, health={"failures": 0})
        for door, (body, mark) in DOORS.items():
            for server.cut in CUTS:
                key = f"{door.rpartition('/')[2]}-{server.cut}"
                body |= {"model": "auto", "stream": True}
                reply = service.http.post(door, json=body, headers={"idempotency-key": key})
                outcome = service.http.get(f"/v1/decisions/{key}").json()["outcome"]
                is_whole = mark in reply.text.replace('": ', '":')
                assert is_whole == (outcome["status"] == "answered"), (key, reply.text)
                assert (outcome["answer"] == TEXT) if is_whole else ("error" in reply.text)
                assert outcome["cost"]["dollars"] > 0.0 or TEXT[:2] not in reply.text
                kinds.add((door, is_whole))
                dollars += outcome["cost"]["dollars"]
        tenant = Spender("tenant", "default")
        with service.router.database.read() as connection:
            sums = read_spending(connection, [tenant], now=service.router.service.clock())
    assert kinds == {(door, is_whole) for door in DOORS for is_whole in (True, False)}
    assert sums[tenant].day == pytest.approx(dollars)
