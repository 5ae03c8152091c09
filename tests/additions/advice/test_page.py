"""docs/advise.md: its tables and settings."""

import json
import re

from tests.support import command
from tests.support.logs.log_rows import write_json
from tests.support.pages import DOCS


def test_the_tables_of_advise_are_charged(tmp_path, monkeypatch):
    """Tables with the columns that docs/advise.md shows get a verdict with the settings that the page shows."""
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "advise.md").read_text(encoding="utf-8")
    (arms, reward) = re.findall(r"^    ((?:arms|reward): .*)$", page, flags=re.M)
    (tmp_path / "config.yaml").write_text(f"{arms}\n{reward}\nencoder: {{model: hashing, dimension: 16}}\n")
    (head, rows), (row,) = (
        re.findall(r"^    (task_id;.*)\n((?:    t1;.*\n)+)", page, flags=re.M)[0],
        re.findall(r'^    (\{"question".*\})$', page, flags=re.M),
    )
    many = "".join(rows.replace("t1;Who", f"t{number};{number}: who").replace("    ", "") for number in range(20))
    (tmp_path / "answers.csv").write_text(f"{head}\n{many}")
    write_json(tmp_path / "table.jsonl", [json.loads(row) | {"question": f"Question {number}"} for number in range(20)])
    for table in ("answers.csv", "table.jsonl"):
        done = command.run("advise", "--table", table)
        assert done.exit_code in (0, 3, 4), done.output
