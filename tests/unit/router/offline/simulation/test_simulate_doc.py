"""The lines of Python in docs/simulate.md."""

import json
import re
from pathlib import Path

DOC = Path(__file__).parents[5] / "docs" / "simulate.md"


def test_the_lines_of_the_document(tmp_path, monkeypatch):
    """The Python block in docs/simulate.md runs as it stands on a table of its format."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"question": f"Which {n}?", "correct": {"a": n % 2, "b": 1}, "steps": {"a": 0, "b": 1 + n % 3}}
        for n in range(20)
    ]
    Path("T.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (block,) = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.S)
    names = {}
    exec(block, names)
    assert {"mba", "uniform"} <= {row.policy for row in names["rows"]}
