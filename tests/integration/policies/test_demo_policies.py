"""`make demo POLICY=NAME` has params for every policy, and what they name is made as it should be."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from ragbandit.examples.handbook.policies import FITTING, PARAMS, TRAINED, Place, method, prepared, stand_in
from ragbandit.router.cli.store import parse_policies
from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs.tables import read_table
from ragbandit.router.policies import POLICIES, make_policy
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.router.policies.kinds.llm import messages_of, parse_choice
from ragbandit.shared.types import ArmName, Query
from tests.support.tiny_models import tiny_encoder, tiny_trained

HANDBOOK = Path(__file__).parents[3] / "examples" / "handbook"
QUESTIONS = [json.loads(line) for line in (HANDBOOK / "questions.jsonl").read_text("utf-8").splitlines()]
ARMS = ("no_retrieval", "single_step", "multi_step")
#: the real nets are too large for a unit test
SMALL = {"mba_paper": {"model": tiny_encoder(), "max_tokens": 16}} | {key: {"max_tokens": 16} for key in TRAINED}


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(data=tmp_path)


def run(name, data, **more):
    """`prepared` with the demo's settings, data in `data`."""
    environment = {"RAGBANDIT_CONFIG": str(HANDBOOK / "config.yaml"), "RAGBANDIT_DATA_DIR": str(data)}
    settings = {"environment": environment, "questions": QUESTIONS, "console": Console(quiet=True)}
    return prepared(name, **settings | {"ragbandit": None} | more)


def test_every_policy_can_be_shown():
    """The demo has params for every policy of the registry, and for no other."""
    assert set(PARAMS) == set(POLICIES)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_params_are_accepted(name, place):
    """The policy is made with the demo's params, once what they name is there."""
    if name in TRAINED:
        place.trained.symlink_to(tiny_trained(name))
    params = PARAMS[name](place)
    policy = make_policy(name, params=params | SMALL.get(name, {}))
    assert {key: policy.params[key] for key in params} == params


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {*TRAINED, "llm"}))
def test_settings_read_back_as_they_were_meant(name, tmp_path):
    """The environment that the service is given names the policy with these very params, and no incumbent."""
    with run(name, tmp_path) as environment:
        policy = load(environ=environment).settings.policy
    assert (policy.name, policy.params, policy.incumbent) == (name, PARAMS[name](Place(data=tmp_path)), None)


@pytest.mark.parametrize("name", TRAINED)
def test_training_reads_the_table_that_was_written(name, tmp_path):
    """`policy train` is called for the policy with a table of all questions and a folder that the params name."""
    asked, given = {}, []

    def ragbandit(arguments):
        asked.update(zip(arguments[2::2], arguments[3::2], strict=False), verb=arguments[:2])
        given.extend(after for word, after in pairwise(arguments) if word == "--param")
        return json.dumps({"epochs": [{"accuracy": 0.5}], "best_epoch": 1, "validation_rows": 13})

    with run(name, tmp_path, ragbandit=ragbandit) as environment:
        params = load(environ=environment).settings.policy.params
    rows = read_table(asked["--table"]).rows
    assert (asked["verb"], asked["--policy"], asked["--out"]) == (["policy", "train"], name, params["trained"])
    assert [row.question for row in rows] == [question["question"] for question in QUESTIONS]
    assert parse_policies([name], params=given, settings=Settings())[name] == FITTING


@pytest.mark.parametrize(
    ("question", "arm"),
    [
        ("What colour is snow?", "no_retrieval"),
        ("Who has the keys of the boathouse?", "single_step"),
        ("Where does the captain of the Amber Heron live?", "multi_step"),
    ],
)
@pytest.mark.parametrize("order", [ARMS, ARMS[::-1]])
def test_the_stand_in_gives_the_number_of_its_pick(question, arm, order):
    """The stand-in's reply is the number that its arm has in the list it was sent, whatever the list's order."""
    messages = messages_of(question, methods=[f"{name}: does things" for name in order])
    choice = parse_choice(stand_in({"messages": messages}), count=3)
    assert (method(question), order[choice]) == (arm, arm)


def test_llm_asks_the_stand_in(tmp_path, monkeypatch):
    """The policy that the environment describes is answered by the stand-in; after the block nobody listens."""
    query = Query(text="What was the former job of the leader of the galley service?")
    arms = tuple(map(ArmName, ARMS))
    with run("llm", tmp_path) as environment:
        policy = make_policy("llm", params=load(environ=environment).settings.policy.params)
        monkeypatch.setenv(policy.params["api_key_env"], environment[policy.params["api_key_env"]])
        inside = pmf_of_one(policy, query, features=None, arms=arms)
    outside = pmf_of_one(policy, query, features=None, arms=arms)
    assert (inside.facts["llm"]["choice"], inside.facts["llm"]["failed"]) == ("multi_step", None)
    assert outside.facts["llm"]["failed"] == "connection"
