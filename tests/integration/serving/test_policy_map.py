"""The map of a policy, read from a store, by the command line and by the page."""

import json
import re
from dataclasses import fields

from sqlalchemy import select

from ragbandit.router.serving.explanations.explain import Explanation
from ragbandit.router.serving.explanations.policy_map import policy_map
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.router.verbs import inspection
from ragbandit.shared.types import Query
from tests.support import command

HOSTILE = "Who \x1b[2J <script>alert(1)</script>"


def filled(make_world, **given):
    """Ninety questions of two kinds, each kind with probabilities of its own; one that had no choice.

    Every fifth question gets the arm that is right for the other kind, and a rating of 0.
    """
    world = make_world(policy={"name": "uniform"}, **given)
    arms = world.router.service.arms
    for number in range(90):
        world.now += 1.0
        text = f"Who is number {number}?" if number % 3 else f"How many are {number}?"
        decision = world.route(HOSTILE if number == 89 else text, tenant="b" if number < 15 else "a")
        right, wrong = (0, 1) if number % 3 else (1, 0)
        pmf = [0.0] * len(arms)
        pmf[right], pmf[wrong] = 0.8, 0.2
        arm = arms[right if number % 5 else wrong]
        stored = decisions.update().where(decisions.c.id == decision.id)
        world.write(stored.values(pmf=json.dumps(pmf), arm=arm))
        if number < 70:
            world.outcome(decision)
            world.feedback(decision, rating=float(number % 5 > 0))
    world.router.submit(Query(text="Why this arm?", arms=(arms[0],))).result(30)
    world.learn()
    return world, arms


def test_the_map_is_read_from_the_store(make_world):
    """Each kind has its share, its arm, its mean reward where it was rated, and its newest questions."""
    world, arms = filled(make_world)
    mapped = policy_map(world.database, label="main", schema={}, weight=0.05)
    assert (mapped.questions, mapped.explained) == (90, 1.0)
    said = (
        "these 2 kinds explain 100 % of how the probabilities differ between the newest 90 questions with several arms"
    )
    assert mapped.sentence.partition(";")[0] == said
    who, many = mapped.kinds
    assert (who.name, who.share, round(who.arms[arms[0]], 9)) == ('begins with "who"', 60 / 90, 0.8)
    assert (many.name, many.share, round(many.arms[arms[1]], 9)) == (
        "asks how many, how much or how long",
        30 / 90,
        0.8,
    )
    assert 0.5 < who.reward < 1.0
    assert 0.5 < many.reward < 1.0
    assert many.examples[0] == "How many are 87?"
    alone = policy_map(world.database, label="main", schema={}, weight=0.05, tenant="a")
    assert alone.questions == 75
    assert policy_map(world.database, label="main", schema={}, weight=0.05, tenant="b").kinds == ()


def test_each_mapped_question_has_its_kind(make_world):
    """The map has the kind of each decision that it was made from, and of no other one."""
    world, _ = filled(make_world)
    mapped = policy_map(world.database, label="main", schema={}, weight=0.05)
    with world.database.read() as connection:
        texts = {row.id: row.text for row in connection.execute(select(*decisions.c["id", "text"]))}
    assert mapped.kind_of == {
        key: 'begins with "who"' if text.startswith("Who") else "asks how many, how much or how long"
        for key, text in texts.items()
        if not text.startswith("Why")
    }


def test_the_command_line_says_the_kind(make_world, tmp_path, monkeypatch):
    """`explain` names the kind of a question, and the JSON of `report` has all kinds with their sentence."""
    world, _ = filled(make_world)
    monkeypatch.setenv("RAGBANDIT_DATA_DIR", str(world.settings.data_dir))
    monkeypatch.chdir(tmp_path)
    mapped = policy_map(world.database, label="main", schema={}, weight=0.05)
    asked = next(key for key, name in mapped.kind_of.items() if name == 'begins with "who"')
    said = command.run("explain", asked, code=0, terminal_width=200).stdout
    assert re.search(r'kind of question +begins with "who"', said)
    report = json.loads(command.run("report", "--since", "2020-01-01", "--json", code=0).stdout)
    assert [kind["name"] for kind in report["kinds"]] == [kind.name for kind in mapped.kinds]
    assert report["kinds_of"] == mapped.sentence


def test_the_json_of_a_decision_has_no_kind(make_world, tmp_path, monkeypatch):
    """The JSON of `explain` has the fields of the API's reply, and is printed without a map of the newest decisions."""
    world, _ = filled(make_world)
    monkeypatch.setenv("RAGBANDIT_DATA_DIR", str(world.settings.data_dir))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(inspection, "policy_map", None)
    with world.database.read() as connection:
        asked = connection.execute(select(decisions.c.id).limit(1)).scalar_one()
    said = json.loads(command.run("explain", asked, "--json", code=0).stdout)
    assert [*said] == [field.name for field in fields(Explanation)]
