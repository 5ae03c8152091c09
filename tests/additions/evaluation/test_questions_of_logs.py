"""Questions of other tools' logs, as runs read them."""

import json

import pytest

from ragbandit.additions.evaluation.labelled_questions import read_questions
from ragbandit.router.config import loading
from ragbandit.shared.errors import InvalidInput
from tests.support import command
from tests.support.additions import needs

pytestmark = needs("other_tools")


def test_what_data_questions_writes_is_read(tmp_path):
    """The file that `data questions` writes has questions and right answers as runs read them."""
    log, out, config = tmp_path / "log.jsonl", tmp_path / "out.jsonl", tmp_path / "config.yaml"
    log.write_text(json.dumps({"id": 1, "prompt": "Who?", "model": "mini", "expected": ["x"]}))
    config.write_text("encoder: {model: hashing}\n")
    command.run("data", "questions", log, "-o", out, "-c", config, code=0)
    (first,) = read_questions(out, family="ours")
    assert (first.question, first.answers) == ("Who?", ["x"])


def test_the_line_for_a_judge_is_a_configuration(tmp_path):
    """The line that `data questions` and `advise` print for questions without right answers makes a judge."""
    log, out, config = tmp_path / "log.jsonl", tmp_path / "out.jsonl", tmp_path / "config.yaml"
    log.write_text(json.dumps({"question": "Who wrote Dracula?"}))
    config.write_text("encoder: {model: hashing}\n")
    said = json.loads(command.run("data", "questions", log, "-o", out, "-c", config, "--json", code=0).stdout)
    line = said["what this log shows"][-2].partition("configuration: ")[2]
    config.write_text(f"encoder: {{model: hashing}}\n{line}\n")
    assert loading.load(config).settings.judge.generator.model == "gpt-4o-mini"
    with pytest.raises(InvalidInput, match="no right answers") as refused:
        read_questions(out, family="ours", remedy=line)
    assert refused.value.remedy == line
