"""The BM25 index on disk, over a small corpus."""

import asyncio
import json
import math

import pytest

from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers.bm25 import FORMAT, Bm25Retriever, build_index
from ragbandit.strategies.retrievers.folders import CurrentIndex
from ragbandit.testing.retrievers import RETRIEVER_CHECKS, passage_ids

ROWS = [
    Passage(id="a", title="Vistula", text="The longest river in Poland."),
    Passage(id="b", title="Warsaw", text="The city stands on the Vistula, a river."),
    Passage(id="c", title="Warsaw", text="The city stands on the Vistula, a river."),
    Passage(id="d", title="", text="Joan's running shoes 😀 北京"),
]


@pytest.fixture
def folder(tmp_path):
    build_index(ROWS, tmp_path / "index")
    return tmp_path / "index"


def search(folder, query, *, k=3):
    retriever = folder if isinstance(folder, Bm25Retriever) else Bm25Retriever(folder)
    return asyncio.run(retriever.search(query, k=k))


@pytest.mark.parametrize("check", RETRIEVER_CHECKS, ids=lambda check: check.__name__)
def test_contract(check, tmp_path_factory):
    """The index of words keeps the contract of retrievers."""

    def make(passages):
        folder = tmp_path_factory.mktemp("indexes") / "words"
        build_index(passages, folder)
        return Bm25Retriever(folder)

    check(make)


def test_scores_of_title_and_text_are_added(folder):
    """A word in title and text scores the sum of both fields' BM25 (Lucene's formula, k1 1.2, b 0.75)."""

    def bm25(*, frequency, length, average, found):
        inverse = math.log(1 + (4 - found + 0.5) / (found + 0.5))
        return inverse * frequency / (frequency + 1.2 * (1 - 0.75 + 0.75 * length / average))

    # Terms after stop words: titles 1, 1, 1, 0; texts 3 (longest river poland), 4, 4, 6 (joan run shoe 北 京 北京).
    in_title = bm25(frequency=1, length=1, average=3 / 4, found=1)
    in_text = bm25(frequency=1, length=4, average=17 / 4, found=2)
    hits = search(folder, "vistula")
    assert passage_ids(hits) == ["a", "b", "c"]
    assert hits[0].score == pytest.approx(in_title, rel=1e-5)
    assert hits[1].score == pytest.approx(in_text, rel=1e-5)
    both = search(folder, "warsaw city")
    assert both[0].score > hits[1].score


def test_equal_scores_come_in_the_order_of_the_corpus(folder):
    """Ties are broken by position, also where k cuts through them."""
    assert passage_ids(search(folder, "Warsaw", k=1)) == ["b"]
    assert passage_ids(search(folder, "Warsaw", k=2)) == ["b", "c"]


@pytest.mark.parametrize(
    ("text", "query", "other"),
    [
        ("வணக்கம் தமிழ்", "வணக்கம்", "வண"),
        ("Ça coûte 3.5 € à Nîmes", "NI\u0302MES 3.5", "5"),
        ("der Ｆｌｕﬀ ge\u00admacht", "fluff gemacht", "macht"),
        ("مُحَمَّد كَاتِب", "كَاتِب", "ك"),
        ("ไปเชียงใหม่", "เชียงใหม่", "ข"),
        ("القِطَارُ إلى مَدْرَسَةٍ", "قطار", "قط"),
        ("شَبَكَة أحمد", "شبكه احمد", "شب"),
        ("می\u200cکند سی", "ميكند", "مي\u06bfـ"),
        ("שָׁלוֹם עוֹלָם", "שלום", "של"),
        ("서울의 도서관은 3월에 쉽니다.", "도서관", "우체국"),
        ("KBS에서 집에", "kbs", "집은"),
        ("東京都の図書\n館", "図書館", "京東"),
        ("我家的犬", "犬", "家犬"),
        ("Viê\u0323t Nam", "Việt", "Vi"),
        ("क्\u200dष", "क्ष", "क"),
        ("well-\nknown hyper-  \n tension", "hypertension", "hypert"),
        ("a well-\nknown value", "known", "kno"),
    ],
)
def test_words_of_every_script_are_found_whole(tmp_path, text, query, other):
    """A query in another normal form finds the passage, and a part of one of its words does not."""
    build_index([Passage(id="x", title="", text=text), ROWS[0]], tmp_path / "i")
    assert passage_ids(search(tmp_path / "i", query)) == ["x"]
    assert search(tmp_path / "i", other) == ()


def test_an_index_that_is_built_again_is_opened_at_the_next_search(folder, caplog):
    """A retriever that is open finds the passages of the new index under its new name; a broken one is not opened."""
    current = CurrentIndex(folder, reader=lambda: Bm25Retriever(folder))
    before = current.name
    assert passage_ids(asyncio.run(current.search("vistula", k=3))) == ["a", "b", "c"]
    build_index([ROWS[1]], folder)
    assert passage_ids(asyncio.run(current.search("vistula", k=3))) == ["b"]
    assert current.name != before
    meta = folder / "index.json"
    meta.rename(folder / "moved")
    assert passage_ids(asyncio.run(current.search("vistula", k=3))) == ["b"]
    meta.write_text("{")
    assert [passage_ids(asyncio.run(current.search("vistula", k=3))) for _ in range(2)] == [["b"]] * 2
    assert caplog.text.count("the earlier index is searched") == 1
    build_index(ROWS, folder)
    assert passage_ids(asyncio.run(current.search("vistula", k=3))) == ["a", "b", "c"]


def test_the_index_says_what_it_is(folder):
    """index.json holds format, number of passages, sha256, time and settings; building again gives the same sha256."""
    meta = json.loads((folder / "index.json").read_text())
    again = build_index(ROWS, folder)
    assert (meta["format"], meta["passages"]) == (FORMAT, 4)
    assert meta["settings"]["k1"] == 1.2
    assert meta["created_at"] > 1.7e9
    assert again["sha256"] == meta["sha256"]
    assert Bm25Retriever(folder).meta == again


def test_a_missing_index_names_path_and_command(tmp_path):
    """Opening a folder without an index says where it looked and how to build one."""
    with pytest.raises(ConfigError, match=r"nowhere has no index .*ragbandit index build .*nowhere"):
        Bm25Retriever(tmp_path / "nowhere")


def test_another_format_names_the_command(folder):
    """An index of another format version is refused with the command that rebuilds it."""
    meta = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**meta, "format": 99}))
    with pytest.raises(ConfigError, match=r"has format 99, and this version reads 'bm25-1' .*ragbandit index build"):
        Bm25Retriever(folder)


@pytest.mark.parametrize("damage", ["passages.jsonl", "offsets.npy", "text/indptr.csc.index.npy", "index.json"])
def test_a_damaged_index_is_refused_when_opened(folder, damage):
    """A file cut short or emptied is found at opening, not at the first search."""
    path = folder / damage
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ConfigError, match="damaged"):
        Bm25Retriever(folder)


def test_a_failed_build_leaves_the_old_index(folder):
    """If building breaks, the index that was there still answers and no folder is left behind."""
    with pytest.raises(InvalidInput, match="passage 2: 'x' was used before"):
        build_index([Passage(id="x", title="", text="new"), Passage(id="x", title="", text="new")], folder)
    assert passage_ids(search(folder, "vistula", k=1)) == ["a"]
    assert [path.name for path in folder.parent.iterdir()] == ["index"]


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    """build_index does not replace a folder without an index."""
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="is not an index"):
        build_index(ROWS, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "precious"
