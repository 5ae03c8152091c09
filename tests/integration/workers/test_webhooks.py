"""Webhooks end to end: what happens in the store reaches a real receiver, signed, once or again under the same id."""

import base64
import hmac
import json
import logging
import re
import threading
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from ragbandit.router.config.settings import Settings
from ragbandit.router.rollouts import verbs
from ragbandit.router.storage import webhook_deliveries as rows
from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.access.spending import Spender, day_of
from ragbandit.router.storage.ledgers.arm_changes import declare_change
from ragbandit.router.storage.sql.counters import moving
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import policies, webhook_deliveries
from ragbandit.router.storage.webhook_deliveries import Delivery, WebhookDeliveries, delivery_id, results_of
from ragbandit.shared.errors import ConfigError
from ragbandit.workers.cli import app
from ragbandit.workers.webhooks import delivery
from ragbandit.workers.webhooks.delivery import Webhook, signature
from ragbandit.workers.webhooks.events import EventWatch
from tests.conftest import EPOCH, on_sqlite
from tests.support.rollouts import BASE
from tests.support.servers.scripted_http import Scripted, ScriptedHttp

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()


class Post:
    """A clock, a receiver, and a webhook `ops` of it; `again()` is another process."""

    def __init__(self, database, receiver):
        self.database, self.receiver, self.now = database, receiver, EPOCH
        self.settings = Settings.model_validate(
            {
                "webhooks": {"ops": {"url": receiver.url + "/hook", "secret_env": "SECRET"}},
                "tenants": {"acme": {"dollars_per_day": 10.0, "dollars_per_month": 1000.0}},
                "server": {"public_url": "https://rag.example.com/"},
            }
        )
        self.rows = WebhookDeliveries(database)
        self.watch, self.webhook = self.again()

    def again(self, database=None):
        database = database or self.database
        webhook = Webhook("ops", self.settings.webhooks["ops"], clock=lambda: self.now)
        return EventWatch(database, settings=self.settings), webhook

    def put(self, *keys):
        made = [
            Delivery(
                id=delivery_id("alarm", key=key, webhook="ops"),
                webhook="ops",
                event="alarm",
                body=json.dumps({"type": "alarm", "data": {"key": key}}),
                made_at=self.now,
                due_at=self.now,
            )
            for key in keys
        ]
        return self.rows.add(made, now=self.now)

    def deliver(self, *, after=0.0):
        self.now += after
        self.webhook.deliver(self.rows)

    def stored(self):
        with self.database.read() as connection:
            return list(connection.execute(webhook_deliveries.select()).mappings())

    def told(self):
        """The events that the receiver has, by their keys."""
        return [body["data"] | {"type": body["type"]} for _, _, body in self.receiver.seen]


@pytest.fixture
def make_post(database, monkeypatch):
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.setattr(delivery, "_SPREAD", 0.0)
    running = []

    def make(*replies):
        running.append(ScriptedHttp(*replies))
        return Post(database, running[-1])

    yield make
    for receiver in running:
        receiver.__exit__()


def signed_by_hand(body, headers):
    named = {name.lower(): value for name, value in headers.items()}
    text = f"{named['webhook-id']}.{named['webhook-timestamp']}.{body.decode()}"
    return named, "v1," + base64.b64encode(hmac.new(KEY, text.encode(), sha256).digest()).decode()


@on_sqlite
def test_signed_as_documented(make_post, monkeypatch):
    """The signature is the scheme's, by hand and by the snippet of docs/webhooks.md, which refuses all that differs."""
    post = make_post(Scripted(status=204, body=b""))
    post.put("a")
    post.deliver()
    ((path, headers, _),), (body,) = post.receiver.seen, post.receiver.bodies
    named, expected = signed_by_hand(body, headers)
    assert path == "/hook"
    assert named["webhook-signature"] == expected
    assert named["webhook-timestamp"] == str(int(EPOCH))
    # The example of the scheme's own page.
    example = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body_there = b'{"test": 2432232314}'
    signed = signature(example, key="msg_p5jXN8AQM9LWM0D4loKWxJek", timestamp=1614265330, body=body_there)
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

    page = (Path(__file__).parents[3] / "docs" / "webhooks.md").read_text(encoding="utf-8")
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", page, re.S)[1], names)
    monkeypatch.setattr(names["time"], "time", lambda: EPOCH + 10)
    names["verify"](body, named, SECRET)
    for changed, what in (
        (body + b" ", named),
        (body, named | {"webhook-id": "other"}),
        (body, named | {"webhook-timestamp": str(int(EPOCH) - 400)}),
    ):
        with pytest.raises(ValueError, match=r"not signed|too old"):
            names["verify"](changed, what, SECRET)
    assert post.stored()[0]["delivered_at"] == EPOCH
    assert results_of(post.database)["ops", "delivered"] == 1


@on_sqlite
def test_a_receiver_that_fails_hangs_and_recovers(make_post, monkeypatch, caplog):
    """Each failure waits longer, Retry-After longer still; it is logged once per outage; what gets through is over."""
    post = make_post(
        Scripted(status=500),
        Scripted(status=302, headers={"location": "http://127.0.0.1:9/"}),
        Scripted(delay_s=5.0),
        Scripted(hang_up=True),
        Scripted(status=429, headers={"retry-after": "4000"}),
        Scripted(status=200),
    )
    post.put("a")
    pauses, errors = [], []
    with caplog.at_level(logging.INFO, logger="ragbandit.worker"):
        for number in range(5):
            monkeypatch.setattr(delivery, "TIMEOUT_S", 0.2 if number == 2 else 10.0)
            post.deliver()
            (row,) = post.stored()
            pauses.append(row["due_at"] - post.now)
            errors.append(row["error"])
            post.deliver(after=pauses[-1] - 0.5)  # not due yet
            post.now += 0.5
        post.deliver()
    assert pauses == [5.0, 30.0, 120.0, 600.0, 4000.0]
    told = ["replied 500", "redirects are not", "no reply within", "cannot be reached", "replied 429"]
    assert all(words in error for words, error in zip(told, errors, strict=True))
    assert len({headers["webhook-id"] for _, headers, _ in post.receiver.seen}) == 1
    assert len(post.receiver.seen) == 6
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert post.stored()[0]["delivered_at"] == post.now
    assert {name: n for (_, name), n in results_of(post.database).items() if n} == {"failed": 5, "delivered": 1}


@on_sqlite
def test_given_up(make_post, monkeypatch):
    """After the last pause, after three days, and at 410 nothing is sent any more; doctor and status say so."""
    post = make_post(Scripted(status=500))
    post.put("a")
    while (due_at := post.stored()[0]["due_at"]) is not None:
        post.deliver(after=due_at - post.now)
    assert post.stored()[0]["attempts"] == len(delivery.PAUSES_S) + 1
    post.put("old")
    post.deliver(after=delivery.MOST_AGE_S + 1)
    post.put("killed")
    for _ in range(len(delivery.PAUSES_S) + 1):  # claimed, and never settled
        post.now += delivery.CLAIM_S
        assert post.rows.claim("ops", now=post.now, for_s=delivery.CLAIM_S, limit=8)
    sent = len(post.receiver.seen)
    post.deliver(after=delivery.CLAIM_S)
    assert len(post.receiver.seen) == sent == len(delivery.PAUSES_S) + 2
    with ScriptedHttp(Scripted(status=410)) as gone:
        former, post.receiver = post.receiver, gone
        post.settings.webhooks["ops"].__dict__["url"] = gone.url
        post.put("gone")
        post.deliver()
        post.receiver = former
    assert post.rows.undelivered() == {"ops": "0 waiting, 4 given up"}
    assert results_of(post.database)["ops", "given_up"] == 4


def test_two_processes_at_once(make_post, database_url):
    """Two that notice the same events make one row of each, and two that deliver send each once."""
    post = make_post(Scripted())
    verbs.add(post.database, base=BASE, changes={}, actor="test", reason="tried", now=EPOCH)
    for number, verb in enumerate(("shadow", "canary", "step", "rollback")):
        act = verbs.Act(verb=verb, name="v1", base=BASE, actor="evaluator", reason="by evidence", now=EPOCH + number)
        verbs.perform(post.database, act, settings=post.settings.rollout)
    others = [Database(database_url) for _ in range(2)]
    both, together = [post.again(one) for one in others], threading.Barrier(2)

    def run(watch, webhook):
        together.wait(10)
        watch.look(now=EPOCH + 9)
        together.wait(10)
        post.now = EPOCH + 9
        while webhook.deliver(watch.deliveries) is not None:
            pass

    threads = [threading.Thread(target=run, args=one) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for one in others:
        one.close()
    verbs_told = sorted(event["verb"] for event in post.told())
    assert verbs_told == ["canary", "rollback", "shadow", "step"]
    assert all(row["delivered_at"] for row in post.stored())


def test_killed_on_the_way(make_post):
    """Killed after the claim: sent once its claim ends. Killed after it was sent: sent again, under the same id."""
    post = make_post(Scripted())
    assert post.put("a", "b") == (2, 0)
    claimed = post.rows.claim("ops", now=post.now, for_s=delivery.CLAIM_S, limit=8)
    assert len(claimed) == 2
    post.webhook.send(claimed[:1])  # and the process dies before it has noted so
    post.deliver()
    assert len(post.receiver.seen) == 1
    post.deliver(after=delivery.CLAIM_S)
    ids = [headers["webhook-id"] for _, headers, _ in post.receiver.seen]
    assert sorted(ids[1:]) == sorted(one.id for one in claimed)
    assert ids[0] in ids[1:]
    # The one that comes back late does not undo what its successor has noted.
    post.rows.settle(claimed[0], error="late", due_at=post.now, now=post.now)
    assert [row["due_at"] for row in post.stored()] == [None, None]


@on_sqlite
def test_rows_are_capped(make_post, monkeypatch):
    """Beyond the cap new events are refused and counted; what is over goes after its time, or beyond its cap."""
    monkeypatch.setattr(rows, "MOST_WAITING", 2)
    post = make_post(Scripted())
    assert post.put("a", "b", "c") == (2, 1)
    assert post.put("a") == (0, 0)
    assert results_of(post.database)["ops", "refused"] == 1
    post.deliver()
    monkeypatch.setattr(rows, "MOST_STORED", 1)
    post.now += 1
    post.put("d")
    assert post.put("e") == (1, 0)
    assert [row["attempts"] for row in post.stored()] == [0, 0]  # the delivered ones went, these two wait
    post.now += rows.KEPT_S + 1
    post.deliver()
    monkeypatch.setattr(rows, "MOST_STORED", 100)
    post.now += 2
    post.put("f")
    assert [row["id"] for row in post.stored()] == [delivery_id("alarm", key="f", webhook="ops")]


def diagnosed(post, state):
    arms = {"multi_step": {"state": state, "worth": 0.02, "labels": 90, "questions": None}}
    with post.database.write() as connection:
        connection.execute(update(policies).values(diagnosis=json.dumps({"state": state, "arms": arms})))


@on_sqlite
def test_what_is_told(make_post, make_world):
    """Verdicts, the switch, restarts, budgets and states of learning, each once, whoever sees it."""
    post, world = make_post(Scripted()), make_world()
    post = Post(world.database, post.receiver)
    verbs.add(world.database, base=BASE, changes={}, actor="test", reason="tried", now=EPOCH)
    act = verbs.Act(verb="shadow", name="v1", base=BASE, actor="key:abc", reason="to see", now=EPOCH)
    verbs.perform(world.database, act, settings=post.settings.rollout)
    verbs.kill(world.database, base=BASE, arm="x", offered=["x"], actor="cli:me", reason="now", now=EPOCH)
    declare_change(world.database, "multi_step", actor="cli:me", reason="swap", now=EPOCH)
    with world.database.write() as connection, moving(connection, shard=0) as moves:
        restarted = {"arms": ["multi_step"], "seq": 7}
        record(connection, actor="p", action="ledger.restart", target="ledger:main", facts=restarted, now=EPOCH)
        record(connection, actor="p", action="ledger.restart", target="ledger:other", facts=restarted, now=EPOCH)
        record(connection, actor="p", action="key.create", target="key:x", facts={}, now=EPOCH)
        acme = Spender("tenant", "acme").label
        moves.tally(acme, name=day_of(EPOCH), amount=8_500_000_000)

    def look(**more):
        for watch in (post.watch, post.again()[0]):
            watch.look(now=post.now)
        before = len(post.receiver.seen)
        post.deliver(**more)
        return post.told()[before:]

    shadow, switch, drift, budget = sorted(
        look(),
        key=lambda one: ("shadow switch drift budget").index(
            {"verdict": one.get("verb", "").replace("kill", "switch")}.get(one["type"], one["type"])
        ),
    )
    assert (shadow["version"], shadow["state"], shadow["former_state"]) == ("v1", "shadow", "draft")
    assert shadow["sentence"] == "the version v1 was draft and is shadow (key:abc: to see)"
    assert shadow["link"] == "https://rag.example.com/ui/policies/v1"
    assert "the arm x answers every question" in switch["sentence"]
    assert (drift["type"], drift["arms"], drift["seq"]) == ("drift", ["multi_step"], 7)
    assert (budget["tenant"], budget["share"], budget["dollars"]) == ("acme", 0.8, 10.0)
    assert "has spent 85 % of its 10 dollars of the day" in budget["sentence"]
    assert "tenants.acme.dollars_per_day" in budget["remedy"]
    assert look() == []

    with world.database.write() as connection, moving(connection, shard=0) as moves:
        moves.tally(acme, name=day_of(EPOCH), amount=2_000_000_000)
    diagnosed(post, "stuck")
    all_spent, stuck = sorted(look(), key=lambda one: one["type"], reverse=True)
    assert (all_spent["share"], stuck["type"], stuck["state"]) == (1.0, "alarm", "stuck")
    assert stuck["arms"] == ["multi_step"]
    assert "label its answers" in stuck["remedy"]
    diagnosed(post, "drifting")
    (drifting,) = look()
    assert (drifting["type"], drifting["state"]) == ("drift", "drifting")
    assert look() == []
    post.now += 86_400.0  # it lasts: once a day
    assert [one["type"] for one in look()] == ["drift"]


@on_sqlite
def test_the_verb_and_the_settings(make_post, tmp_path, monkeypatch):
    """`webhooks test` sends one event and says what came; a secret that is missing or none is named with its remedy."""
    post = make_post(Scripted(), Scripted(status=404))
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"webhooks": {"ops": {"url": post.receiver.url, "secret_env": "SECRET"}}}))

    def run(name="ops"):
        done = CliRunner().invoke(app, ["webhooks", "test", name, "--config", str(config)])
        return done.exit_code, done.output

    assert run()[0] == 0
    assert post.told()[0]["type"] == "test"
    code, words = run()
    assert (code, "it replied 404" in words) == (1, True)
    assert "known: ops" in run("other")[1]
    for value, words in (("", "is not set"), ("whsec_short", "24 to 64 bytes"), (SECRET[6:], "24 to 64 bytes")):
        monkeypatch.setenv("SECRET", value)
        with pytest.raises(ConfigError, match=words) as raised:
            Webhook("ops", post.settings.webhooks["ops"])
        assert raised.value.field == "webhooks.ops.secret_env"
        assert value not in str(raised.value) or not value
    for url in ("https://user:secret@example.com/", "https://example.com/?key=1", "ftp://example.com", "example.com"):
        with pytest.raises(ValueError, match="without user, password and query"):
            Settings.model_validate({"webhooks": {"ops": {"url": url, "secret_env": "SECRET"}}})
