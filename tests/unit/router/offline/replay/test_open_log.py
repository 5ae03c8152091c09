"""The three lines of the library: `open_log`, candidates by name, `replay`."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ragbandit import open_log, replay
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs import write_rows
from ragbandit.router.offline.replay import OpenLog
from ragbandit.router.offline.replay.parts import SourcePart
from ragbandit.shared.errors import InvalidInput
from tests.support.logs.log_rows import write_json
from tests.support.logs.replay_logs import close, lived_rows

CANDIDATES = ["fixed:deep", "uniform"]
DOC = Path(__file__).parents[5] / "docs" / "replay.md"


@pytest.fixture
def parquet(tmp_path, monkeypatch):
    """A Parquet log of 200 rows, read in pieces of 37, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ragbandit.router.offline.logs.parquet.BATCH", 8 * 37)
    write_rows("log.parquet", lived_rows(200))
    return tmp_path / "log.parquet"


@pytest.fixture
def sizes(monkeypatch):
    """Rows of every piece that is read; reading the whole file is an error."""
    seen = []
    read = SourcePart.batches

    def counted(self, left_out):
        for log in read(self, left_out):
            seen.append(len(log))
            yield log

    monkeypatch.setattr(SourcePart, "batches", counted)
    monkeypatch.setattr(OpenLog, "read", lambda *_: pytest.fail("the whole file is read"))
    return seen


@pytest.mark.parametrize(("kept", "passes"), [(1 << 28, 1), (9000, 2), (0, 2)])
def test_a_parquet_log_is_read_in_pieces(parquet, sizes, monkeypatch, kept, passes):
    """A Parquet log is read in pieces: once where its arrays fit in memory, else for each pass, with one result."""
    expected = replay(open_log(parquet, config=Settings()), candidates=CANDIDATES)
    sizes.clear()
    monkeypatch.setattr("ragbandit.router.offline.replay.engine.CACHE_BYTES", kept)
    result = replay(open_log(parquet, config=Settings()), candidates=CANDIDATES)
    assert result.rows == 200
    assert [candidate.name for candidate in result.candidates] == CANDIDATES
    assert max(sizes) <= 37
    assert sum(sizes) == passes * 200 + 37, "the first piece is also searched for the first exploration"
    close(result, expected)


def test_since(parquet):
    """`since` leaves out older rows; where all are older it is refused, in pieces and in memory."""
    since = 1.7e9 + 150
    log = open_log(parquet, config=Settings(), since=since)
    assert (replay(log).rows, replay(log).since, log.read().opened.since) == (50, since, since)
    late = open_log(parquet, config=Settings(), since=2e9)
    for ask in (lambda: replay(late), late.read):
        with pytest.raises(InvalidInput, match="all 200 are older"):
            ask()


def test_the_lines_of_the_document(parquet, sizes):
    """The three lines in docs/replay.md run as they stand, on a Parquet file that is read in pieces."""
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", DOC.read_text(), re.S) if "open_log(" in block]
    names = {}
    exec(block, names)
    assert len([line for line in block.splitlines() if line.strip()]) <= 4, "three lines, and one that prints"
    assert names["result"].rows == 200
    assert max(sizes) <= 37


def _with_propensities(path, *, pmf, offers=True):
    """Write the rows of a log in which the probabilities of the other arms are missing."""
    rows = []
    for row in lived_rows(600, pmf=pmf):
        made, arms = row.decision, row.decision.arms[: sum(share > 0.0 for share in pmf)]
        values = {"id": made.id, "text": made.query.text, "arm": made.arm, "reward": row.reward.quality}
        rows.append(values | {"propensity": made.propensity} | ({"arms": arms} if offers else {}))
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        write_json(path, rows)
    return path


@pytest.mark.parametrize("offers", [True, False])
@pytest.mark.parametrize("name", ["log.jsonl", "log.parquet"])
def test_fixed_arms_are_judged_by_propensities(tmp_path, name, offers):
    """Without a pmf, also without arms, fixed arms are judged, draws are not checked, and a policy is refused."""
    log = open_log(_with_propensities(tmp_path / name, pmf=(0.6, 0.3, 0.1), offers=offers), config=Settings())
    result = replay(log, candidates=["fixed:deep"])
    (deep,) = result.candidates
    assert deep.reward.is_known
    assert result.faults == ()
    assert any("600 rows have the probability of the drawn arm only" in note for note in result.notes)
    with pytest.raises(InvalidInput, match=r"pmf: 600 rows .*judge fixed:ARM"):
        replay(log, candidates=["linucb"])


def test_two_arms_need_no_pmf(tmp_path):
    """With two arms, the propensity gives the pmf, so the draws are checked and every policy can be judged."""
    log = open_log(_with_propensities(tmp_path / "log.jsonl", pmf=(0.7, 0.3, 0.0)), config=Settings())
    assert log.read().log.pmf[0] == pytest.approx([0.7, 0.3])
    assert not any("drawn arm only" in note for note in replay(log, candidates=["uniform"]).notes)


def test_an_arm_alone_without_arms(tmp_path):
    """If no row has arms and all rows drew the same arm, the log is refused, and the message asks for the arms."""
    log = _with_propensities(tmp_path / "log.jsonl", pmf=(1.0, 0.0, 0.0), offers=False)
    with pytest.raises(InvalidInput, match=r"arms the value is missing \(log all arms that were offered\)"):
        open_log(log, config=Settings()).read()
