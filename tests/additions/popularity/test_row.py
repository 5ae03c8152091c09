"""Adaptive Retrieval from a corpus to decisions: counted, trained on a table, served, verified and replayed."""

import json

import yaml

from ragbandit import Router
from ragbandit.router.config.loading import load
from tests.support import command

CORPUS = [{"id": str(n), "title": "Dracula", "text": "Dracula is read in Paris."} for n in range(9)]
CORPUS += [{"id": f"r{n}", "title": "Zorblax", "text": "Zorblax was never seen."} for n in range(3)]
ARMS = ("no_retrieval", "single_step")


def test_popular_entities_are_answered_without_retrieval(tmp_path):
    """The counts of a corpus and the threshold of a table choose the arm; decisions verify, with these counts only."""
    corpus, table, counts = (tmp_path / name for name in ("corpus.jsonl", "table.jsonl", "counts.json"))
    corpus.write_text("\n".join(map(json.dumps, CORPUS)))
    done = command.run("index", "counts", "--corpus", corpus, "--out", counts, "--json", code=0)
    assert json.loads(done.stdout) == {"file": str(counts), "passages": 12, "names": 3}
    rows = [(f"Who wrote {name} {n}?", name == "Dracula") for name in ("Dracula", "Zorblax") for n in range(4)]
    lines = [
        {"question": text, "correct": dict(zip(ARMS, (int(known), 1), strict=True)), "steps": {ARMS[0]: 0, ARMS[1]: 1}}
        for text, known in rows
    ]
    table.write_text("\n".join(map(json.dumps, lines)))
    param = f"popularity.counts={counts}"
    words = ("--policy", "popularity", "--table", table, "--out", tmp_path / "trained", "--param", param, "--json")
    report = json.loads(command.run("policy", "train", *words, code=0).stdout)
    assert (report["used"], report["quality"], report["threshold"]) == (8, 1.0, 9.0)

    params = {"counts": str(counts), "trained": report["folder"]}
    encoder = {"model": "hashing", "dimension": 16}
    tree = {"data_dir": str(tmp_path / "data"), "encoder": encoder, "policy": {"name": "popularity", "params": params}}
    tree["arms"] = {arm: {"run_by": "caller"} for arm in ARMS}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(tree))
    with Router.open(load(config).settings) as router:
        for text, known in rows:
            decision = router.route(text)
            assert decision.pmf[0 if known else 1] == max(decision.pmf) > 0.9
            assert decision.facts["popularity"] == (9.0 if known else 3.0)
            router.outcome(decision.id, answer="Stoker", steps=1)
            router.feedback(decision.id, rating=True)
        assert router.learn() == len(rows)
        assert router.verify(deep=True).ok
    done = command.run("replay", "--policy", "popularity", "--config", config, "--json")
    assert done.exit_code == 0, done.output
    with_other_counts = json.loads(counts.read_text()) | {"mentions": {"zorblax": 12, "dracula": 1}}
    counts.write_text(json.dumps(with_other_counts))
    done = command.run("verify", "--deep", "--config", config)
    assert done.exit_code != 0
    assert "another file of counts" in done.output
