"""Folds are by question: the same in memory, in pieces of a file and in parts of a log."""

from dataclasses import replace

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.estimation.bandit_log import BY_FEATURES, BY_ID, BY_TEXT
from ragbandit.router.offline.logs import write_rows
from ragbandit.router.offline.replay import memory_log, open_log, replay
from tests.support.logs.replay_logs import close, lived_rows, with_text

CANDIDATES = ["fixed:deep", "uniform"]


def without_features(row):
    return replace(row, decision=replace(row.decision, features=None))


def mixed_rows(count=120):
    """Rows of which some have no text, and some of these no features; every question comes four times."""
    rows = []
    for at, row in enumerate(lived_rows(count)):
        features = np.full(4, at // 4, dtype=np.float32)
        row = with_text(replace(row, decision=replace(row.decision, features=features)), f"question {at // 4}")
        if at // 4 % 3:
            row = with_text(row, "")
        rows.append(without_features(row) if at // 4 % 3 == 2 else row)
    return rows


def test_a_question_is_known_by_its_text_else_its_features_else_its_decision():
    """Equal texts are one question whatever the features, and so are equal features without text; ids never are."""
    log = memory_log(mixed_rows()).read().log
    assert log.recognised_by.reshape(-1, 4).tolist() == [
        [(BY_TEXT, BY_FEATURES, BY_ID)[at % 3]] * 4 for at in range(30)
    ]
    sizes = [len(np.unique(group)) for group in log.questions.reshape(-1, 4)]
    assert sizes == [(1, 1, 4)[at % 3] for at in range(30)]
    assert len(np.unique(log.questions)) == 20 + 40


def test_memory_pieces_and_parts_agree(tmp_path, monkeypatch):
    """With repeated questions, and with questions that only features tell, one file and three give memory's numbers."""
    monkeypatch.setattr("ragbandit.router.offline.logs.parquet.BATCH", 29)
    rows = [row for row in mixed_rows(240) if row.decision.features is not None]
    write_rows(tmp_path / "whole.parquet", rows)
    (tmp_path / "parts").mkdir()
    for part, (start, stop) in enumerate(((0, 1), (1, 77), (77, len(rows)))):
        write_rows(tmp_path / "parts" / f"{part}.parquet", rows[start:stop])
    whole = replay(open_log(tmp_path / "whole.parquet", config=Settings()), candidates=CANDIDATES)
    parts = replay(open_log(tmp_path / "parts", config=Settings()), candidates=CANDIDATES)
    close(replace(parts, log=whole.log), whole)
    memory = replay(memory_log(rows), candidates=CANDIDATES)
    close(whole.candidates, memory.candidates)
    assert any("80 rows have no text" in note for note in whole.notes)
