"""Labelling: the queue over HTTP, the page, the verb, and what is learned from a label."""

import hashlib
import time
from html.parser import HTMLParser

import pytest

from ragbandit.client import Client
from ragbandit.router.serving.deciding.steps.labels import Labels
from ragbandit.router.storage.label_queue import LABEL_QUEUE
from ragbandit.router.storage.paired_answers import answers_to, store_answer
from ragbandit.shared.errors import Conflict, InvalidInput
from ragbandit.shared.types import (
    MOST_FACTOR,
    OWN_BEGINNINGS,
    DecisionId,
    Feedback,
    FeedbackId,
    LabelRequest,
    Query,
    Terms,
)
from tests.support.additions import needs
from tests.support.examples import made_paired_answer
from tests.support.servers.http_service import refused
from tests.support.servers.visitors import answered

ARMS = {"no_retrieval": {}, "direct": {"class": "no_retrieval"}}
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def asking(serve):
    return serve(learning={"labels_per_day": 1000})


def waiting(service) -> list[str]:
    return [one["decision_id"] for one in service.http.get("/v1/label-queue?n=100").json()["items"]]


def test_the_queue(asking):
    """Every answer of a young service waits, the newest first, without its arm; a label takes it out."""
    keys = [answered(asking, f"question {number}?") for number in range(3)]
    assert waiting(asking) == keys[::-1]
    [task] = asking.http.get("/v1/label-queue?n=1").json()["items"]
    assert task.keys() == {"item", "kind", "decision_id", "question", "answer", "sources", "made_at"}
    record = asking.http.get(f"/v1/decisions/{keys[2]}").json()
    assert record["facts"][LabelRequest.key].items() >= {"asked": True, "q": 1.0, "share": 1.0}.items()
    body = {"decision_id": keys[2], "rating": True, "source": "label"}
    assert asking.http.post("/v1/feedback", json=body).status_code == 202
    assert waiting(asking) == keys[1::-1]
    refused(asking.http.get("/v1/label-queue?n=0"), 422, "INVALID_INPUT", field="n")


def test_requests_that_name_their_arm_take_no_labels_from_others(serve):
    """The labels of a day are for the questions whose draw is learned, however many others there are."""
    service = serve(learning={"labels_per_day": 3})
    for number in range(25):
        named = {"x-ragbandit-arm": "multi_step"} if number % 5 else {}
        service.http.post("/v1/route", json={"question": f"question {number}?"}, headers=named)
    for number in range(4):  # under a spent budget
        service.router.route(Query(text=f"late {number}?", terms=Terms(budget_factor=MOST_FACTOR)))
    labels = service.router.service.step(Labels)
    labels._count_at = 0.0
    service.router.service.refresh_steps()
    assert labels.share == pytest.approx(3 / 5)


class Tags(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, [pair for pair in attributes if pair[0] != "value"]))

    def handle_data(self, data):
        self.text += data


@needs("dashboard")
def test_no_text_changes_the_page(asking):
    """A question and an answer add no tag, hide nothing and change no direction; a blank answer is named."""

    def page(question, answer):
        answered(asking, question, answer=answer)
        return Tags(asking.http.get("/ui/labels").text)

    plain = page("plain?", "plain")
    closing = '</bdi></h2></blockquote></section><base href=//x>" onload="x'
    hostile = f"{HOSTILE}{closing} {{{{ 7*7 }}}} &lt;b&gt; a\u202eb\x1b[2Jc\u200b"
    shown = page(f"q {hostile}", f"a {hostile}")
    assert shown.tags == plain.tags
    assert shown.text.count("{{ 7*7 }} &lt;b&gt; a\\u202eb\\u001b[2Jc\\u200b") == 2
    for blank in ("\u200b\u3164", "\ufeff"):
        assert "The answer is empty." in page(f"blank {blank!r}", blank).text


def test_nothing_waits_by_default(service):
    """Without learning.labels_per_day nothing is chosen, and decisions have no such fact."""
    key = answered(service)
    assert waiting(service) == []
    assert LabelRequest.key not in service.http.get(f"/v1/decisions/{key}").json()["facts"]


@needs("dashboard")
def test_the_page(asking, visit):
    """Right, wrong and skip: two answers are labelled, one is passed over; texts of others are only text."""
    keys = [answered(asking, f"question {number}? {HOSTILE}", answer=f"answer {HOSTILE}") for number in range(3)]
    browser = visit(asking)
    page = browser.page("/ui/labels")
    assert "question 2?" in page
    assert "3 answers wait; 0 labels were given here today (of about 1,000 a day)" in page
    assert "<strong>Right</strong>: the answer answers the question" in page
    assert HOSTILE not in page
    done = browser.send("/ui/labels", on="/ui/labels", item=keys[2], rating="false")
    assert done.headers["location"] == "/ui/labels"
    done = browser.send("/ui/labels", on="/ui/labels", item=keys[1], rating="")
    assert done.headers["location"] == "/ui/labels?skip=1"
    assert "question 0?" in browser.page("/ui/labels?skip=1")
    assert "2 answers wait; 1 label was given here today" in browser.page("/ui/labels?skip=1")
    browser.send("/ui/labels?skip=1", on="/ui/labels?skip=1", item=keys[0], rating="true")
    assert "Begin again" in browser.page("/ui/labels?skip=1")
    assert waiting(asking) == [keys[1]]
    [kept] = asking.http.get(f"/v1/decisions/{keys[2]}").json()["feedback"]
    assert (kept["source"], kept["kind"], kept["value"]) == ("label", "rating", 0.0)
    for rating, skip in (("maybe", "0"), ("true", "-1"), ("true", "many")):
        sent = browser.send(f"/ui/labels?skip={skip}", on="/ui/labels", item=keys[1], rating=rating)
        assert sent.status_code == 422


@needs("dashboard")
def test_a_rater_sees_this_page_alone(asking, visit, with_keys):
    """A rater logs in and labels; the other pages are not for it, and not in its menu. A reader labels nothing."""
    keys = [answered(asking, f"question {number}?") for number in range(2)]
    rater, reader = with_keys(asking, "rater"), with_keys(asking, "reader")
    browser = visit(asking)
    browser.log_in(rater)
    page = browser.page("/ui/labels")
    assert "/ui/decisions" not in page
    assert browser.http.get("/ui/decisions").status_code == 403
    browser.send("/ui/labels", on="/ui/labels", item=keys[1], rating="true")
    head = {"authorization": f"Bearer {rater}"}
    [left] = asking.http.get("/v1/label-queue", headers=head).json()["items"]
    assert left["decision_id"] == keys[0]
    other = visit(asking)
    other.log_in(reader)
    assert "Wrong" not in other.page("/ui/labels")
    assert asking.http.get("/v1/label-queue", headers={"authorization": f"Bearer {reader}"}).status_code == 403


def test_the_first_label_stays_whoever_gives_the_second(asking, with_keys):
    """A second person's label of the same answer is a duplicate if it is equal, and a conflict if it is not."""
    key = answered(asking, "Who wrote Dracula?")
    ann, bob = ({"authorization": f"Bearer {with_keys(asking, 'rater')}"} for _ in range(2))

    def label(who, *, right: bool):
        return asking.http.post("/v1/label-queue", headers=who, json={"item": key, "right": right})

    assert label(ann, right=True).json() == {"duplicate": False}
    assert label(bob, right=True).json() == {"duplicate": True}
    refused(label(bob, right=False), 409, "CONFLICT", field="item")
    [kept] = asking.router.decision(key).feedback
    assert (kept.source, kept.value) == ("label", 1.0)


def old_label(decision_id, **changed):
    """A row under the id that the last release gave to the label of a decision."""
    digest = hashlib.sha256((changed.pop("of", decision_id)).encode()).hexdigest()[:40]
    row = {"kind": "rating", "value": 1.0, "source": "label", "received_at": time.time(), "rater": "ann"}
    return Feedback(id=FeedbackId(f"label-{digest}"), decision_id=DecisionId(decision_id), **(row | changed))


def test_a_label_of_the_last_release_counts_as_given(asking):
    """The same label again is a duplicate and another one a conflict, so that two releases store one label."""
    key = answered(asking, "Who wrote Dracula?")
    asking.router.store.add_feedback([old_label(key)])
    body = {"item": key, "right": True}
    assert asking.http.post("/v1/label-queue", json=body).json() == {"duplicate": True}
    refused(asking.http.post("/v1/label-queue", json=body | {"right": False}), 409, "CONFLICT", field="item")
    assert len(asking.router.decision(key).feedback) == 1


def test_nobody_takes_the_place_of_a_label(asking):
    """A caller's rating under the id of the last release, and a label of another tenant's decision, do not count as the
    label.
    """
    key, other = (answered(asking, f"Who wrote {book}?", tenant=book) for book in ("Dracula", "Emma"))
    asking.router.store.add_feedback([old_label(key, source="code"), old_label(key, of=other)])
    for item in (key, other):
        body = {"item": item, "right": False}
        assert asking.http.post("/v1/label-queue", json=body).json() == {"duplicate": False}
        assert asking.http.post("/v1/label-queue", json=body).json() == {"duplicate": True}
        assert ("label", 0.0) in {(one.source, one.value) for one in asking.router.decision(item).feedback}


def test_a_callers_id_may_not_begin_as_one_of_the_service(asking):
    """Ids of labels, scores and imports are refused by name at every door, and the library; what follows is free."""
    key, http = answered(asking, "Who wrote Dracula?", session_id="s"), asking.http
    assert set(OWN_BEGINNINGS) >= {"label-", "judge-", "check-", "import-", "imported-", "labelled-", "rating-"}
    for own in OWN_BEGINNINGS:
        given = {"rating": True, "feedback_id": f"{own}1"}
        body = {"decision_id": key, **given}
        refused(http.post("/v1/feedback", json=body), 422, "INVALID_INPUT", field="feedback_id")
        header = {"idempotency-key": f"{own}1"}
        sent = http.post("/v1/feedback", json={"decision_id": key, "rating": True}, headers=header)
        refused(sent, 422, "INVALID_INPUT", field="feedback_id")
        [item] = http.post("/v1/feedback/batch", json={"items": [body]}).json()["items"]
        assert item["error"]["field"] == "feedback_id"
        refused(http.post("/v1/sessions/s/end", json={"feedback": given}), 422, "INVALID_INPUT", field="feedback_id")
        with pytest.raises(InvalidInput, match=own):
            asking.router.feedback(key, **given)
    assert asking.router.decision(key).feedback == ()
    assert http.post("/v1/feedback", json={"decision_id": key, "rating": True, "feedback_id": "a-label-1"}).is_success


@needs("dashboard")
def test_answers_that_a_verdict_lacks(serve, visit, monkeypatch):
    """A button puts as many answers of the compared arm on the page as the verdict lacks ratings. While they wait, the
    overview shows their number instead.
    """
    monkeypatch.setattr("ragbandit.router.reporting.report._to_rate", lambda *_, **__: 2)
    holdback = {"arm": "direct", "share": 0.5}
    service = serve(arms=ARMS, policy={"name": "uniform", "holdback": holdback})

    def arm(key: str) -> str:
        return service.http.get(f"/v1/decisions/{key}").json()["arm"]

    arms = [arm(answered(service)) for _ in range(4)]
    while arms.count("direct") < 3:  # 3 of 4 draws
        arms.append(arm(answered(service)))
    browser = visit(service)
    assert "Put 2 unrated answers on the page Labels" in browser.page("/ui?time=week")
    done = browser.send("/ui/rate", on="/ui?time=week", time="week")
    assert done.headers["location"] == "/ui/labels"
    assert "2 answers wait; 0 labels were given here today." in browser.page("/ui/labels")
    overview = browser.page("/ui?time=week")
    assert '2 answers wait on the page <a href="/ui/labels">Labels</a>' in overview
    assert "unrated answers on the page Labels" not in overview
    assert [arm(key) for key in waiting(service)] == ["direct", "direct"]


@needs("dashboard")
def test_answers_of_a_verdict_come_first_in_the_one_queue(asking, visit, with_keys):
    """The answers of both ways come first, without their arms, over HTTP, in the client and on the page. The same label
    again is a duplicate. Another tenant's key sees none of them.
    """
    key = answered(asking, f"Who wrote Dracula? {HOSTILE}")
    record = asking.router.decision(key).decision
    for number, arm in enumerate(("direct", "deep")):
        one = made_paired_answer(record, arm=arm, judge=LABEL_QUEUE, quality=None, answer=f"answer {number} {HOSTILE}")
        store_answer(asking.router.database, one)
    with Client(asking.url) as client:
        [*items, other] = client.label_queue()["items"]
        assert [one["kind"] for one in (*items, other)] == ["verdict", "verdict", "decision"]
        assert [(one["decision_id"], one["sources"]) for one in items] == [(None, [])] * 2
        assert other["item"] == other["decision_id"] == key
        for one in (items[0]["item"], key):
            assert client.label(one, right=False) == {"duplicate": False}
            assert client.label(one, right=False) == {"duplicate": True}
            with pytest.raises(Conflict, match="it has the other label already"):
                client.label(one, right=True)
    answered(asking, "Who wrote Carmilla?")
    browser = visit(asking)
    page = browser.page("/ui/labels")
    assert "1 answer is labelled for a verdict" in page
    assert "2 answers wait" in page
    assert HOSTILE not in page
    assert not any(arm in page for arm in ("direct", "deep"))
    assert "labels teach the most" in browser.page("/ui/labels?skip=1")
    assert browser.send("/ui/labels", on="/ui/labels", item=items[1]["item"], rating="maybe").status_code == 422
    browser.send("/ui/labels", on="/ui/labels", item=items[1]["item"], rating="true")
    assert "labels teach the most" in browser.page("/ui/labels")
    for item in (f"{key}.0000000000000000", "nobody", "nobody.0000000000000000"):
        body = {"item": item, "right": True}
        refused(asking.http.post("/v1/label-queue", json=body), 404, "NOT_FOUND", field="item")
    refused(
        asking.http.post("/v1/label-queue", json={"item": "a b", "right": True}), 422, "INVALID_INPUT", field="item"
    )
    with asking.router.database.read() as connection:
        by_text = {one.answer: (one.quality, one.rater) for one in answers_to(connection, [key])}
    assert {one["answer"]: by_text[one["answer"]][0] for one in items} == dict(
        zip((one["answer"] for one in items), (0.0, 1.0), strict=True)
    )
    store_answer(asking.router.database, made_paired_answer(record, arm="more", judge=LABEL_QUEUE, quality=None))
    head = {"authorization": f"Bearer {with_keys(asking, 'rater', tenant='shop')}"}
    assert asking.http.get("/v1/label-queue", headers=head).json() == {"items": []}
    for item in (f"{key}.0000000000000000", key, "nobody"):
        body = {"item": item, "right": True}
        refused(asking.http.post("/v1/label-queue", headers=head, json=body), 404, "NOT_FOUND", field="item")
