"""Logs in Parquet with long texts: what a process that reads one has of memory."""

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.bombs import MOST, read_bomb

TEXT = "x" * 200_000
IMPORTS = """
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.offline.logs.batches import BatchSpec, decode_batch, offered_arms
from ragbandit.router.offline.logs.jsonl import read_rows
from ragbandit.router.offline.logs.parquet import ParquetSource

def decoded(path):
    source = ParquetSource(path=path, defaults=RewardSettings())
    spec = BatchSpec(arms=offered_arms(source, every=False))
    return sum(len(decode_batch(batch, spec=spec)) for batch in source.batches(spec.columns))
"""
#: rows, whether they share one text
CASES = {"own texts": (500, False), "one text": (5_000, True)}
READERS = {"rows": "sum(1 for _ in read_rows(path))", "columns": "decoded(path)"}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("case", CASES)
def test_long_texts_take_little_memory(tmp_path, case, reader):
    """A process that reads a log with long texts, by rows or by columns, takes at most 400 MB for it."""
    count, is_shared = CASES[case]
    texts = pa.array([TEXT if is_shared else f"{number}{TEXT}" for number in range(count)])
    row = {"arms": ["a", "b"], "pmf": [0.5, 0.5], "arm": "a", "reward": 1.0}
    table = pa.Table.from_pylist([{"id": f"q{number}"} | row for number in range(count)]).append_column("text", texts)
    parquet.write_table(table, tmp_path / "log.parquet", compression="zstd", use_dictionary=is_shared)
    said, peak = read_bomb(tmp_path / "log.parquet", imports=IMPORTS, read=READERS[reader])
    assert said == str(count)
    assert peak < MOST
