"""A dsjson file as the tool that it is for reads it: Vowpal Wabbit's command line."""

import math
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from ragbandit.router.offline.logs import read_rows, write_rows
from tests.support.logs.log_rows import logs, plain_rows, write_json

ARGUMENTS = ["--cb_explore_adf", "--epsilon", "0.2", "-q", "ea", "--learning_rate", "0.1"]


@pytest.fixture(scope="session")
def vw():
    return pytest.importorskip("vowpal_wabbit_next", reason="no wheel for this Python")


def printed(vw, path, *arguments):
    """What the command vw says of a file: number of examples, average loss."""
    said, _ = vw.run_cli_driver([*ARGUMENTS, *arguments, "--dsjson", "-d", str(path)], onethread=True)
    examples = int(re.search(r"number of examples = (\d+)", said)[1])
    return examples, float(re.search(r"average loss = (\S+)", said)[1])


@pytest.mark.parametrize("cb_type", ["ips", "mtr"])
def test_command_line_agrees(tmp_path, vw, cb_type):
    """VW's progressive average loss over our file is minus the IPS value, by our arithmetic on its predictions."""
    rows = plain_rows(400)
    write_rows(tmp_path / "log.dsjson", rows)
    workspace = vw.Workspace([*ARGUMENTS, "--cb_type", cb_type, "--quiet"])
    parser, terms = vw.DSJsonFormatParser(workspace), []
    for line, row in zip((tmp_path / "log.dsjson").read_text().splitlines(), rows, strict=True):
        pmf = dict(workspace.predict_one(parser.parse_json(line)))
        drawn = row.decision.arms.index(row.decision.arm)
        terms.append(row.reward.value * pmf[drawn] / row.decision.propensity)
        workspace.learn_one(parser.parse_json(line))
    examples, loss = printed(vw, tmp_path / "log.dsjson", "--cb_type", cb_type)
    assert examples == 400
    assert loss == pytest.approx(-math.fsum(terms) / 400, abs=2e-6)


@given(rows=logs())
@settings(max_examples=15, deadline=None)
def test_command_line_reads_any_row(vw, rows):
    """Whatever texts a row holds, VW reads it as one labelled example."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.dsjson"
        write_rows(path, rows)
        examples, loss = printed(vw, path)
    assert examples == len(rows)
    assert math.isfinite(loss)


def learned(vw, path, folder):
    """What VW learned of every feature in a file, by name."""
    model = folder / f"{path.stem}.txt"
    vw.run_cli_driver(
        ["--cb_explore_adf", "--quiet", "--invert_hash", str(model), "--dsjson", "-d", str(path)], onethread=True
    )
    lines = [line.partition(":") for line in model.read_text().splitlines() if "^" in line]
    return {name: weights for name, _, weights in lines}


def test_objects_are_namespaces(tmp_path, vw):
    """VW learns from an object in the context as from a namespace of its name."""
    rows = [
        replace(
            row, decision=replace(row.decision, query=replace(row.decision.query, context={"User": {"age": n + 1}}))
        )
        for n, row in enumerate(plain_rows(5))
    ]
    write_rows(tmp_path / "log.dsjson", rows)
    assert "User^age" in learned(vw, tmp_path / "log.dsjson", tmp_path)


def test_foreign_features_survive(tmp_path, vw):
    """VW learns the same weights from a log from elsewhere as from our writing of it."""
    several = [{"Action": {"id": "fast", "price": 1.5}}, {"Action": {"id": "deep", "price": 4}, "tags": {"x": 1}}]
    events = [
        {
            "_label_cost": -0.125 * number,
            "_label_probability": 0.25,
            "_label_Action": 2,
            "_labelIndex": 1,
            "o": [{"v": 0.125 * number, "EventId": f"e{number}"}],
            "Timestamp": "2026-01-31T12:00:00Z",
            "Version": "1",
            "EventId": f"e{number}",
            "a": [2, 1],
            "c": {"User": {"age": number, "city": "Rome"}, "hours": [1, 2], "_text": "likes tea", "_multi": several},
            "p": [0.25, 0.75],
            "VWState": {"m": "m1"},
        }
        for number in range(1, 6)
    ]
    write_json(tmp_path / "theirs.dsjson", events)
    write_rows(tmp_path / "ours.dsjson", read_rows(tmp_path / "theirs.dsjson"))
    theirs = learned(vw, tmp_path / "theirs.dsjson", tmp_path)
    assert {"User^age", "User^cityRome", "Action^price", "tags^x"} <= set(theirs)
    assert learned(vw, tmp_path / "ours.dsjson", tmp_path) == theirs
