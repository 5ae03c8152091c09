"""Which arms the service's own process answers: those that only wait for servers."""

from pathlib import Path
from typing import Any

import pytest

from ragbandit.router.config.loading import load
from ragbandit.workers.setup.generators import inline_arms, needs_workers
from tests.support.additions import needs

OPENAI = {"name": "openai", "model": "m", "openai": {"base_url": "http://127.0.0.1:9/v1"}}
CASES: dict[str, Any] = {
    "a model": ({"class": "model"}, OPENAI, {}, True),
    "a pipeline behind a URL": ({"class": "http", "url": "http://127.0.0.1:9/"}, {"name": "scripted"}, {}, True),
    "no retrieval": ({"class": "no_retrieval"}, OPENAI, {}, True),
    "retrieval from Elasticsearch": ({"class": "single_step"}, OPENAI, {"name": "elasticsearch"}, True),
    "vectors of Elasticsearch": (
        {"class": "single_step"},
        OPENAI,
        {"name": "elasticsearch", "search": "meaning"},
        False,
    ),
    "an index on disk": ({"class": "single_step"}, OPENAI, {"name": "bm25"}, False),
    "a local model": ({"class": "no_retrieval"}, {"name": "local"}, {}, False),
    "a scripted model": ({"class": "no_retrieval"}, {"name": "scripted"}, {}, False),
    "a Python function": ({"class": "callable", "object": "json:dumps"}, OPENAI, {}, False),
}

#: words in the name of a case -> the addition that it needs
ADDITIONS = {"Elastic": "elasticsearch", "a local model": "local_models"}


def settings_of(folder: Path, **tree):
    import yaml

    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump({"data_dir": str(folder / "data"), "encoder": {"model": "hashing"}, **tree}))
    return load(file, environ={}).settings


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[needs(addition) for words, addition in ADDITIONS.items() if words in case])
        for case in CASES
    ],
)
def test_arms_of_the_service(tmp_path, case):
    """An arm runs in the service if all it does is wait for servers."""
    arm, generator, retriever, is_inline = CASES[case]
    settings = settings_of(tmp_path, arms={"a": arm}, generator=generator, retriever=retriever)

    assert bool(inline_arms(settings)) is is_inline
    assert needs_workers(settings) is not is_inline


def test_the_setting_gives_all_arms_to_the_workers(tmp_path):
    """With workers.inline 0 no arm runs in the service."""
    settings = settings_of(tmp_path, arms={"a": {"class": "model"}}, generator=OPENAI, workers={"inline": 0})

    assert inline_arms(settings) == {}
    assert needs_workers(settings)
