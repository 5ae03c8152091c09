"""`make demo POLICY=NAME` has params for every policy, and what they name is made as it should be."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from ragbandit.examples.handbook.policies import FITTING, PARAMS, TRAINED, prepared
from ragbandit.router.cli.store import parse_policies
from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs.tables import read_table
from ragbandit.router.policies import make_policy
from tests.support.policies import POLICIES
from tests.support.tiny_models import tiny_counts, tiny_encoder, tiny_trained

HANDBOOK = Path(__file__).parents[3] / "examples" / "handbook"
QUESTIONS = [json.loads(line) for line in (HANDBOOK / "questions.jsonl").read_text("utf-8").splitlines()]
#: the real nets are too large for a unit test
SMALL = {"mba_paper": {"model": tiny_encoder(), "max_tokens": 16}} | {key: {"max_tokens": 16} for key in TRAINED}

#: files that are made before the policy runs
MADE = {"popularity": {"counts": tiny_counts()}}


def run(name, data, **more):
    """`prepared` with the demo's settings, data in `data`."""
    environment = {"RAGBANDIT_CONFIG": str(HANDBOOK / "config.yaml"), "RAGBANDIT_DATA_DIR": str(data)}
    settings = {"environment": environment, "questions": QUESTIONS, "console": Console(quiet=True)}
    return prepared(name, **settings | {"ragbandit": None} | more)


@pytest.mark.parametrize("name", POLICIES)
def test_params_are_accepted(name):
    """The policy is made with the demo's params, and a folder if it is trained first."""
    trained = {"trained": tiny_trained(name)} if name in TRAINED else MADE.get(name, {})
    params = PARAMS.get(name, {})
    policy = make_policy(name, params=params | trained | SMALL.get(name, {}))
    assert {key: policy.params[key] for key in params} == params


def test_names_of_the_corpus_are_counted(tmp_path):
    """`index counts` is called for `popularity` with the demo's corpus and the file that the params name."""
    asked = []
    policy = load(environ=run("popularity", tmp_path, ragbandit=asked.extend)).settings.policy
    assert asked[:3] == ["index", "counts", "--corpus"]
    assert Path(asked[3]).name == "corpus.jsonl"
    assert policy.params == PARAMS["popularity"] | {"counts": asked[5]}


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {*TRAINED, *MADE}))
def test_settings_read_back_as_they_were_meant(name, tmp_path):
    """The environment that the service is given names the policy with these very params, and no incumbent."""
    policy = load(environ=run(name, tmp_path)).settings.policy
    assert (policy.name, policy.params, policy.incumbent) == (name, PARAMS.get(name, {}), None)


@pytest.mark.parametrize("name", TRAINED)
def test_training_reads_the_table_that_was_written(name, tmp_path):
    """`policy train` is called for the policy with a table of all questions and a folder that the params name."""
    asked, given = {}, []

    def ragbandit(arguments):
        asked.update(zip(arguments[2::2], arguments[3::2], strict=False), verb=arguments[:2])
        given.extend(after for word, after in pairwise(arguments) if word == "--param")
        return json.dumps({"epochs": [{"accuracy": 0.5}], "best_epoch": 1, "validation_rows": 13})

    params = load(environ=run(name, tmp_path, ragbandit=ragbandit)).settings.policy.params
    rows = read_table(asked["--table"]).rows
    assert (asked["verb"], asked["--policy"], asked["--out"]) == (["policy", "train"], name, params["trained"])
    assert [row.question for row in rows] == [question["question"] for question in QUESTIONS]
    assert parse_policies([name], params=given, settings=Settings())[name] == FITTING
