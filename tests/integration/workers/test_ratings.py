"""Ratings of other services become feedback exactly once, whatever the service replies."""

import httpx
import pytest

from ragbandit.router.config.sections import RatingsSettings
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import Query
from ragbandit.workers.chores import start_chores
from ragbandit.workers.chores.ratings import RatingPoller
from ragbandit.workers.running.context import Context
from tests.support.servers.scripted_http import Scripted, ScriptedHttp, json_reply
from tests.support.waiting import until

KEY = "RATINGS_KEY"


@pytest.fixture
def world(make_world, monkeypatch):
    monkeypatch.setenv(KEY, "pk:sk")
    return make_world()


def poller_of(world, url, *, name="chat", **options):
    source = RatingsSettings(**{"url": url, "key_env": KEY, "scale": "-1-1", **options})
    context = Context(settings=world.settings, store=world.store, ledger=world.ledger, jobs=world.jobs)
    return RatingPoller(name, source, context=context)


def asked_in(world, chat, message=None):
    query = Query(text=f"question of {message}", session=chat, request={"message": message} if message else {})
    return world.router.submit(query, run_by="caller").result(30)


def thumb(decision, rating, *, key="f1", at=100, chat=None, user="u1"):
    """A rating as Open WebUI lists it."""
    meta = {"message_id": decision if isinstance(decision, str) else decision.id, "chat_id": chat}
    return {"id": key, "user_id": user, "type": "rating", "data": {"rating": rating}, "meta": meta, "updated_at": at}


def values(world, *decisions):
    return [[one.value for one in world.router.decision(decision.id).feedback] for decision in decisions]


def test_a_message_finds_its_decision(world):
    """A rating finds the turn by the message's id, a chat's only decision without one, and never another turn."""
    first, second = asked_in(world, "c1", "m1"), asked_in(world, "c1", "m2")
    only = asked_in(world, "c2")
    unclear = [asked_in(world, "c3"), asked_in(world, "c3")]
    rows = [thumb("m2", 1, key="a", chat="c1"), thumb("m9", -1, key="b", chat="c2"), thumb("m8", 1, key="c", chat="c3")]
    rows.append(thumb(first, -1, key="d"))
    with ScriptedHttp(json_reply(rows)) as server:
        poller_of(world, f"{server.url}/api/v1/evaluations/feedbacks/all").poll()
        assert server.seen[0][1]["Authorization"] == "Basic cGs6c2s="
    assert values(world, first, second, only, *unclear) == [[0.0], [1.0], [0.0], [], []]


def test_a_rating_is_stored_once_and_a_change_replaces_it(world):
    """Pages that are read again add nothing; a changed rating is a newer judgement of its rater, also if it returns."""
    decision = world.route()
    replies = [json_reply([thumb(decision, rating, at=at)]) for rating, at in ((1, 1), (1, 1), (-1, 2), (1, 3))]
    with ScriptedHttp(*replies) as server:
        poller = poller_of(world, server.url)
        for _ in replies:
            poller.poll()
        poller_of(world, server.url).poll()  # another process, which waits for the lease
        assert len(server.seen) == len(replies)
    assert values(world, decision) == [[1.0, 0.0, 1.0]]
    assert {one.rater for one in world.router.decision(decision.id).feedback} == {"import:u1"}


def test_pages_are_read_to_their_end_and_then_to_the_first_known(world):
    """Before a complete read a process reads every page; afterwards it stops at a page with known ratings."""
    one, two, three = (world.route() for _ in range(3))
    pages = [json_reply({"items": [thumb(each, 1, key=each.id)], "total": 2}) for each in (one, two)]
    empty = json_reply({"items": [], "total": 2})
    broken = Scripted(status=500, body=b"oops")
    newest = json_reply({"items": [thumb(each, 1, key=each.id) for each in (three, one)], "total": 3})
    with ScriptedHttp(pages[0], broken, pages[0], pages[1], empty, newest) as server:
        poller = poller_of(world, f"{server.url}/list?order_by=updated_at")
        with pytest.raises(ValueError, match="status 500"):
            poller.poll()
        assert values(world, one, two) == [[1.0], []]
        poller.poll()
        poller.poll()
        paths = [path for path, *_ in server.seen]
    assert paths == [f"/list?order_by=updated_at&page={page}" for page in (1, 2, 1, 2, 3, 1)]
    assert values(world, one, two, three) == [[1.0], [1.0], [1.0]]


def test_scores_of_langfuse_by_page_or_by_cursor(world):
    """Scores of every version of Langfuse's API are read, on the scale of the setting; evaluators count as judges."""
    one, two = world.route(), world.route()
    old = {"id": "s1", "traceId": one.id, "name": "stars", "value": 4, "source": "ANNOTATION", "authorUserId": None}
    new = {"id": "s2", "subject": {"kind": "trace", "id": two.id}, "name": "stars", "value": 1, "source": "EVAL"}
    first, last = ({"data": [each], "meta": {"limit": 1}} for each in (old, new))
    first["meta"]["cursor"] = "abc"
    with ScriptedHttp(json_reply(first), json_reply(last)) as server:
        poller_of(world, f"{server.url}/api/public/v3/scores?fields=subject", scale="1-5").poll()
        assert [path for path, *_ in server.seen][1].endswith("scores?fields=subject&cursor=abc")
    assert values(world, one, two) == [[0.75], [0.0]]
    (score,) = world.router.decision(two.id).feedback
    assert (score.source, score.rater) == ("judge", "import:stars")


@pytest.mark.parametrize(
    "row", [None, 7, {}, {"data": None, "meta": []}, {"data": {"rating": {}}, "meta": {"chat_id": 5}}]
)
def test_wrong_rows_do_not_keep_out_the_others(world, row):
    """A row with null, missing or other types is left out, and the ratings around it are stored."""
    decision = world.route()
    off_scale, unknown = thumb(decision, 40, key="x"), thumb("nobody", 1, key="y")
    with ScriptedHttp(json_reply([row, off_scale, unknown, thumb(decision, 1)])) as server:
        poller_of(world, server.url).poll()
    assert values(world, decision) == [[1.0]]


@pytest.mark.parametrize(
    "reply",
    [
        Scripted(status=401, body=b'{"detail": "no"}'),
        Scripted(status=302, headers={"location": "http://127.0.0.1:1/"}),
        Scripted(body=b"<html>"),
        Scripted(body=b'{"items": [{"id": 1'),
        json_reply({"items": 5}),
        json_reply("text"),
        Scripted(hang_up=True),
    ],
)
def test_a_service_that_fails_is_an_error_of_the_poll(world, reply):
    """Other statuses, redirects and replies without a list raise an error that the log of the outage names."""
    with ScriptedHttp(reply) as server, pytest.raises((ValueError, httpx.HTTPError)):
        poller_of(world, server.url).poll()


def test_wrong_settings_name_the_setting(world, monkeypatch):
    """A broken address and a variable that is not set are errors with the name of the setting."""
    assert Settings(ratings={"chat": {"url": "http://x", "key_env": KEY}}).ratings["chat"].every_s == 60.0
    with pytest.raises(ConfigError, match=r"ratings\.chat\.url"):
        poller_of(world, "chat.example.org").poll()
    monkeypatch.delenv(KEY)
    with pytest.raises(ConfigError, match=r"ratings\.more\.key_env"):
        poller_of(world, "http://127.0.0.1:9", name="more").poll()


def test_a_process_that_learns_fetches_again_after_an_outage(world, caplog):
    """The routine goes on after a fault of the service, which is logged once with the setting's name."""
    decision = world.route()
    with ScriptedHttp(Scripted(status=500), Scripted(status=500), json_reply([thumb(decision, 1)])) as server:
        ratings = {"chat": RatingsSettings(url=server.url, key_env=KEY, scale="-1-1", every_s=1.0)}
        poller = poller_of(world, server.url)
        settings = world.settings.model_copy(update={"ratings": ratings})
        context = Context(settings=settings, store=world.store, ledger=world.ledger, jobs=world.jobs)
        context.learner = world.learner()
        routines = start_chores(context)
        until(lambda: values(world, decision) == [[1.0]], seconds=20)
        for routine in routines:
            routine.close()
    assert sum("cannot fetch ratings.chat" in record.message for record in caplog.records) == 1
    assert poller.lease.acquire(holder="another", lease_s=1.0)  # released at the end


def test_a_message_finds_its_decision_without_stored_texts(make_world, monkeypatch):
    """The id of the message is stored even if texts are not."""
    monkeypatch.setenv(KEY, "sk")
    by_caller = {"run_by": "caller"}
    world = make_world(log={"text": "none"}, arms={"fast": by_caller, "deep": by_caller})
    first, second = asked_in(world, "c1", "m1"), asked_in(world, "c1", "m2")
    with ScriptedHttp(json_reply([thumb("m2", 1, chat="c1")])) as server:
        poller_of(world, server.url).poll()
    assert values(world, first, second) == [[], [1.0]]
