"""`make handbook-table`: runs every arm of the demo once on every question of the handbook, and writes the table.

`ragbandit evaluate` runs the arms with the default model and stores every answer under .ragbandit/demo/table, so the
same command continues an interrupted run. Writes table.jsonl, as `ragbandit advise` reads it, and table.json: the
command, the model and its hash, and the date. On another processor the model may choose differently between two almost
equally likely words, so a new table may differ.
"""

import argparse
import hashlib
import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from ragbandit.examples.handbook.command import ARMS, DATA, HERE, Row, environment_of, ragbandit
from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.weights import resolve
from ragbandit.shared.errors import RagBanditError

console = Console(emoji=False)


def main() -> None:
    """Run the missing answers, and write the two files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder for index and answers")
    parser.add_argument("--config", type=Path, default=HERE / "config.yaml", help="settings other than the demo's")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for table.jsonl and table.json")
    parser.add_argument("--concurrency", type=int, default=8, help="number of answers at the same time")
    parser.add_argument("--limit", type=int, help="number of questions to ask; default: all")
    chosen = parser.parse_args()
    data = chosen.data.absolute()
    environment = environment_of(chosen.config.absolute(), data=data)
    settings = load(environ=environment).settings
    ragbandit(["index", "build", "--corpus", str(HERE / "corpus.jsonl")], environment=environment)
    (data / "table").mkdir(parents=True, exist_ok=True)
    verb = ["evaluate", "--questions", str(HERE / "questions.jsonl"), "--strategy", ",".join(ARMS)]
    verb += ["--concurrency", str(chosen.concurrency)]
    folder = data / "table"
    kept = ["--answers", str(folder / "answers.jsonl"), "--resume", "--table", str(folder / "table.jsonl")]
    limit = [] if chosen.limit is None else ["--limit", str(chosen.limit)]
    rows = json.loads(ragbandit([*verb, *kept, *limit, "--json"], environment=environment, seen=True, timeout_s=None))
    failed = sum(row["failed"] for row in rows)
    if failed:
        raise SystemExit(f"{failed} answers failed: no table is written")
    (chosen.out / "table.jsonl").write_bytes((folder / "table.jsonl").read_bytes())
    near = "examples/handbook"
    said = " ".join(["ragbandit", *verb[:2], f"{near}/questions.jsonl", *verb[3:], "--table", f"{near}/table.jsonl"])
    facts = {"made_by": "make handbook-table", "command": said, **_facts(settings)}
    (chosen.out / "table.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    console.print(f"{chosen.out / 'table.jsonl'}: {rows[0]['questions']} questions", soft_wrap=True, highlight=False)


def _facts(settings: Settings) -> Row:
    """Facts on which the answers depend, and the date."""
    generator = settings.generator
    local = generator.name == "local"
    weights = resolve(generator.model, setting="generator.model") if local else None
    return {
        "model": generator.model if local else generator.name,
        "weights": None if weights is None else weights.source,
        "weights_sha256": None if weights is None else weights.sha256,
        "precision": getattr(generator, "precision", None),
        "bfloat16_in_hardware": _bfloat16(),
        "reward_quality": settings.reward.quality,
        "corpus_sha256": _sha256(HERE / "corpus.jsonl"),
        "questions_sha256": _sha256(HERE / "questions.jsonl"),
        "ragbandit": version("ragbandit"),
        "python": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _bfloat16() -> bool:
    """Whether this processor computes in bfloat16, so that `precision: auto` is bfloat16."""
    import torch  # this import takes seconds

    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("stopped; the same command resumes from here") from None
    except RagBanditError as error:
        raise SystemExit(f"{error.code}: {error}") from error
