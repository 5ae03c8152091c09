"""`make demo POLICY=adaptive_rag` trains the policy first."""

import json
from itertools import pairwise

import pytest

from ragbandit.examples.handbook.policies import FITTING, TRAINED
from ragbandit.router.cli.store import parse_policies
from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs.tables import read_table
from tests.support.additions import needs
from tests.support.demo import QUESTIONS, run

pytestmark = needs("local_models")  # the configuration of the demo has its keys


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
    assert parse_policies([name], params=given, settings=Settings().policy)[name] == FITTING
