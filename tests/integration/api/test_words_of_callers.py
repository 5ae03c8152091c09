"""Words of a caller stay words: no key, value or serialised form of the product's facts is read from what callers send.

Two services get the same requests, with the same ids and so the same draws. In one of them, callers and models write
every fact into everything that they send.
"""

import dataclasses
import json
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
import pytest
from sqlalchemy import func, select

from ragbandit.router.offline.replay.opening import open_log
from ragbandit.router.reporting.reading import ReportScope, read_log
from ragbandit.router.reporting.unrated_answers import unrated_answers
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.ledgers.ledger import lean_updates
from ragbandit.router.storage.sql.tables import arm_hours, feedback, jobs, outcomes
from ragbandit.router.storage.totals import EVER, TotalsExtender
from ragbandit.shared.additions import additions
from ragbandit.shared.model_servers.failures import FAILURE, SUCCESSOR
from ragbandit.shared.types import REQUEST_NAMES, Fact, names
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support import additions as support
from tests.support.servers.http_service import Service

#: a word that stands in every text, key and value of a caller
NAME = "quixotina"
#: parts of the column `decisions.request`
PARTS = {"asked", "forced", "messages", "unit", "aim", "edge", "failover", FAILURE, SUCCESSOR}
#: what the addition `responses` notes of a request
NOTES = {
    "said",
    "item_tools",
    "repeats_answer",
    "sent",
    "namespaces",
    "call_types",
    "compacts",
    "instructions",
    "store",
}


def words() -> list[str]:
    """Every key of a fact, and every name in a fact."""
    kinds = [kind for kind in Fact.__subclasses__() if hasattr(kind, "key")]
    kinds += [kind for parent in kinds for kind in parent.__subclasses__()]
    found = {kind.key for kind in kinds} | {field.name for kind in kinds for field in dataclasses.fields(kind)}
    found |= REQUEST_NAMES | NOTES | PARTS
    found |= {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    return sorted(word for word in found if word.replace("_", "").isalpha())


WORDS = words()
#: groups of words for one question: the policy logs at most ten names of a question
GROUPS = [WORDS[start : start + 9] for start in range(0, len(WORDS), 9)]
VALUES = (True, {"arm": "small"}, {"asked": True, "uniform": False, "q": 0.1, "share": 0.9, "draw": 0.0}, "texts", 0.0)


class Caller:
    """What a caller sends. hostile: whether it is full of the product's facts."""

    def __init__(self, *, hostile: bool) -> None:
        self.hostile = hostile

    def text(self, *group: str) -> str:
        """A question or an answer; the hostile one has the words as names, and as they are in stored JSON."""
        if not self.hostile:
            return f"Who met {NAME.title()} and " + " and ".join(f"Word{place}" for place, _ in enumerate(group)) + "?"
        stored = " ".join(f'"{word}":true' for word in group)
        return f"Who met {NAME.title()} and " + " and ".join(word.title() for word in group) + f"? {stored}"

    def entries(self, value: object) -> dict[str, object]:
        """An object whose keys the caller chooses."""
        keys = WORDS if self.hostile else [f"word{place}" for place, _ in enumerate(WORDS)]
        return dict.fromkeys(keys, value) | {NAME: value}

    def schema(self) -> dict[str, object]:
        nested = {f"{place}": self.entries(value) for place, value in enumerate(VALUES)}
        return {"type": "object", "properties": {}, **self.entries(VALUES[0]), "nested": nested}

    def pairs(self) -> dict[str, str]:
        """Metadata: 15 pairs of texts."""
        chosen = [*PARTS, "imported", "erased", "killed", "sticky", "task", "label_queue"] if self.hostile else []
        return {(chosen[place] if place < len(chosen) else f"key{place}"): NAME for place in range(15)}


def model(sent) -> Reply:
    """The reply of a model: it repeats the question."""
    last = sent["messages"][-1]["content"]
    text = last if isinstance(last, str) else " ".join(str(part.get("text")) for part in last)
    return Reply(text=text[:500], changes={"usage": {"prompt_tokens": 100, "completion_tokens": 10}})


def posted(http: httpx.Client, path: str, body: object, *, key: str = "", **headers: str) -> None:
    headers |= {"idempotency-key": key} if key else {}
    reply = http.post(path, json=body, headers={"accept": "application/json, text/event-stream"} | headers)
    assert reply.status_code in (200, 202), (path, reply.text)
    assert '"isError":true' not in reply.text, reply.text


def send(http: httpx.Client, caller: Caller) -> None:
    """Some requests at every door, and what follows them."""
    text, session = caller.text, "imported" if caller.hostile else "talk"
    context = {"note": f'"erased":true {NAME}', "forced": True} if caller.hostile else {"note": NAME, "other": True}
    items = [
        {"question": text(*group), "decision_id": f"batch-{number}", "context": context, "session_id": session}
        for number, group in enumerate(GROUPS)
    ]
    posted(http, "/v1/route/batch", {"items": items})
    for number, group in enumerate(GROUPS):
        key = {"decision_id": f"batch-{number}"}
        reason = "imported" if caller.hostile else "done"
        posted(http, "/v1/outcomes", key | {"answer": text(*group), "steps": 1, "stop_reason": reason})
        if number % 2:
            posted(http, "/v1/feedback", key | {"rating": number % 4 == 1, "rater": NAME, "feedback_id": f"f{number}"})
    posted(http, "/v1/route", {"question": text(*WORDS[:9])}, key="route")
    posted(http, "/v1/answer?wait_s=20", {"question": text(*WORDS[9:18]), "context": context}, key="answer")
    arguments = {"question": text(*WORDS[18:27]), "decision_id": "mcp"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "route", "arguments": arguments}}
    if "mcp" in additions():
        posted(http, "/mcp", call)
    user = [{"role": "user", "content": text(*WORDS[27:36])}]
    before = [{"role": "user", "content": text(*WORDS[:5])}, {"role": "assistant", "content": text(*WORDS[5:9])}]
    function = {"name": "f", "description": text("forced"), "parameters": caller.schema()}
    chat = {"model": "auto", "messages": [*before, *user], "tools": [{"type": "function", "function": function}]}
    posted(http, "/v1/chat/completions", chat | {"metadata": caller.pairs(), "user": text("killed")}, key="chat")
    response = {"model": "auto", "input": text(*WORDS[36:45]), "metadata": caller.pairs()}
    response |= {"tools": [{"type": "function", **function}], "instructions": text("erased")}
    if "responses" in additions():
        posted(http, "/v1/responses", response, key="resp_1", **{"x-request-id": text("forced")})
        posted(http, "/v1/responses", response | {"previous_response_id": "resp_1"}, key="resp_2")
    tool = {"name": "f", "description": text("task"), "input_schema": caller.schema()}
    message = {"model": "auto", "max_tokens": 99, "messages": [*before, *user], "tools": [tool]}
    if "anthropic" in additions():
        posted(http, "/v1/messages", message | {"metadata": {"user_id": text("agent")}}, key="message")
    posted(http, f"/v1/sessions/{session}/end", {"feedback": {"rating": True, "feedback_id": "of-session"}})


#: totals that depend on times, and on the lengths of texts
UNEQUAL = {"seconds", "latency", "fastest", "slowest", "prompt_tokens", "completion_tokens"}


def readings(service: Service) -> dict[str, object]:
    """What every reader reads, without times and without what depends on the texts of questions."""
    router, database, settings = service.router, service.router.database, service.router.settings
    make_learner(settings, router.ledger, files=router.process.versions.snapshots.files).drain()
    later = time.time() + 100.0
    TotalsExtender(database, holder="test", weight=0.05, clock=lambda: later).extend()
    scope = ReportScope(label="main", since=0.0, until=later, reward=settings.reward)
    log = read_log(database, scope)
    order = np.lexsort((log.made_at,))
    numbers = ("arm", "pmf", "quality", "reward", "best", "worst")
    of_log = {name: np.nan_to_num(getattr(log, name), nan=-9.0)[order].round(9).tolist() for name in numbers}
    with database.read() as connection:
        totals = {
            row.arm: {name: value for name, value in json.loads(row.totals).items() if name not in UNEQUAL}
            for row in connection.execute(select(arm_hours).where(arm_hours.c.hour == EVER))
        }
        waiting = connection.execute(select(jobs.c.kind, jobs.c.decision_id)).all()
        unrated = {arm: sorted(unrated_answers(connection, scope, arm=arm)) for arm in ("small", "large")}
        answered = select(func.count()).where(outcomes.c.answer.is_not(None), outcomes.c.trace.is_not(None))
        known = {"answered": connection.execute(answered).scalar_one()}
        known["judged"] = router.decision(_session_decision(connection)).decision.id
    replayed = open_log(config=settings).read()
    verdict = router.verify(deep=True)
    assert verdict.ok, verdict.notes
    return {
        "totals": totals,
        "counters": dataclasses.asdict(router.status().counters),
        "waiting": sorted(map(tuple, waiting)),
        "unrated": unrated,
        "report": of_log | {"left_out": log.left_out, "rules": log.rules, "deciders": Counter(log.deciders)},
        "replay": (replayed.log.imported.tolist(), sorted(row.decision.id for row in replayed.rows), replayed.undrawn),
        "ledger": sorted((update.arm, update.imported) for update in lean_updates(router.ledger, after=0)),
        "verify": (verdict.erased, verdict.decisions),
        **known,
    }


def _session_decision(connection) -> str:
    """The decision that the feedback on a session judged."""
    return connection.execute(select(feedback.c.decision_id).where(feedback.c.id == "of-session")).scalar_one()


@pytest.fixture(scope="module")
def stores(tmp_path_factory, serve_module):
    """Hostile -> (what every reader read, folder of the store after everything in it was erased, number erased)."""
    found = {}
    with ScriptedServer(model) as server:
        for hostile in (False, True):
            folder = tmp_path_factory.mktemp("hostile" if hostile else "plain")
            counts = folder / "counts.json"
            counts.write_text(json.dumps({"format": 1, "mentions": {"dracula": 5000.0}}))
            params = {"counts": str(counts), "threshold": 100.0, "popular": "small", "rare": "large"}
            policy = {"name": "popularity", "params": params} if "popularity" in additions() else {"name": "uniform"}
            generator = {"name": "openai", "supports": ["tools"], "openai": {"base_url": server.url}}
            service = serve_module(
                inline=True,
                data_dir=str(folder / "data"),
                generator=generator | {"model": "small"},
                generators={"large": generator | {"model": "large"}},
                arms={"small": {"class": "model"}, "large": {"class": "model", "generator": "large"}},
                policy=policy | {"floor": 0.3},
                learning={"labels_per_day": 100_000},
                judge={"generator": generator | {"model": "judge"}, "search": False},
            )
            send(service.http, Caller(hostile=hostile))
            read = readings(service)
            selection = Selection(before=time.time() + 100.0)
            erased = erase(service.router.database, selection, features=False, actor="cli:me", now=time.time())
            assert service.router.verify(deep=True).erased == erased.decisions
            service.close()
            found[hostile] = read, folder, erased.decisions
    return found


def test_every_reader_reads_the_same(stores):
    """Totals, counters, queues, report, replay, ledger, verify and judgements of sessions are as without the facts."""
    (plain, _, _), (hostile, _, _) = stores[False], stores[True]
    assert plain["totals"].keys() == {"small", "large"}
    assert plain["report"]["arm"]
    for name, value in plain.items():
        assert hostile[name] == value, name


@support.needs("anthropic", "responses")
@pytest.mark.parametrize("hostile", [False, True])
def test_erasure_leaves_no_word_of_a_caller(stores, hostile):
    """After an erasure no file of the store has a word that a caller or a model has written, as key or as value."""
    _, folder, count = stores[hostile]
    assert count == len(GROUPS) + 7
    files = [file for file in Path(folder).rglob("ragbandit.db*") if file.is_file()]
    assert files
    assert not [file.name for file in files if NAME in file.read_bytes().decode("latin-1").lower()]
