"""Checks of the judge's settings before anything is loaded: what is refused, with field and remedy."""

import pytest

from ragbandit.router.config.settings import JudgeSettings
from ragbandit.shared.errors import ConfigError
from ragbandit.workers.setup.judge_checks import check_judge
from tests.support.additions import needs

SERVER = {"name": "openai", "model": "gpt", "openai": {"base_url": "http://127.0.0.1:9/v1"}}


def judging(generator=None, **more):
    return JudgeSettings.model_validate({"generator": generator, **more})


def test_a_judge_that_can_be_made_is_taken():
    """No judge, one with room for the rubric, and one whose room is not known are no trouble; nobody is asked."""
    check_judge(judging(SERVER), fetch=False)
    check_judge(judging(), fetch=False)
    check_judge(judging({**SERVER, "context_tokens": 8192}), fetch=False)


@pytest.mark.parametrize(
    ("found", "field", "words"),
    [
        (judging({**SERVER, "context_tokens": 2048}), "judge.generator.context_tokens", "8192"),
        (judging({**SERVER, "context_tokens": 8192}, max_tokens=8000), "judge.generator.context_tokens", "max_tokens"),
        (
            judging({"name": "openai", "model": "gpt", "context_tokens": 8192}),
            "judge.generator.openai.api_key_env",
            "OPENAI_API_KEY",
        ),
        (judging(templates={"rubric": "[body]\n{question}"}), "judge.templates.rubric", "{fence}"),
        (judging(templates={"rubric": "nowhere.txt"}), "judge.templates.rubric", "nowhere.txt"),
    ],
)
def test_what_no_worker_could_make_is_refused(monkeypatch, found, field, words):
    """Each names the judge's own setting and what to do."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigError) as caught:
        check_judge(found, fetch=False)
    assert caught.value.field == field
    assert words in str(caught.value)


@needs("local_models")
def test_the_embedded_model_is_no_judge(caplog):
    """The default of `generator` as a judge is warned of: its replies are no JSON."""
    check_judge(judging({}), fetch=False)
    (record,) = caplog.records
    assert "too small to judge" in record.getMessage()
