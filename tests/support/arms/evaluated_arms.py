"""Arms from a configuration and an index on disk to answers, by `evaluate`."""

import json

import yaml

from tests.support import command
from tests.support.logs.log_rows import write_json

CORPUS = [
    {"id": "jaws", "title": "Jaws", "text": "Jaws was made by Spielberg in 1975."},
    {"id": "ohio", "title": "Ohio", "text": "Ohio is a state. Its capital is Columbus."},
]


def evaluated(folder, *, arms, strategy, generator):
    """Arm -> (its row of `evaluate`, its stored answer)."""
    generator = {"name": "local", "precision": "float32", "context_tokens": 4096, **generator}
    tree = {"data_dir": str(folder / "data"), "encoder": {"model": "hashing"}, "generator": generator, "arms": arms}
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(tree))
    write_json(folder / "corpus.jsonl", CORPUS)
    write_json(folder / "questions.jsonl", [{"question": "Who made Jaws?", "answers": ["Spielberg"]}])
    command.run("index", "build", "--corpus", folder / "corpus.jsonl", "--config", config, code=0)
    given = ["--questions", folder / "questions.jsonl", "--answers", folder / "answers.jsonl", "--config", config]
    done = command.run("evaluate", *given, "--strategy", strategy, "--json")
    stored = {row["arm"]: row for row in map(json.loads, (folder / "answers.jsonl").read_text().splitlines())}
    return {row["strategy"]: (row, stored[row["strategy"]]) for row in json.loads(done.stdout)}


def check_answer(row, stored, *, may_know):
    """The arm answered by calls of its model, after a search unless it may do without."""
    assert (row["questions"], row["failed"]) == (1, 0), row["failures"]
    assert stored["answer"]
    assert stored["cost"]["llm_calls"] >= 1
    assert may_know or stored["cost"]["retriever_calls"] >= 1
    assert row["completion_tokens"] == stored["cost"]["completion_tokens"] > 0
