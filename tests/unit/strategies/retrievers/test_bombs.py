"""Files of a corpus that would take many times their size of memory."""

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.bombs import MOST, read_bomb

SIZE = 4 * 1024 * 1024


def page(path, *, content):
    path.write_text("<html>" + content * (SIZE // len(content)))
    return path


def one_long_text(path):
    """A Parquet file whose rows all have the same text of 200,000 characters."""
    rows = 20_000
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * 200_000])
    parquet.write_table(pa.table({"id": pa.array(map(str, range(rows))), "text": texts}), path, compression="zstd")


#: name -> (ending, function that writes the file, what is printed of it)
BOMBS = {
    "tags": (".html", lambda path: page(path, content="<b>"), "elements are open at once"),
    "ended tags": (".html", lambda path: page(path, content="<b>a</b>"), str(SIZE // 8)),
    "attributes": (".html", lambda path: page(path, content="<b " + "a " * (SIZE // 2 - 10) + ">"), "0"),
    "attributes without blanks": (".html", lambda path: page(path, content="<b " + "a/" * (SIZE // 2 - 10) + ">"), "0"),
    # Each of these would take Python's own parser hours, since it searches the end of each of them.
    "tags without end": (".html", lambda path: page(path, content="<a "), ""),
    "attributes without end": (".html", lambda path: page(path, content='<a x="'), ""),
    "comments without end": (".html", lambda path: page(path, content="<!--"), "0"),
    "sections without end": (".html", lambda path: page(path, content="<![CDATA["), ""),
    "words": (".txt", lambda path: page(path, content="a-\nb abc "), ""),
    "divided words": (
        ".txt",
        lambda path: path.write_text(
            "".join(f"{chr(0x4E00 + n % 5000)}{chr(0x4E00 + n // 5000)}-\na " for n in range(500_000))
        ),
        "",
    ),
    "one text of many rows": (".parquet", one_long_text, "20000"),
}


@pytest.mark.parametrize("case", BOMBS)
def test_a_file_takes_little_memory(tmp_path, case):
    """A process that reads a file whose tree, words or rows would be large has at most 400 MB of memory."""
    ending, write, expected = BOMBS[case]
    path = tmp_path / f"bomb{ending}"
    write(path)
    read = "sum(1 for _ in corpus.read_corpus(path))"
    if ending != ".parquet":
        read = "len(corpus._readers()[path.suffix](path)[1])"
    said, peak = read_bomb(path, imports="from ragbandit.strategies.retrievers import corpus", read=read)
    assert expected in said
    assert peak < MOST
