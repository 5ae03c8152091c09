"""The files as the tools that they are for read them: Vowpal Wabbit's command line, OBP's estimators."""

import importlib
import math
import re
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from ragbandit.router.offline.logs import read_rows, write_rows
from tests.support.logs.log_rows import logs, plain_rows, write_json

ARGUMENTS = ["--cb_explore_adf", "--epsilon", "0.2", "-q", "ea", "--learning_rate", "0.1"]


@pytest.fixture(scope="session")
def vw():
    return pytest.importorskip("vowpal_wabbit_next", reason="no wheel for this Python")


@pytest.fixture(scope="session")
def obp():
    """OBP, whose packages warn a lot while they are imported."""
    if importlib.util.find_spec("obp") is None:
        pytest.skip("obp is not installed: no Python of ours is supported by it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("obp.ope")


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
@settings(max_examples=30, deadline=None)
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


def as_obp(path):
    """The file as OBP's users load it."""
    return {name: array[()] for name, array in np.load(path).items()} | {"position": None}


def test_obp_takes_the_file(tmp_path, obp):
    """OBP's IPW and DR over our file are the plain formulas over our rows."""
    rows = plain_rows(300)
    write_rows(tmp_path / "log.npz", rows)
    feedback = as_obp(tmp_path / "log.npz")
    assert feedback["context"].shape == (300, 4)
    assert np.array_equal(feedback["pi_b"][np.arange(300), feedback["action"], 0], feedback["pscore"])
    dist = np.full((300, 3, 1), 1 / 3)
    predicted = np.tile(np.linspace(0.2, 0.6, 3), (300, 1))[:, :, None]
    ope = obp.OffPolicyEvaluation(
        bandit_feedback=feedback, ope_estimators=[obp.InverseProbabilityWeighting(), obp.DoublyRobust()]
    )
    found = ope.estimate_policy_values(action_dist=dist, estimated_rewards_by_reg_model=predicted)
    reward = np.array([row.reward.value for row in rows])
    weight = np.array([1 / 3 / row.decision.propensity for row in rows])
    drawn = np.array([row.decision.arms.index(row.decision.arm) for row in rows])
    assert found["ipw"] == pytest.approx((weight * reward).mean(), rel=1e-12)
    corrected = predicted.mean(axis=1)[:, 0] + weight * (reward - predicted[np.arange(300), drawn, 0])
    assert found["dr"] == pytest.approx(corrected.mean(), rel=1e-12)


def test_obps_own_log_is_read(tmp_path, obp):
    """A log of OBP's synthetic dataset, saved with np.savez, gives the same value by our rows as by its estimator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = importlib.import_module("obp.dataset")
        made = dataset.SyntheticBanditDataset(n_actions=4, dim_context=3, reward_type="binary", random_state=7)
        feedback = made.obtain_batch_bandit_feedback(n_rounds=500)
    np.savez(tmp_path / "theirs.npz", **feedback)
    rows = list(read_rows(tmp_path / "theirs.npz"))
    assert len(rows) == 500
    uniform = np.full((500, 4, 1), 0.25)
    ope = obp.OffPolicyEvaluation(bandit_feedback=feedback, ope_estimators=[obp.InverseProbabilityWeighting()])
    ours = math.fsum(0.25 / row.decision.propensity * row.reward.value for row in rows) / 500
    assert ope.estimate_policy_values(action_dist=uniform)["ipw"] == pytest.approx(ours, rel=1e-9)


def test_obp_without_features(tmp_path, obp):
    """Rows without features are still a bandit_feedback: OBP takes the zeros for a context."""
    rows = [replace(row, decision=replace(row.decision, features=None)) for row in plain_rows(50)]
    write_rows(tmp_path / "log.npz", rows)
    feedback = as_obp(tmp_path / "log.npz")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sklearn.linear_model import LinearRegression

        model = obp.RegressionModel(n_actions=3, base_model=LinearRegression())
        taken = {key: feedback[key] for key in ("context", "action", "reward", "position")}
        assert model.fit_predict(**taken, random_state=1).shape == (50, 3, 1)
    assert all(row.decision.features is None for row in read_rows(tmp_path / "log.npz"))
