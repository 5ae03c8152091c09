"""`make demo POLICY=popularity` counts the names of its corpus."""

from pathlib import Path

from ragbandit.examples.handbook.policies import PARAMS
from ragbandit.router.config.loading import load
from tests.support.additions import needs
from tests.support.demo import run

pytestmark = needs("local_models")  # the configuration of the demo has its keys


def test_names_of_the_corpus_are_counted(tmp_path):
    """`index counts` is called for `popularity` with the demo's corpus and the file that the params name."""
    asked = []
    policy = load(environ=run("popularity", tmp_path, ragbandit=asked.extend)).settings.policy
    assert asked[:3] == ["index", "counts", "--corpus"]
    assert Path(asked[3]).name == "corpus.jsonl"
    assert policy.params == PARAMS["popularity"] | {"counts": asked[5]}
