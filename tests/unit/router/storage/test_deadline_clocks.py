"""In files that delete, expire or give up, the host's clock is only the time of a row."""

import ast
import re
from pathlib import Path

from ragbandit.router import storage

ROOT = Path(storage.__file__).parents[2]
ENDS = re.compile(r"\bdelete\(|drop_jobs\(|\.unlink\(|\bexpire\(|\.claim\(|\.fail\(|put_back\(|forget\w*\(")
#: functions and classes that store the time
STORED_BY = {
    "no_reservation",
    "charge_lost",
    "retire",
    "shared_secret",
    "Feedback",
    "record",
    "partial",
    "pack",
    "unrun_outcome",
    "keep",  # it stores the position of a pairing
    "make_outcome",
}
#: file -> number of other uses: the time of the decision by which another arm takes over, and of its budget
OTHER_USES = {"workers/running/answer_job.py": 1}


def wrong_uses(text):
    """Lines with `time.time` that are not the argument of a function in STORED_BY, if the file ends something."""
    if not ENDS.search(text):
        return []
    tree = ast.parse(text)
    uses = {id(n): n.lineno for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n) == "time.time"}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func).rpartition(".")[2]
        if name in STORED_BY and not (name == "partial" and ast.unparse(call.args[0]) not in STORED_BY):
            for keyword in call.keywords:
                if isinstance(keyword.value, ast.Call):
                    uses.pop(id(keyword.value.func), None)
    return sorted(uses.values())


def test_nothing_ends_by_the_clock_of_a_host():
    """Retention, queues, totals, the learner and golden questions use DeadlineClock or the steady clock."""
    files = [
        file
        for folder in ("router/storage", "workers", "ragbandit/additions")
        for file in (ROOT / folder).rglob("*.py")
    ]
    wrong = {str(file.relative_to(ROOT)): lines for file in files if (lines := wrong_uses(file.read_text()))}
    assert len(files) > 80
    assert {file: lines for file, lines in wrong.items() if len(lines) > OTHER_USES.get(file, 0)} == {}


def test_the_check_sees_a_wrong_clock():
    """A queue that claims by time.time is seen, a row with the time is not."""
    assert wrong_uses("queue.claim(now=time.time())") == [1]
    assert wrong_uses("def f(clock=time.time):\n    delete(x)") == [1]
    assert wrong_uses("delete(x)\nno_reservation(d, at=time.time())") == []
