"""A file of golden questions is checked before a service starts."""

import pytest

from tests.support import command


@pytest.mark.parametrize("verb", ["validate", "up"])
@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "golden.jsonl cannot be read: No such file or directory"),
        ("", "golden.jsonl: the file has no rows"),
        ('{"question": "Who?"}', "golden.jsonl:1 answers: this question has no right answers"),
    ],
)
def test_golden_questions_that_cannot_be_asked_end_the_command(tmp_path, monkeypatch, verb, content, fault):
    """`validate` and `up` end with exit code 2 if the golden questions are missing, empty or without answers."""
    if content is not None:
        (tmp_path / "golden.jsonl").write_text(content)
    monkeypatch.chdir(tmp_path)
    arms = "arms: {a: {run_by: caller}, b: {run_by: caller}}"
    (tmp_path / "config.yaml").write_text(f"{arms}\nencoder: {{model: hashing}}\nlearning: {{golden: golden.jsonl}}\n")
    done = command.run(verb)
    assert done.exit_code == 2
    assert f"learning.golden: {fault}" in done.output
    assert not (tmp_path / ".ragbandit").exists()
