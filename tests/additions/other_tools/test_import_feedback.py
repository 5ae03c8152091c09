"""`ragbandit feedback import`: a file of judgements, whatever its fields are called."""

import json
import math

import pytest
import yaml

from ragbandit.shared.additions import additions
from tests.support import command
from tests.support.logs.log_rows import write_json


@pytest.fixture
def there(make_world, tmp_path):
    """A world, and a function that imports lines: the exit code, what was printed on stdout, and on stderr."""
    world = make_world(learning={"rater_per_day": 3})
    file, config = tmp_path / "ratings.jsonl", tmp_path / "config.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "data_dir": world.settings.data_dir,
                "database_url": world.settings.database_url,
                "encoder": {"model": "hashing", "dimension": 8},
                "feedback_events": {"copied": 0.8},
            }
        )
    )

    def take(lines, *options):
        if isinstance(lines, bytes):
            file.write_bytes(lines)
        else:
            write_json(file, lines)
        done = command.run("feedback", "import", str(file), "-c", str(config), "--json", *options)
        return done.exit_code, done.stdout, done.stderr

    return world, take


def decided(world, count):
    return [world.route() for _ in range(count)]


def test_fields_by_their_names(there):
    """Options name the fields, with dots into objects; each kind of judgement is kept as POST /v1/feedback keeps it."""
    world, take = there
    one, two = decided(world, 2)
    lines = [
        {"trace": {"decision": f"chatcmpl-{one.id}"}, "score": 4, "user": {"id": "u1"}, "key": "k1"},
        {"trace": {"decision": two.id}, "gold": ["Stoker", 1897], "did": None},
        {"trace": {"decision": two.id}, "did": "copied"},
    ]
    names = [("id", "trace.decision"), ("rating", "score"), ("label", "gold"), ("event", "did")]
    options = [
        word for name, path in (*names, ("rater", "user.id"), ("key", "key")) for word in (f"--{name}-field", path)
    ]
    code, out, _ = take(lines, *options, "--scale", "1-5")
    assert (code, json.loads(out)) == (0, {"imported": 3, "known": 0, "late": 0, "bad": 0, "faults": []})
    (rating,) = world.router.decision(one.id).feedback
    assert (rating.id, rating.value, rating.source, rating.rater) == ("k1", 0.75, "human", "import:u1")
    kept = {each.kind: each.value for each in world.router.decision(two.id).feedback}
    assert kept == {"label": ("Stoker", "1897"), "event": 0.8}


def test_a_file_again_adds_nothing(there, monkeypatch):
    """A line without a key is identified by its content; a new line is added, over several pages."""
    monkeypatch.setattr("ragbandit.additions.other_tools.verbs._PAGE", 50)
    world, take = there
    lines = [{"decision_id": each.id, "rating": True} for each in decided(world, 120)]
    assert json.loads(take(lines[:70])[1])["imported"] == 70
    counts = json.loads(take(lines)[1])
    assert (counts["imported"], counts["known"]) == (50, 70)
    assert world.counters().feedback == 120
    assert world.counters().balanced


def test_bad_lines_are_named_and_the_others_kept(there):
    """Number, the file's own name of the field and the remedy; the first 20 are listed, and the exit code is 1."""
    world, take = there
    (one,) = decided(world, 1)
    good, half = {"run": one.id, "rating": True}, {"run": one.id, "rating": True, "rater": "\ud800"}
    wrong = [{"run": "nobody", "rating": True}, {"rating": True}, {"run": one.id}, {"run": one.id, "rating": "seven"}]
    wrong.append({"run": one.id, "label": math.inf})
    code, out, _ = take([good, *wrong, half, *([{"run": "two words", "rating": 1}] * 29)], "--id-field", "run")
    facts = json.loads(out)
    assert (code, facts["imported"], facts["bad"], len(facts["faults"])) == (1, 1, 35, 20)
    assert facts["faults"][0].startswith("2 ")
    assert facts["faults"][1].startswith("3 run: None is not an id (use 1 to 64")
    assert "no label, rating, reward or event was given" in facts["faults"][2]
    assert facts["faults"][3].startswith("5 rating: 'seven' is not a finite number")
    assert facts["faults"][4].startswith("6 label: inf cannot be used")
    assert facts["faults"][5].startswith("7 rater: ")
    assert world.counters().feedback == 1


def test_a_file_off_the_scale_is_refused_whole(there):
    """One number off the scale, and nothing of the file is kept: the range that it has and the option are named."""
    world, take = there
    decision = decided(world, 4)
    lines = [
        {"decision_id": one.id, "rating": stars}
        for one, stars in zip(decision, (1, "4", "\u2605\u2605\u2606", 2), strict=True)
    ]
    code, _, err = take(lines)
    assert (code, world.counters().feedback) == (2, 0)
    assert ":2 rating: the number 4 is off the scale" in " ".join(err.split())
    assert "has 1 to 4, and --scale is 0-1" in err
    assert "give --scale=1-5; nothing of the file was imported" in err
    code, _, err = take([lines[0], {"decision_id": decision[1].id, "rating": 80}], "--scale", "1-5")
    assert (code, world.counters().feedback) == (2, 0)
    assert "give --scale=0-100; nothing" in err
    assert take(lines, "--scale", "1-5")[0] == 0
    values = [world.router.decision(one.id).feedback[0].value for one in decision]
    assert values == [0.0, 0.75, 0.25, 0.25]


def test_values_as_tables_write_them(there):
    """Blank cells are missing, ids may be numbers, a list of labels may be JSON, and thumbs may have any skin."""
    world, take = there
    decision = decided(world, 5)
    blank = {"rating": "", "label": None, "event": "", "source": "", "rater": float("nan"), "feedback_id": ""}
    cells = [
        {"label": '["Paris", "Lutetia"]', "rating": float("nan")},
        {"rating": "\U0001f44d\U0001f3fd", "feedback_id": 7, "rater": 5.0},
        {"rating": "\U0001f44e\U0001f3ff"},
        {"label": ["Paris", ""]},
    ]
    lines = [{"decision_id": one.id, **blank, **cell} for one, cell in zip(decision, cells, strict=False)]
    code, out, _ = take(
        [*lines, {"decision_id": 12, "rating": 1}, {"decision_id": decision[4].id, **blank, "label": [""]}]
    )
    facts = json.loads(out)
    assert (code, facts["imported"], facts["bad"]) == (1, 4, 2)
    assert facts["faults"][0].startswith("5 decision_id: no decision has this id")
    assert facts["faults"][1].startswith("6 label: ")
    kept = [world.router.decision(one.id).feedback[0] for one in decision[:4]]
    assert [one.value for one in kept] == [("Paris", "Lutetia"), 1.0, 0.0, ("Paris",)]
    assert (kept[1].id, kept[1].rater, kept[0].source) == ("7", "import:5", "human")
    again = [{name: cell for name, cell in line.items() if cell not in ("", None)} for line in lines]
    assert json.loads(take(again)[1])["known"] == 4  # a blank cell does not change the id of a line


@pytest.mark.parametrize(
    ("ratings", "options", "qualities"),
    [
        ((0, 10, "7,5"), ("--scale", "0-10"), [0.0, 1.0, 0.75]),
        ((-2, 2.0, True), ("--scale=-2-2",), [0.0, 1.0, 1.0]),
        ((1, -1, "1"), (), [1.0, 0.0, 1.0]),
        ((1, -1, True), (), [1.0, 0.0, 1.0]),
        (("Thumbs-Up", "not helpful", "correct"), (), [1.0, 0.0, 1.0]),
        (("Oui", "nein", "¡útil".lstrip("¡")), (), [1.0, 0.0, 1.0]),
        (("\u2705", "\u274c", "\u2714\ufe0f"), (), [1.0, 0.0, 1.0]),
        (("Strongly agree", "neutral", "Very dissatisfied"), ("--scale", "1-5"), [1.0, 0.5, 0.0]),
        (("Agree", "disagree", 6), ("--scale", "6-1"), [0.75, 0.25, 0.0]),
        ((1, 6, 3.5), ("--scale", "6-1"), [1.0, 0.0, 0.5]),
    ],
)
def test_any_scale(there, ratings, options, qualities):
    """A scale is WORST-BEST; ratings that are all -1 or 1 are thumbs, as are the words of other tools."""
    world, take = there
    decision = decided(world, 3)
    lines = [{"decision_id": one.id, "rating": rating} for one, rating in zip(decision, ratings, strict=True)]
    assert take(lines, *options)[0] == 0
    assert [world.router.decision(one.id).feedback[0].value for one in decision] == qualities


def test_thumbs_that_may_be_another_scale(there):
    """With a 0 among -1 and 1, and with an explicit scale, the file is refused, and the option is named."""
    world, take = there
    lines = [
        {"decision_id": one.id, "rating": rating} for one, rating in zip(decided(world, 3), (1, -1, 0), strict=True)
    ]
    for content, options in ((lines, ()), (lines[:2], ("--scale", "0-1"))):
        code, _, err = take(content, *options)
        assert (code, "give --scale=-1-1" in err, world.counters().feedback) == (2, True, 0)


def test_names_for_people_and_names_with_dots(there):
    """Columns may have names for people, names in a path may have dots, and ids may have the prefix of a chat."""
    world, take = there
    one, two, three, four = decided(world, 4)
    assert take(f"Decision ID,Rating\n{one.id},1\n".encode())[0] == 0
    value = {"gen_ai.evaluation": {"score.value": 1}}
    prefix = "msg_" if "anthropic" in additions() else "chatcmpl-"
    rows = [{"trace_id": f"{prefix}{two.id}", "attributes": {"gen_ai.evaluation.score.value": 0}}]
    rows += [{"trace_id": f"chatcmpl-{three.id}", "attributes": value}, {"trace_id": four.id, "attributes": 3}]
    code, out, _ = take(rows, "--rating-field", "attributes.gen_ai.evaluation.score.value")
    assert (code, "no label, rating, reward or event was given" in out) == (1, True)
    assert [world.router.decision(each.id).feedback[0].value for each in (one, two, three)] == [1.0, 0.0, 1.0]


def test_ids_of_responses(there):
    """An id with the prefix of responses is the decision's id, prefix included, or else the id after the prefix."""
    world, take = there
    (one,) = decided(world, 1)
    two = world.route(key="resp_two")
    rows = [{"decision_id": each, "rating": 1} for each in (f"resp_{one.id}", two.id, "resp_nobody", "nobody")]
    for _ in range(2):
        code, out, _ = take(rows)
        assert (code, out.count("no decision has this id")) == (1, 2)
    assert [[each.value for each in world.router.decision(known.id).feedback] for known in (one, two)] == [[1.0], [1.0]]


def test_exports_of_other_tools(there):
    """CSV, one JSON list, lists in paths, other names of the decision's id, and sources of other tools are read."""
    world, take = there
    one, two, three, four = decided(world, 4)
    table = f"Decision ID;rating;source\r\n{one.id};4,5;ANNOTATION\r\n{two.id};1,0;LLM\r\n"
    assert take(table.encode("utf-16"), "--scale", "1-5")[0] == 0
    scores = [{"traceId": three.id, "scores": [{"name": "x"}, {"value": 0, "source": "API"}]}]
    names = ("--rating-field", "scores[1].value", "--source-field", "scores.1.source")
    assert take(json.dumps({"meta": {"page": 1}, "data": scores}).encode(), *names)[0] == 0
    code, out, _ = take(json.dumps([{"decision_id": four.id, "rating": 1, "source": "me"}]).encode())
    assert (code, "unknown source 'me'" in out) == (1, True)
    kept = [world.router.decision(each.id).feedback[0] for each in (one, two, three)]
    assert [(each.value, each.source) for each in kept] == [(0.875, "human"), (0.0, "judge"), (0.0, "human")]
