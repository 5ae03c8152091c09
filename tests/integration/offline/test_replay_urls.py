"""Replay reads Parquet logs at URLs of fsspec, whole and in parts, and says what it cannot read."""

from dataclasses import replace

import fsspec
import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs import write_rows
from ragbandit.router.offline.replay import open_log, replay
from ragbandit.shared.errors import ConfigError, InvalidInput
from tests.support.logs.replay_logs import close, lived_rows

CANDIDATES = ["fixed:deep", "uniform"]


@pytest.fixture
def folder(tmp_path):
    """A folder with a log of two parts."""
    (tmp_path / "log").mkdir()
    rows = lived_rows(200)
    for part in range(2):
        write_rows(tmp_path / "log" / f"{part}.parquet", rows[100 * part : 100 * part + 100])
    return tmp_path / "log"


@pytest.fixture
def memory(folder):
    """The same files at memory://; gone after the test."""
    system = fsspec.filesystem("memory")
    for file in folder.iterdir():
        system.pipe_file(f"/replayed/{file.name}", file.read_bytes())
    yield "memory://replayed"
    system.rm("/replayed", recursive=True)


@pytest.mark.parametrize("end", ["", "/*.parquet"])
def test_parts_at_a_url(folder, memory, end):
    """A folder, or a pattern, at a URL gives what the local files give."""
    here = replay(open_log(folder, config=Settings()), candidates=CANDIDATES)
    there = replay(open_log(memory + end, config=Settings()), candidates=CANDIDATES)
    assert there.log == memory + end
    close(there, replace(here, log=there.log))


def test_one_file_at_a_url(folder, memory):
    """One Parquet file at a URL is replayed too, in pieces and for candidates that read questions."""
    for candidates in (CANDIDATES, ["linucb"]):
        here = replay(open_log(folder / "0.parquet", config=Settings()), candidates=candidates)
        there = replay(open_log(f"{memory}/0.parquet", config=Settings()), candidates=candidates)
        close(there, replace(here, log=there.log))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory://nothing-there/0.parquet", "cannot be read"),
        ("memory://nothing-there/*.parquet", "has no Parquet files"),
        ("nowhere://key:hunter2@there/logs", "nowhere"),
    ],
)
def test_what_cannot_be_read(url, said):
    """A URL that cannot be read is refused with what is wrong and what to do, without its secrets."""
    with pytest.raises((InvalidInput, ConfigError), match=said) as refused:
        replay(open_log(url, config=Settings()), candidates=CANDIDATES)
    assert refused.value.remedy
    assert "hunter2" not in str(refused.value)
