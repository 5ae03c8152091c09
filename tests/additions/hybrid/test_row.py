"""The retriever `hybrid` as a user types it."""

import json

from tests.integration.cli.test_index_cli import built, run  # noqa: F401 - one is a fixture
from tests.support import command
from tests.support.logs.replay_logs import close
from tests.support.tiny_models import tiny_encoder


def test_both_halves_of_a_hybrid_are_built_and_searched(run, tmp_path, other_torch):  # noqa: F811
    """Words and vectors: both are built, described and searched by one name, also by another processor."""
    (tmp_path / "config.yaml").write_text(json.dumps({"retriever": {"name": "hybrid", "model": tiny_encoder()}}))
    facts = built(run)
    assert facts["dense"]["sha256"] == facts["bm25"]["sha256"]
    assert json.loads(run("search", "--json")[1]) == facts
    code, out, err = run("search", "longest river", "--json")
    assert code == 0, err
    hits = json.loads(out)
    assert sorted(hit["id"] for hit in hits) == ["film", "paris", "vistula"]
    there = json.loads(other_torch.call(command.printed_in, tmp_path, "index", "search", "longest river", "--json"))
    close(there, hits, within=1e-3)
