"""The classifiers on T5's encoder: a random T5 of two layers."""

import json
from pathlib import Path

import pytest

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.shared.types import Query
from ragbandit.testing.policies import ARMS
from tests.additions.classifiers.examples import adaptive, rows_by_word
from tests.support import command
from tests.support.finetuned import READING, output_of
from tests.support.tiny_models import tiny_t5


@pytest.mark.parametrize("name", ["adaptive_rag", "multi_label"])
def test_policy_train_writes_a_folder_that_decides(name, tmp_path):
    """`policy train` on a T5 learns what the first word means; its folder has the encoder without the decoder."""
    lines = [
        {"id": row.id, "question": row.question, "correct": dict(row.correct), "steps": dict(row.steps)}
        for row in rows_by_word(40)
    ]
    table, out = tmp_path / "table.jsonl", tmp_path / "out"
    table.write_text("\n".join(map(json.dumps, lines)))
    params = READING | {"model": tiny_t5(), "epochs": 10, "batch": 4, "learning_rate": 1e-2}
    words = [word for key, value in params.items() for word in ("--param", f"{name}.{key}={json.dumps(value)}")]
    done = command.run("policy", "train", "--policy", name, "--table", table, "--out", out, *words, "--json")
    assert done.exit_code == 0, done.output
    choice = {"choice": "cheapest"} if name == "multi_label" else {}
    policy = make_policy(name, params=READING | {"trained": str(out)} | choice)
    for word, place in (("who", 0), ("when", 2)):
        pmf = pmf_of_one(policy, Query(text=f"{word} born city ?"), features=None, arms=ARMS).pmf
        assert pmf[place] == 1.0
    whole, encoder = (Path(folder) / "model.safetensors" for folder in (tiny_t5(), out))
    assert encoder.stat().st_size < 0.6 * whole.stat().st_size


def test_trained_folder_decides_as_the_fitted_policy(tmp_path):
    """All weights of the encoder are in the folder: the probabilities are those of the fitted policy, to rounding."""
    policy = adaptive(model=tiny_t5(), learning_rate=1e-2)
    policy.fit(rows_by_word(12))
    policy.save(tmp_path / "out")
    again = adaptive(trained=str(tmp_path / "out"))
    for text in ("who wrote dracula ?", "when", ""):
        wanted = output_of(policy, text).facts["probability"]
        assert output_of(again, text).facts["probability"] == pytest.approx(wanted, abs=policy.tolerance)
    assert again.tolerance == policy.tolerance < 1e-3
