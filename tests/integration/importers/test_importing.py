"""Importing: what is said elsewhere of an answer is feedback here, once, whatever happens between two pages."""

import json
from types import SimpleNamespace

import pytest

from ragbandit.router.importers import http_pages
from ragbandit.router.storage.sql.leases import position_of
from ragbandit.shared.errors import ConfigError, NotReady
from ragbandit.shared.types import Query
from tests.support.servers.feedback_servers import KEY, SECRET

GOOD = 200, {"content-type": "application/json"}


def test_a_judgement_there_is_feedback_here(bridge, caplog):
    """Kind, value, source, rater and decision are right; read again it is a duplicate; no text and no key is kept."""
    caplog.set_level("DEBUG")
    decision = bridge.judged(value=1.0)
    report = bridge.run()
    (row,) = bridge.rows()
    assert (row["decision_id"], row["kind"], row["value"], row["late"]) == (decision.id, "rating", "1.0", False)
    assert row["source"] == "human"
    # Langfuse does not say who sent a score by its API.
    unknown = row["rater"].startswith("import:langfuse:#")
    assert unknown if bridge.name == "langfuse" else row["rater"] == f"import:{bridge.name}:u-1"
    assert json.loads(row["facts"])["import"]["id"] == "j1"
    assert (report.total("imported"), report.seen, len(bridge.bells)) == (1, 1, 1)
    assert bridge.totals() == {"duplicate": 1}
    assert len(bridge.bells) == 1, "what is known already wakes nobody"
    told = f"{dict(row)} {report.facts()} {caplog.text}"
    assert SECRET not in told
    assert KEY not in told


def test_the_policy_learns_from_it(bridge):
    """An imported rating makes the reward of its decision, as one that was sent to us does."""
    bridge.judged(value=1.0)
    bridge.run()
    for row in bridge.rows():
        bridge.world.outcome(bridge.world.store.record(row["decision_id"]).decision)
    assert bridge.world.learn() == 1
    (update,) = bridge.world.updates()
    assert (update["quality"], update["judged_by"]) == (1.0, "human")


@pytest.mark.parametrize("name", ["langfuse", "openwebui", "phoenix", "langsmith"])
def test_an_edit_replaces_what_was_said_before(make_bridge, name):
    """While the decision is open, an edited judgement counts and the one before it does not; nothing is averaged."""
    bridge = make_bridge(name, learning={"wait_s": 3600.0, "aggregate": "mean"})
    decision = bridge.judged(value=1.0)
    assert bridge.totals() == {"imported": 1}
    bridge.world.now += 60
    (entry,) = bridge.twin.entries
    at = int(bridge.world.now)
    changes = {
        "langfuse": {"value": 0.0, "updatedAt": "2033-01-01T00:00:00Z"},
        "openwebui": {"data": {"rating": -1}, "updated_at": at},
        "phoenix": {"result": {"score": 0.0}, "updated_at": "2033-01-01T00:00:00+00:00"},
        "langsmith": {"score": 0.0, "modified_at": "2033-01-01T00:00:00+00:00"},
    }
    entry.update(changes[name])
    assert bridge.totals() == {"replaced": 1}
    bridge.world.now += 7200
    bridge.world.outcome(bridge.world.router.decision(decision.id).decision)
    bridge.world.learn()
    (update,) = bridge.world.updates()
    assert update["quality"] == 0.0
    assert len(bridge.rows()) == 2, "what was said before is kept"


def test_what_comes_after_the_decision_was_closed_is_late(bridge):
    """A judgement of a learned decision is kept, counted as late, and not learned."""
    decision = bridge.judged(value=1.0)
    bridge.world.feedback(decision, reward=0.25)
    bridge.world.learn()
    assert bridge.totals() == {"late": 1}
    assert bridge.world.counters().late_feedback == 1
    assert bridge.world.learn() == 0


@pytest.fixture
def small_pages(monkeypatch):
    """A third of what the servers give at once, where we may choose; Open WebUI has 30 ratings a page."""
    monkeypatch.setattr("ragbandit.router.importers.langsmith._LIMIT", 30)
    monkeypatch.setattr("ragbandit.router.importers.langsmith._STEP", 20)
    monkeypatch.setattr("ragbandit.router.importers.phoenix._SPANS", 20)


def test_every_page_is_read(bridge, small_pages):
    """Of many pages each judgement is imported once, and the next import begins where the last one began."""
    for number in range(65 if bridge.name == "openwebui" else 35):
        bridge.judged(f"j{number:03d}", at=bridge.world.now - number)
    if bridge.name in ("phoenix", "langfuse"):
        bridge.twin.page = 15
    report = bridge.run()
    assert report.total("imported") == len(bridge.twin.entries) == len(bridge.rows())
    bridge.world.now += 100_000
    assert bridge.totals().keys() == {"duplicate"}
    assert bridge.totals() == {}, "what is older than the last import and lookback_s is not told again"
    assert bridge.world.counters().balanced


@pytest.mark.parametrize(
    ("name", "judgements"),
    [("langfuse", 25), ("langsmith", 55), ("openwebui", 65), ("phoenix", 45), ("postgres", 25)],
)
def test_an_import_that_is_cut_off_goes_on(make_bridge, small_pages, name, judgements, request):
    """After a failure between two pages what was kept stays, and the next import brings the rest, once."""
    given = {"database_url": request.getfixturevalue("postgres_url")} if name == "postgres" else {}
    bridge = make_bridge("langfuse" if given else name, **given)
    bridge.twin.page = 10 if bridge.name == "langfuse" else 1000
    for number in range(judgements):
        bridge.judged(f"j{number:03d}", at=bridge.world.now - number)
    calls = []

    def fail(number: int) -> None:
        calls.append(number)
        if len(calls) == 2:
            bridge.twin.faults += [(500, {}, b"")] * http_pages.TRIES

    bridge.twin.meanwhile = fail
    with pytest.raises(NotReady, match="replied 500"):
        bridge.run()
    kept = len(bridge.rows())
    assert 0 < kept < len(bridge.twin.entries)
    with bridge.world.database.read() as connection:
        assert "walk" in position_of(connection, bridge.importer().cursor)
    assert bridge.run().total("imported") == len(bridge.twin.entries) - kept
    assert len({row["id"] for row in bridge.rows()}) == len(bridge.twin.entries)
    assert bridge.world.counters().feedback == len(bridge.twin.entries)


def test_a_cursor_that_is_not_taken_any_more_begins_again(make_bridge):
    """Langfuse may refuse the cursor of a walk that was cut off: the walk is made again, and doubles nothing."""
    bridge = make_bridge("langfuse")
    for number in range(120):
        bridge.judged(f"j{number:03d}", at=bridge.world.now - number)
    bridge.twin.faults += [0.0, *[(500, {}, b"")] * http_pages.TRIES]
    with pytest.raises(NotReady):
        bridge.run()
    bridge.twin.forgetful = True
    assert bridge.run().total("imported") == 20
    assert len(bridge.rows()) == 120


def test_ratings_that_are_deleted_meanwhile_hide_no_other(make_bridge):
    """Open WebUI numbers its pages: where a deletion moves a rating to a page already read, it is read again."""
    bridge = make_bridge("openwebui")
    for number in range(70):
        bridge.judged(f"j{number:03d}", at=bridge.world.now - number)

    def delete(number: int) -> None:
        if number == 2:
            del bridge.twin.entries[:5]

    bridge.twin.meanwhile = delete
    bridge.run()
    assert {json.loads(row["facts"])["import"]["id"] for row in bridge.rows()} >= {
        entry["id"] for entry in bridge.twin.entries
    }


def test_what_is_shown_late_is_found(bridge):
    """A judgement that appears minutes after its time is brought by a later import."""
    bridge.judged("first")
    bridge.run()
    made = bridge.world.now
    bridge.world.now += 600
    bridge.judged("late", at=made + 1)
    assert bridge.run().total("imported") == 1


def test_a_dry_run_keeps_nothing(bridge):
    """It says what an import would bring; no row and no cursor is written."""
    bridge.judged()
    assert bridge.totals(dry_run=True) == {"imported": 1}
    assert bridge.rows() == []
    with bridge.world.database.read() as connection:
        assert position_of(connection, bridge.importer().cursor) == {}
    assert bridge.totals() == {"imported": 1}


def test_two_imports_of_one_place_exclude_each_other(bridge):
    """While one import holds the place, another one is refused; a dry run is not."""
    bridge.judged()
    with bridge.importer()._alone(keep=True):
        with pytest.raises(NotReady, match="another process imports"):
            bridge.run()
        assert bridge.totals(dry_run=True) == {"imported": 1}
    assert bridge.totals() == {"imported": 1}


# ------------------------------------------------------------------------------------------------- what is not taken


def test_names_that_are_not_mapped_are_counted(make_bridge):
    """A score whose name the settings do not know is listed by its name, and guessed at by nobody."""
    bridge = make_bridge("langfuse")
    bridge.judged("a", name="toxicity")
    bridge.judged("b", name="user-feedback")
    report = bridge.run()
    assert report.facts()["names"] == {"toxicity": {"unmapped": 1}, "user-feedback": {"imported": 1}}
    assert report.examples["unmapped"] == ["toxicity"]


def test_who_judged_is_not_guessed(make_bridge):
    """EVAL is a model, ANNOTATION a person; a score by the API is refused unless the settings say who gives it."""
    bridge = make_bridge(
        "langfuse", section={"names": {"accuracy": {"kind": "rating", "source": "human"}, "x": "rating"}}
    )
    for key, source, name in (("a", "EVAL", "accuracy"), ("b", "ANNOTATION", "accuracy"), ("c", "API", "x")):
        bridge.judged(key, name=name, source=source, authorUserId="ann")
    report = bridge.run()
    assert report.facts()["names"] == {"accuracy": {"imported": 2}, "x": {"refused": 1}}
    assert "names.x.source" in report.examples["refused"][0]
    told = {(row["source"], row["rater"]) for row in bridge.rows()}
    assert told == {("judge", "import:langfuse:accuracy"), ("human", "import:langfuse:ann")}


@pytest.mark.parametrize(
    ("mapping", "values"),
    [
        ({"kind": "rating", "minimum": 1.0, "maximum": 5.0}, {4: "0.75", 6: None}),
        ({"kind": "rating", "categories": {"fine": 0.8}}, {"fine": "0.8", "bad": None}),
        ({"kind": "rating"}, {True: "1.0", "0.5": "0.5", float("nan"): None}),
        ({"kind": "label"}, {"Bram Stoker": '["Bram Stoker"]', 1.0: None}),
        ({"kind": "event", "event": "copied"}, {True: "0.8"}),
    ],
    ids=["numbers", "categories", "plain", "labels", "events"],
)
def test_scales(make_bridge, mapping, values):
    """Numbers, booleans, categories, labels and events come out on our scale; what does not fit is refused."""
    section = {"names": {"x": {"source": "human", **mapping} if mapping["kind"] != "event" else mapping}}
    bridge = make_bridge("langfuse", section=section, feedback_events={"copied": 0.8})
    decisions = [bridge.judged(f"j{number}", name="x", value=value).id for number, value in enumerate(values)]
    expected = {key: stored for key, stored in zip(decisions, values.values(), strict=True) if stored is not None}
    counts = {"imported": len(expected), "refused": len(values) - len(expected)}
    assert bridge.totals() == {result: number for result, number in counts.items() if number}
    assert {row["decision_id"]: row["value"] for row in bridge.rows()} == expected


def test_a_judgement_of_something_else_is_unmatched(bridge):
    """What is about no decision of ours is counted with a few examples, and nothing is written."""
    for number in range(5):
        bridge.judge(SimpleNamespace(id=f"nobody-{number}"), f"j{number}")
    expected = {} if bridge.name == "phoenix" else {"unmatched": 5}  # which tells only what it is asked for
    report = bridge.run()
    assert {name: n for each in report.by_name.values() for name, n in each.items()} == expected
    assert len(report.examples["unmatched"]) == min(3, len(expected) * 3)
    assert bridge.rows() == []


def test_a_trace_of_several_questions_is_ambiguous(make_bridge):
    """A score of a whole trace with two decisions judges neither; one of a span judges its decision."""
    bridge = make_bridge("langfuse")
    one, two = bridge.decision(trace="t1", span="s1"), bridge.decision(trace="t1", span="s2")
    bridge.twin.add("whole", at=bridge.world.now, trace="t1")
    subject = {"kind": "observation", "id": "s2", "traceId": "t1"}
    bridge.twin.add("part", at=bridge.world.now, subject=subject)
    assert bridge.totals() == {"ambiguous": 1, "imported": 1}
    assert [row["decision_id"] for row in bridge.rows()] == [two.id]
    assert one.id != two.id


def test_of_a_message_that_was_sent_twice_the_newest_answer_is_meant(make_bridge):
    """Two decisions of one message: the rating is of the later one, and stays there when a third one comes."""
    bridge = make_bridge("openwebui")
    bridge.decision(openwebui_message="m1")
    bridge.world.now += 1
    second = bridge.decision(openwebui_message="m1")
    bridge.twin.add("r1", at=bridge.world.now, rating=-1, message="m1")
    assert bridge.totals() == {"imported": 1}
    bridge.world.now += 1
    bridge.decision(openwebui_message="m1")
    assert bridge.totals() == {"duplicate": 1}
    assert [(row["decision_id"], row["value"]) for row in bridge.rows()] == [(second.id, "0.0")]


def test_another_tenants_decision_cannot_take_a_rating(make_bridge, tmp_path):
    """Decisions of two tenants under one id are ambiguous; with `tenant` set only that tenant's are judged."""
    for section, expected in (({}, {"ambiguous": 1}), ({"tenant": "acme"}, {"imported": 1})):
        bridge = make_bridge("openwebui", section=section, tenant="acme", data_dir=str(tmp_path / str(len(section))))
        ours = bridge.decision(openwebui_message="m1")
        bridge.world.now += 1
        bridge.world.router.submit(
            Query(text="who?", tenant="mallory", request={"links": {"openwebui_message": "m1"}})
        ).result(30)
        bridge.twin.add("r1", at=bridge.world.now, message="m1")
        assert bridge.totals() == expected
        assert [row["decision_id"] for row in bridge.rows()] == ([ours.id] if section else [])


def test_entries_of_another_shape_are_passed_over(bridge):
    """An entry without id, name, value or time, and one that is no object, is counted; the others are imported."""
    bridge.judged()
    good = dict(bridge.twin.entries[0])
    for missing in ("id", "value", "score", "result", "data"):
        if missing in good and good[missing] is not None:
            bridge.twin.entries.append({**good, missing: None})
    report = bridge.run()
    assert report.total("imported") == 1
    assert report.unreadable == len(bridge.twin.entries) - 1 > 0


# --------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    "faults",
    [
        [(429, {"retry-after": "0.05"}, b"slow down"), (500, {}, b""), (408, {}, b"")],
        [(503, {"retry-after": "nonsense"}, b"<html>"), (502, {}, b""), (500, {}, b"")],
    ],
)
def test_passing_failures_are_tried_again(make_bridge, faults):
    """Too many requests, time-outs and failures of the server cost a pause, and lose nothing."""
    bridge = make_bridge("openwebui")
    bridge.judged()
    bridge.twin.faults += faults
    assert bridge.totals() == {"imported": 1}
    assert len(bridge.twin.requests) == 1 + 3


def test_a_wrong_key_ends_the_import(bridge, monkeypatch):
    """Each system refuses a key that is not its own; the error names where keys come from, and shows none."""
    bridge.judged()
    for variable in bridge.twin.environment:
        monkeypatch.setenv(variable, "stale-key-of-before")
    with pytest.raises(ConfigError, match="keys in the environment") as caught:
        bridge.run()
    assert "stale" not in str(caught.value)
    assert bridge.rows() == []


def test_what_no_other_try_can_change_ends_the_import(make_bridge, monkeypatch):
    """Pages, broken JSON, redirects, wrong keys and endless replies end it with what to do, once, without the key."""
    monkeypatch.setattr(http_pages, "MAX_BYTES", 2_000_000)
    bridge = make_bridge("langfuse")
    bridge.judged()
    for fault, error, said in (
        ((200, {"content-type": "text/html"}, b"<html>log in</html>"), NotReady, "no JSON"),
        ((*GOOD, b'{"data": ['), NotReady, "no JSON"),
        ((*GOOD, b"[" * 100_000), NotReady, "no JSON"),
        ((*GOOD, b'{"data": 7, "items": 7}'), NotReady, "no list"),
        ((302, {"location": "http://127.0.0.1:9/login"}, b""), ConfigError, "redirects are not followed"),
        ((401, {}, b"no"), ConfigError, "keys in the environment"),
        ((403, {}, b"no"), ConfigError, "keys in the environment"),
        ((404, {}, b"no"), ConfigError, "check the address"),
        ((429, {"retry-after": "86400"}, b"tomorrow"), NotReady, "replied 429"),
        ((*GOOD, b" " * 3_000_000), NotReady, "larger than"),
    ):
        bridge.twin.faults.append(fault)
        bridge.twin.requests.clear()
        with pytest.raises(error, match=said) as caught:
            bridge.run()
        assert len(bridge.twin.requests) == 1, said
        assert KEY not in str(caught.value)
        assert bridge.rows() == []
    assert bridge.totals() == {"imported": 1}


def test_a_server_that_hangs_is_given_up(make_bridge):
    """A reply that does not come is waited for as long as timeout_s says, and tried again."""
    bridge = make_bridge("langfuse", section={"timeout_s": 0.2})
    bridge.judged()
    bridge.twin.faults.append(1.0)
    assert bridge.totals() == {"imported": 1}
    assert len(bridge.twin.requests) == 2


def test_a_server_that_is_not_there(make_bridge):
    """Nobody listens: the import ends with the address's setting, and nothing is written."""
    bridge = make_bridge("langfuse", section={"url": "http://127.0.0.1:1"})
    with pytest.raises(NotReady, match=r"importers.langfuse.url.*cannot be reached"):
        bridge.run()


def test_keys_come_from_the_environment_alone(make_bridge, monkeypatch):
    """Without its variable an importer does not begin; a key that no header carries is refused, and not shown."""
    bridge = make_bridge("langsmith")
    monkeypatch.setenv("LANGSMITH_API_KEY", f"{KEY}\nX-Evil: 1")
    with pytest.raises(ConfigError, match="no header can carry") as caught:
        bridge.run()
    assert KEY not in str(caught.value)
    monkeypatch.delenv("LANGSMITH_API_KEY")
    with pytest.raises(ConfigError, match="LANGSMITH_API_KEY is not set"):
        bridge.run()


# -------------------------------------------------------------------------------------------------------- deletions


def test_what_is_deleted_there_is_taken_back_here(make_bridge, tmp_path):
    """While its decision is open, a deleted judgement counts no more: the other one makes the reward; once only."""
    for name in ("langfuse", "langsmith", "openwebui", "phoenix"):
        folder = {"data_dir": str(tmp_path / name)}
        bridge = make_bridge(name, learning={"wait_s": 3600.0, "aggregate": "mean"}, **folder)
        decision = bridge.judged("bad", value=0.0)
        other = {
            "langfuse": {"source": "ANNOTATION", "authorUserId": "u-2"},
            "langsmith": {"feedback_source": {"type": "app", "user_id": "u-2"}},
        }
        bridge.judge(decision, "good", value=1.0, **other.get(name, {"user_id": "u-2"}))
        assert bridge.totals() == {"imported": 2}, name
        bridge.twin.entries[:] = [entry for entry in bridge.twin.entries if entry["id"] == "good"]
        assert bridge.totals(dry_run=True) == {"replaced": 1, "retracted": 1}, name
        assert bridge.totals() == {"duplicate": 1, "retracted": 1}, name
        assert bridge.totals() == {"duplicate": 1}, name
        bridge.world.now += 7200
        bridge.world.outcome(bridge.world.router.decision(decision.id).decision)
        assert bridge.world.learn() == 1
        (update,) = bridge.world.updates()
        assert update["quality"] == 1.0, name


def test_a_deleted_judgement_takes_no_other_of_its_rater_with_it(make_bridge):
    """Where the same user's later judgement stands, the deletion of an earlier one takes nothing back."""
    bridge = make_bridge("openwebui", learning={"wait_s": 3600.0, "aggregate": "mean"})
    decision = bridge.judged("first", value=0.0)
    bridge.run()
    bridge.judge(decision, "second", value=1.0)
    assert bridge.totals() == {"duplicate": 1, "replaced": 1}
    bridge.twin.entries[:] = [entry for entry in bridge.twin.entries if entry["id"] == "second"]
    assert bridge.totals() == {"duplicate": 1}


def test_a_server_that_has_lost_everything_takes_nothing_back(make_bridge):
    """Most judgements gone at once is more likely a fault there than the wish of so many: it is said, not done."""
    bridge = make_bridge("openwebui", learning={"wait_s": 3600.0, "aggregate": "mean"})
    for number in range(25):
        bridge.judged(f"j{number}")
    bridge.run()
    bridge.twin.entries.clear()
    assert bridge.totals() == {"kept": 25}
    assert len(bridge.rows()) == 25


def test_scores_of_models_teach_nothing_before_they_are_weighed(make_bridge, tmp_path):
    """An evaluator's score is kept and closes nothing; with learning.sources it is learned as a judge's."""
    for sources, learned in (({}, 0), ({"import:langfuse:accuracy": 1.0}, 1)):
        folder = {"data_dir": str(tmp_path / str(learned))}
        bridge = make_bridge("langfuse", learning={"sources": sources}, **folder)
        decision = bridge.judged("a", name="accuracy", source="EVAL", value=0.25)
        assert bridge.totals() == {"imported": 1}
        bridge.world.outcome(bridge.world.router.decision(decision.id).decision)
        bridge.world.learn()
        assert bridge.world.router.decision(decision.id).state == ("learned" if learned else "waiting")
        assert [update["judged_by"] for update in bridge.world.updates()] == ["judge"] * learned
