"""A log in parts gives the same numbers as the whole log to 1e-9; policies that learn are refused."""

import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs import write_rows
from ragbandit.router.offline.replay import Plan, memory_log, open_log, replay
from ragbandit.shared.errors import InvalidInput
from tests.support.logs.log_rows import write_parquet
from tests.support.logs.replay_logs import ARMS, close, lived_rows

CANDIDATES = ["fixed:deep", "uniform", "column:better"]
ROWS = 400


@cache
def _rows_with_candidate(count):
    """Rows with a candidate's pmf, and a cost that no two rows share."""
    draw = np.random.default_rng(5)
    rows = []
    for row in lived_rows(count):
        cost = float(draw.exponential())
        reward = replace(row.reward, cost=cost, value=row.reward.quality - row.reward.weight * cost)
        rows.append(replace(row, reward=reward, extra={"better": draw.dirichlet(np.ones(3)).tolist()}))
    return rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The log in one file."""
    file = tmp_path_factory.mktemp("whole") / "whole.parquet"
    write_parquet(file, rows_with_candidate())
    return open_log(file, config=Settings())


def rows_with_candidate(count=ROWS):
    return list(_rows_with_candidate(count))


def cut(folder, *edges, rows=None):
    """The log cut at these rows, one file each."""
    rows = rows_with_candidate() if rows is None else rows
    folder.mkdir()
    for number, (start, stop) in enumerate(zip((0, *edges), (*edges, len(rows)), strict=True)):
        write_parquet(folder / f"part-{number}.parquet", rows[start:stop])
    return open_log(folder, config=Settings())


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"segments": ("device", "tenant"), "baseline": "uniform"},
        {"weight": 0.3, "folds": 3},
    ],
)
def test_eight_parts_are_the_whole(whole, tmp_path, plan, monkeypatch):
    """Eight parts in small pieces give the numbers of the one file, by any plan, baseline and segment."""
    expected = replay(whole, candidates=CANDIDATES, plan=Plan(**plan))
    monkeypatch.setattr("ragbandit.router.offline.logs.parquet.BATCH", 29)
    parts = cut(tmp_path / "parts", 1, 3, 100, 150, 151, 300, 390)
    close(replace(replay(parts, candidates=CANDIDATES, plan=Plan(**plan)), log=expected.log), expected, within=1e-9)


def without_rows(path, *, like):
    """A file with the columns of another one and no row, as engines write for a partition of nothing."""
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(parquet.read_schema(like).empty_table(), path)


def test_files_without_rows_are_left_out(whole, tmp_path):
    """Files without rows, first, last and between, change nothing; a log of such files alone is refused."""
    expected = replay(whole, candidates=CANDIDATES)
    parts = cut(tmp_path / "parts", 100, 300)
    for name in ("part-", "part-1a", "part-9"):
        without_rows(tmp_path / "parts" / f"{name}.parquet", like=whole.path)
    close(replace(replay(parts, candidates=CANDIDATES), log=expected.log), expected, within=1e-9)
    (tmp_path / "empty").mkdir()
    for number in range(2):
        without_rows(tmp_path / "empty" / f"{number}.parquet", like=whole.path)
    with pytest.raises(InvalidInput, match="none of 2 files has rows"):
        replay(open_log(tmp_path / "empty", config=Settings()), candidates=CANDIDATES)


def test_an_id_in_two_rows(tmp_path):
    """A decision that stands in two rows, of two files or of one, is refused with both of them."""
    rows = rows_with_candidate()
    for log in (
        cut(tmp_path / "parts", 100, 200, 300, rows=[*rows, rows[150]]),
        cut(tmp_path / "part", rows=[*rows, rows[150]]),
    ):
        with pytest.raises(InvalidInput, match=r"has the id of .*part-\d.parquet row (51|151); 1 rows") as caught:
            replay(log, candidates=CANDIDATES)
        assert caught.value.field.endswith((" row 101 id", " row 401 id"))


def test_processes_give_the_same(tmp_path):
    """A worker process gives the numbers of this process's threads, and the same again to the last bit."""
    log = cut(tmp_path / "parts", 100, 150, 300)
    plan = Plan(segments=("device",))
    expected = replay(log, candidates=CANDIDATES, plan=plan)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        once, again = (replay(log, candidates=CANDIDATES, plan=plan, executor=executor) for _ in range(2))
    close(once, expected, within=0.0)
    close(again, once, within=0.0)


def test_threads_end_with_the_first_error(tmp_path, monkeypatch):
    """A part that cannot be judged ends the replay with its error, and no other part reads a further batch."""
    monkeypatch.setattr("ragbandit.router.offline.logs.parquet.BATCH", 10)
    rows = rows_with_candidate()
    log = cut(tmp_path / "parts", 20, rows=[*rows[:20], *rows])
    stopped, began = [], threading.Event()

    def fail(part, *, progress, **_):
        if part.place.endswith("part-0.parquet row"):
            began.wait(30)
            raise InvalidInput("is broken", field="log", remedy="mend it")
        began.set()
        try:
            while True:
                progress("rows summarized", 0, 0)
                time.sleep(0.001)
        finally:
            stopped.append(part.place)

    monkeypatch.setattr("ragbandit.router.offline.replay.engine.count_part", fail)
    monkeypatch.setattr("ragbandit.router.offline.replay.engine.cores", lambda: 2)
    with pytest.raises(InvalidInput, match="is broken"):
        replay(log, candidates=CANDIDATES)
    assert [place.endswith("part-1.parquet row") for place in stopped] == [True]


@pytest.mark.parametrize(
    ("plan", "candidates", "said"),
    [
        ({"baseline": "current"}, CANDIDATES, "learns the log cannot be judged on several files"),
        ({}, ["linucb"], "linucb reads questions"),
    ],
)
def test_what_cannot_be_merged_is_refused(tmp_path, plan, candidates, said):
    """What is no sum over the rows is refused with the reason, before anything is read."""
    with pytest.raises(InvalidInput, match=said):
        replay(cut(tmp_path / "parts", 100), candidates=candidates, plan=Plan(**plan))


def test_a_folder_without_files(tmp_path):
    """An empty folder, a pattern that matches nothing, and --skip-bad are refused."""
    for path in (tmp_path, tmp_path / "*.parquet"):
        with pytest.raises(InvalidInput, match="has no Parquet files"):
            replay(open_log(path, config=Settings()))
    parts = cut(tmp_path / "parts", 100)
    with pytest.raises(InvalidInput, match="judged whole"):
        replay(replace(parts, skip_bad=True))


def test_probabilities_of_a_softmax_without_a_floor(tmp_path):
    """An arm that was logged with next to no probability counts as one that could not be drawn, in parts and whole."""
    rows = [row for row in rows_with_candidate() if row.decision.arm != "slow"]
    results = []
    for number, least in enumerate((0.0, 1e-160, 5e-324)):
        pmf = (0.6, 0.4, least)
        logged = [
            replace(row, decision=replace(row.decision, pmf=pmf, propensity=pmf[ARMS.index(row.decision.arm)]))
            for row in rows
        ]
        results += [
            replay(cut(tmp_path / f"{number}", 100, rows=logged), candidates=CANDIDATES),
            replay(memory_log(logged), candidates=CANDIDATES),
        ]
    for parts, whole in zip(results[2::2], results[3::2], strict=True):
        close(replace(parts, log=results[0].log), results[0], within=1e-9)
        close(replace(whole, log=results[1].log), results[1], within=1e-9)


@pytest.mark.parametrize("rest", [0.0, 1e-15, 4e-10])
def test_rows_before_the_first_exploration(tmp_path, rest):
    """Leading rows whose other arms have only rounding remainders are left out and counted, in every kind of log."""
    rows = rows_with_candidate()
    arm = rows[0].decision.arm
    pmf = tuple(1.0 - 2 * rest if name == arm else rest for name in ARMS)
    certain = {"pmf": pmf, "arm": arm, "propensity": pmf[ARMS.index(arm)]}
    rows[:30] = [replace(row, decision=replace(row.decision, **certain)) for row in rows[:30]]
    expected = replay(memory_log(rows[30:]), candidates=CANDIDATES)
    write_rows(tmp_path / "log.jsonl", rows)
    for log in (
        memory_log(rows),
        open_log(tmp_path / "log.jsonl", config=Settings()),
        cut(tmp_path / "parts", 10, 60, rows=rows),
    ):
        result = replay(log, candidates=CANDIDATES)
        note = "30 rows before the first exploration are left out: one arm was certain"
        assert result.notes == (note, *expected.notes)
        close(replace(result, log=expected.log, notes=expected.notes), expected, within=1e-9)


def test_a_log_that_never_explores(tmp_path):
    """If no row explores, no row is left out: certain draws are no start then."""
    certain = {"pmf": (1.0, 0.0, 0.0), "arm": ARMS[0], "propensity": 1.0}
    rows = [replace(row, decision=replace(row.decision, **certain)) for row in rows_with_candidate(40)]
    for log in (memory_log(rows), cut(tmp_path / "parts", 10, rows=rows)):
        assert replay(log, candidates=CANDIDATES).rows == 40
