"""Ratings of other services become feedback exactly once, whatever the service replies."""

import itertools
import json
import time
from functools import partial

import httpx
import pytest

from ragbandit.additions.other_tools.ratings import rating_pages
from ragbandit.additions.other_tools.ratings.poller import RatingPoller
from ragbandit.additions.other_tools.ratings.rating_pages import MOST_PAGES, Place, PollBudget, RatingPages
from ragbandit.additions.other_tools.ratings.settings import RatingsSection, RatingsSettings
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import Query, Sent
from ragbandit.workers.chores import start_chores
from ragbandit.workers.running.context import Context
from tests.support.servers.scripted_http import Scripted, ScriptedHttp, json_reply
from tests.support.waiting import until

KEY = "RATINGS_KEY"


@pytest.fixture
def world(make_world, monkeypatch):
    monkeypatch.setenv(KEY, "pk:sk")
    return make_world()


def poller_of(world, url, *, name="chat", budget=PollBudget, **options):
    source = RatingsSettings(**{"url": url, "key_env": KEY, "scale": "-1-1", **options})
    context = Context(settings=world.settings, store=world.store, ledger=world.ledger, jobs=world.jobs)
    return RatingPoller(name, source, context=context, budget=budget)


def asked_in(world, chat, message=None, tenant="default"):
    query = Query(text=f"question of {message}", session=chat, sent=Sent(message=message or None), tenant=tenant)
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


def test_a_rating_is_of_its_tenant(world):
    """A rating finds no decision of another tenant, by its chat or by its id, and none in a chat of two tenants."""
    own, foreign = (asked_in(world, "c1", "m1", tenant=tenant) for tenant in ("acme", "other"))
    alone = asked_in(world, "c2", "m2", tenant="other")
    rows = [thumb("m1", 1, key="a", chat="c1"), thumb("m2", 1, key="b", chat="c2"), thumb(alone, -1, key="c")]
    for tenant, expected in ((None, [[], [], [1.0, 0.0]]), ("acme", [[1.0], [], [1.0, 0.0]])):
        with ScriptedHttp(json_reply(rows)) as server:
            poller_of(world, server.url, name=f"of {tenant}", tenant=tenant).poll()
        assert values(world, own, foreign, alone) == expected, tenant


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
    assert (
        Settings(ratings={"chat": {"url": "http://x", "key_env": KEY}}).of(RatingsSection).ratings["chat"].every_s
        == 60.0
    )
    with pytest.raises(ConfigError, match=r"ratings\.chat\.url"):
        poller_of(world, "chat.example.org").poll()
    monkeypatch.delenv(KEY)
    with pytest.raises(ConfigError, match=r"ratings\.more\.key_env"):
        poller_of(world, "http://127.0.0.1:9", name="more").poll()


def test_a_key_in_place_of_its_variable_is_hidden(world):
    """A key that was entered as the name of its variable is in no error, since the poll logs it."""
    with pytest.raises(ConfigError) as caught:
        poller_of(world, "http://127.0.0.1:9", key_env="my-secret-value").poll()
    assert "my-secret-value" not in caught.value.message


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


def few(rows):
    """A function that makes budgets of this number of ratings."""
    return partial(PollBudget, rows=rows)


@pytest.mark.parametrize("form", ["pages", "cursors", "one page"])
def test_a_long_list_is_read_over_several_polls(world, monkeypatch, form):
    """A poll ends when its budget is spent; the next one continues there, until every rating is stored once."""
    monkeypatch.setattr(rating_pages, "GROUP", 2)
    decisions = [world.route() for _ in range(9)]
    rows = [thumb(each, 1, key=each.id) for each in decisions]
    if form == "one page":
        replies = [json_reply(rows)]
    elif form == "pages":
        replies = [json_reply({"items": rows[at : at + 3]}) for at in (0, 3, 6)] + [json_reply({"items": []})]
    else:
        ends = [{"cursor": "c1"}, {"cursor": "c2"}, {}]
        replies = [
            json_reply({"data": rows[at : at + 3], "meta": end}) for at, end in zip((0, 3, 6), ends, strict=True)
        ]
    stored = []
    with ScriptedHttp(*replies) as server:
        poller = poller_of(world, server.url, budget=few(3))
        while not stored or stored[-1] < 9:
            poller.poll()
            stored.append(sum(map(len, values(world, *decisions))))
            assert len(stored) < 5
        paths = [path for path, *_ in server.seen]
    assert stored[0] in (3, 4)
    assert values(world, *decisions) == [[1.0]] * 9
    if form != "one page":
        assert len(paths) == len({*paths})


def test_a_list_without_end_ends(caplog):
    """A list that has ever new pages is taken as read after MOST_PAGES, which is logged."""
    numbers = itertools.count()
    with ScriptedHttp(answer=lambda _: json_reply({"items": [{"id": next(numbers)}]})) as server:
        pages = RatingPages(server.url, credentials="Bearer x", name="ratings.chat", place=Place(page=MOST_PAGES - 2))
        assert len([*pages.groups(PollBudget())]) == len(server.seen) == 3
    assert pages.place is None
    assert f"more than {MOST_PAGES} pages" in caplog.text


@pytest.mark.parametrize(
    ("cursors", "pages", "said"),
    [
        (["a", "a"], 2, "a cursor again"),
        (["a", "b", "a"], 3, "a cursor again"),
        (["x" * 5000], 1, "a cursor of more than 2048"),
        ([{"text": "a"}, ["a"]], 2, "a cursor again"),
        ([7, None], 2, None),
    ],
)
def test_a_list_that_names_a_cursor_again_ends(cursors, pages, said, caplog):
    """A list whose cursors go round in circles, or are no texts, is read once."""
    replies = [json_reply({"data": [{"id": n}], "meta": {"cursor": cursor}}) for n, cursor in enumerate(cursors)]
    with ScriptedHttp(*replies) as server:
        reader = RatingPages(server.url, credentials="Bearer x", name="ratings.chat", place=Place())
        assert len([*reader.groups(PollBudget())]) == len(server.seen) == pages
    assert reader.place is None
    assert said is None or said in caplog.text


@pytest.mark.parametrize("limit", [{"bytes": 1}, {"seconds": 0.0}])
def test_a_poll_ends_by_its_bytes_and_seconds(limit):
    """A poll whose bytes or seconds are spent reads the page that it has begun, and no further one."""
    with ScriptedHttp(*[json_reply({"items": [{"id": n}]}) for n in range(3)]) as server:
        reader = RatingPages(server.url, credentials="Bearer x", name="ratings.chat", place=Place())
        assert [*reader.groups(PollBudget(**limit))] == [[{"id": 0}]]
        assert len(server.seen) == 1
    assert reader.place.page == 2


def test_a_reply_that_drips_is_given_up(world, monkeypatch):
    """A reply that comes byte by byte ends with an error after REPLY_S."""
    monkeypatch.setattr(rating_pages, "REPLY_S", 0.3)
    began = time.monotonic()
    with ScriptedHttp(Scripted(body=b" " * 2000, drip_s=0.02)) as server, pytest.raises(ValueError, match="took over"):
        poller_of(world, server.url).poll()
    assert time.monotonic() - began < 20.0


def test_ratings_before_a_fault_are_stored(world):
    """Ratings that come before a broken one in a reply are stored, also if the reply is a single group."""
    decision = world.route()
    broken = Scripted(body=json.dumps([thumb(decision, 1)]).encode()[:-1] + b", {]")
    with ScriptedHttp(broken) as server, pytest.raises(ValueError, match="not JSON"):
        poller_of(world, server.url).poll()
    assert values(world, decision) == [[1.0]]


def test_ratings_without_an_id_are_not_one(world):
    """Ratings without an id that were made at one time are those of their decisions."""
    one, two = world.route(), world.route()
    with ScriptedHttp(json_reply([thumb(one, 1, key=None), thumb(two, 1, key=None)])) as server:
        poller_of(world, server.url).poll()
    assert values(world, one, two) == [[1.0], [1.0]]


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_a_rating_with_odd_values_does_not_keep_out_the_others(make_world, monkeypatch, request, store):
    """Whatever a field of a rating is, it holds neither the poll nor the ratings after it, in both databases."""
    monkeypatch.setenv(KEY, "sk")
    world = make_world(**({"database_url": request.getfixturevalue("postgres_url")} if store == "postgresql" else {}))
    decision = world.route()
    odd = ["\x00", "\ud800", float("nan"), float("inf"), 10**400, -1, True, None, "", "x" * 5000, {}, [], {"text": "x"}]
    odd.append(json.loads("[" * 400 + "]" * 400))
    names = ("id", "user_id", "updated_at", "data", "meta", "traceId", "value", "source", "name", "subject")
    rows = [thumb(decision, 1, key=f"{name} {at}") | {name: value} for name in names for at, value in enumerate(odd)]
    for name in ("message_id", "chat_id"):
        rows += [thumb(decision, 1, key=f"m {at}") | {"meta": {name: value}} for at, value in enumerate(odd)]
    last = world.route()
    with ScriptedHttp(json_reply([*rows, thumb(last, -1, key="last")])) as server:
        poller_of(world, server.url).poll()
    assert values(world, last) == [[0.0]]
