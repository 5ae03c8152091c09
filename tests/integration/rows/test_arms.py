"""Each arm, from a configuration and an index on disk to an answer of a language model with random weights."""

import json

import pytest
import yaml

from ragbandit.strategies.arms.notes import AdaptiveNoteParams
from ragbandit.strategies.registry import built_in_arms
from tests.support import command
from tests.support.logs.log_rows import write_json
from tests.support.tiny_models import tiny_writer

#: words that a model trained for Self-RAG writes (`self_rag_trained`)
REFLECTIONS = (
    *("[No Retrieval]", "[Retrieval]", "[Continue to Use Evidence]", "[Relevant]", "[Irrelevant]"),
    *("[Fully supported]", "[Partially supported]", "[No support / Contradictory]"),
    *(f"[Utility:{number}]" for number in range(1, 6)),
)
#: arms that call a server or a function; docs/rows.md names their tests
ELSEWHERE = ("callable", "http", "model")
#: arms that may answer without a search
MAY_KNOW = {"no_retrieval", "seakr"}
#: arm -> its params in config.yaml
ARMS = {
    **{name: {} for name in built_in_arms() if name not in ("cascade", *ELSEWHERE)},
    "adaptive_note_every": {"class": "adaptive_note", "keep": "every"},
    "paper_notes": {"class": "adaptive_note", "prompts": "paper", "updates": 1},
    "paper_thoughts": {"class": "multi_step", "prompts": "paper", "rounds": 1},
    "rq_rag_tree": {"class": "rq_rag", "tree": True},
    "cascade": {"first": "no_retrieval", "then": "single_step", "empty": True, "differs_from": "multi_step"},
}
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


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Arm -> (its row of `evaluate`, its stored answer), for a model that only decodes."""
    model = tiny_writer("llama", positions=4096, words=REFLECTIONS)
    generator = {"model": model, "trained_tokens": list(REFLECTIONS)}
    return evaluated(tmp_path_factory.mktemp("rows"), arms=ARMS, strategy="all", generator=generator)


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_answers(rows, arm):
    """The arm answers by calls of its model, after a search unless it may do without."""
    row, stored = rows[arm]
    assert (row["questions"], row["failed"]) == (1, 0), row["failures"]
    assert stored["answer"]
    assert stored["cost"]["llm_calls"] >= 1
    assert arm in MAY_KNOW or stored["cost"]["retriever_calls"] >= 1
    assert row["completion_tokens"] == stored["cost"]["completion_tokens"] > 0


def test_a_note_without_comparison_is_extended_to_the_last_round(rows):
    """With `keep: every` no update is compared or dropped, so only the cap on rounds ends the note."""
    assert rows["adaptive_note_every"][1]["steps"] == 1 + AdaptiveNoteParams().updates


def test_a_model_with_an_encoder_answers(tmp_path):
    """FLAN-T5's kind of model, tiny and random, answers in the papers' three arms from its configuration."""
    arms = {"no_retrieval": {}, "single_step": {}, "multi_step": {}}
    rows = evaluated(tmp_path, arms=arms, strategy=",".join(arms), generator={"model": tiny_writer("t5")})
    for arm in arms:
        row, stored = rows[arm]
        assert (row["questions"], row["failed"]) == (1, 0), row["failures"]
        assert stored["answer"]
        assert min(stored["cost"]["prompt_tokens"], stored["cost"]["completion_tokens"]) > 0
