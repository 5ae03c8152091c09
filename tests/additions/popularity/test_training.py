"""`ragbandit policy train` of `popularity`."""

import json

from ragbandit.router.offline.logs.tables import read_table
from ragbandit.testing.policies import ARMS
from tests.support.training import counts_in, counts_of


def test_popularity_is_judged_on_its_training_rows(train, table, tmp_path):
    """`popularity` holds nothing out: its matrix counts the choices on all rows, and the screen names them."""
    mentions = {"dracula": 9, "born": 5, "city": 1}
    counts = tmp_path / "counts.json"
    counts.write_text(json.dumps({"format": 1, "mentions": mentions}))
    words = ("--policy", "popularity", "--table", table, "--param", f"popularity.counts={counts}")
    report = json.loads(train(*words, "--out", "first", "--json").stdout)

    def chosen(row):
        return ARMS[0] if mentions[row.question.split()[1]] >= report["threshold"] else ARMS[1]

    confusion = report["confusion"]
    assert (confusion["judged_on"], confusion["questions"]) == ("training", 24)
    assert counts_in(confusion) == counts_of(read_table(table).rows, chosen=chosen)
    shown = train(*words, "--out", "second").output
    assert "judged on" in shown
    assert "24 training rows" in shown
    assert "Confusion matrix in %" in shown
    assert "multi_step (12)" in shown
