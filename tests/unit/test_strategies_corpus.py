"""Reading a corpus: Parquet and folders of documents. JSONL is read in test_strategies_bm25."""

import pytest

from router.errors import ConfigError, InvalidInput
from strategies.base import Passage
from strategies.retrievers.corpus import count_rows, needed, read_corpus


def write_parquet(path, columns):
    table = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(table.table(columns), path)
    return path


def test_parquet_gives_what_jsonl_gives(tmp_path):
    """Columns id, title and text are read, others passed over; a title that is null or missing is ""."""
    rows = {"id": ["a", "b"], "title": ["One", None], "text": ["first", "second 北京"], "source": [1, 2]}
    file = write_parquet(tmp_path / "corpus.parquet", rows)

    assert list(read_corpus(file)) == [
        Passage(id="a", title="One", text="first"),
        Passage(id="b", title="", text="second 北京"),
    ]
    assert count_rows(file) is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": ["a", "a"], "text": ["x", "y"]}, "row 2: 'a' was used before, on row 1"),
        ({"id": ["a"]}, "row 1: 'text' is missing"),
        ({"id": [1], "text": ["x"]}, "row 1: 'id' is 1"),
    ],
)
def test_parquet_faults_name_the_row(tmp_path, columns, message):
    """An id used twice, a missing text and an id that is no string are errors with the row."""
    with pytest.raises(InvalidInput, match=message):
        list(read_corpus(write_parquet(tmp_path / "corpus.parquet", columns)))


def test_what_is_no_parquet_is_said(tmp_path):
    """A file with the name only cannot be read."""
    pytest.importorskip("pyarrow")
    (tmp_path / "corpus.parquet").write_text("no")
    with pytest.raises(InvalidInput, match="cannot be read"):
        list(read_corpus(tmp_path / "corpus.parquet"))


def test_a_missing_package_is_named_with_its_extra():
    """The remedy is the command that installs it."""
    with pytest.raises(ConfigError, match=r"no_such_package is missing.*ragbandit\[documents\]"):
        needed("no_such_package.part", extra="documents")


def documents(folder, **files):
    for package in ("semantic_text_splitter", "bs4", "pypdf"):
        pytest.importorskip(package, reason="pip install 'ragbandit[documents]'")
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def pdf(text):
    """A PDF of one page, written by hand: its objects, and a table of where each begins."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    bodies = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(bodies, start=1):
        places.append(len(out))
        out += b"%d 0 obj%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 6\n0000000000 65535 f \n"
    return out + head + table + b"trailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % len(out)


def test_a_folder_gives_the_passages_of_its_documents(tmp_path, caplog):
    """Text, Markdown, HTML and PDF are read in the order of their paths; what is left out is in the log."""
    page = "<html><head><title>Rivers</title><style>p {}</style></head><body><p>The Vistula</p><p>is long.</p></body>"
    folder = documents(
        tmp_path, a_txt="Warsaw stands.", b__c_html=page, d_md="# City\n\nParis.", e_pdf=pdf("Hello river"), f_png=b"1"
    )

    with caplog.at_level("WARNING", logger="ragbandit.documents"):
        found = list(read_corpus(folder))

    assert [(row.id, row.title, row.text) for row in found] == [
        ("a.txt#1", "a", "Warsaw stands."),
        ("b/c.html#1", "Rivers", "The Vistula\nis long."),
        ("d.md#1", "d", "# City\n\nParis."),
        ("e.pdf#1", "e", "Hello river"),
    ]
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["f.png is left out"]
    assert count_rows(folder) is None


def test_long_documents_are_cut_without_losing_a_word(tmp_path):
    """No passage is longer than 800 characters, and together they hold every word in order."""
    text = "\n\n".join(" ".join(f"word{number}x{n}" for n in range(60)) + "." for number in range(30))
    found = list(read_corpus(documents(tmp_path, long_txt=text)))

    assert len(found) > 10
    assert max(len(row.text) for row in found) <= 800
    assert " ".join(row.text for row in found).split() == text.split()
    assert [row.id for row in found][:2] == ["long.txt#1", "long.txt#2"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a_pdf": b"no pdf"}, "a.pdf cannot be read"),
        ({"a_txt": b"\xff\xfe\xfa"}, "a.txt cannot be read"),
        ({"a_txt": "  "}, "holds no document"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, files, message):
    """A broken PDF, a text that is not UTF-8, and a folder without any text are errors of the input."""
    with pytest.raises(InvalidInput, match=message):
        list(read_corpus(documents(tmp_path, **files)))
