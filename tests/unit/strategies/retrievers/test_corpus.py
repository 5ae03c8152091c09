"""Reading a corpus: JSONL of any editor, Parquet, folders of documents. More of JSONL is in test_strategies_bm25."""

import asyncio
import gzip
import io
import json
import math
import os
from decimal import Decimal
from uuid import UUID

import pytest

from ragbandit.shared.additions import offered_places
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.json_lines import MAX_LINE
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers import corpus
from ragbandit.strategies.retrievers.bm25 import Bm25Retriever, build_index
from ragbandit.strategies.retrievers.corpus import MAX_DOCUMENT, MAX_PASSAGE, read_corpus


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


@pytest.mark.parametrize(
    ("values", "passage"),
    [
        ({"id": 12, "text": "t", "title": None, "url": None}, Passage(id="12", title="", text="t")),
        ({"id": 3.0, "text": "t", "title": 1984, "url": " "}, Passage(id="3", title="1984", text="t")),
        ({"id": "4", "text": "t", "title": "\u3164"}, Passage(id="4", title="\u3164", text="t")),
        ({"id": "x", "text": "t", "title": math.nan, "url": math.nan}, Passage(id="x", title="", text="t")),
    ],
)
def test_null_and_numbers_are_read_as_text(tmp_path, values, passage):
    """A null or NaN title or url is empty and a number is its text, in JSON Lines as in Parquet."""
    lines = write_rows(tmp_path / "corpus.jsonl", json.dumps(values).encode())
    table = write_parquet(tmp_path / "corpus.parquet", {key: [value] for key, value in values.items()})
    assert [*read_corpus(lines), *read_corpus(table)] == [passage, passage]


def test_rows_of_beir_are_read(tmp_path):
    """The id may be called "_id"; a row with a blank or null text is left out and named by its number."""
    rows = [{"_id": 1, "title": "T", "text": " "}, {"_id": 2, "text": "t", "metadata": {}}, {"_id": 3, "text": None}]
    columns = {"_id": [1, 2, 3], "title": ["T", None, ""], "text": [" ", "t", None]}
    left = []
    for file, unit in (
        (write_rows(tmp_path / "corpus.jsonl", *(json.dumps(row).encode() for row in rows)), "line"),
        (write_parquet(tmp_path / "corpus.parquet", columns), "row"),
    ):
        found = list(read_corpus(file, leave_out=lambda *pair: left.append(pair)))
        assert found == [Passage(id="2", title="", text="t")]
        assert left == [(f"{unit} 1", "it has no text"), (f"{unit} 3", "it has no text")]
        left.clear()


def test_a_line_and_a_passage_have_a_longest_length(tmp_path):
    """A passage above a million characters, and a line that does not end, are errors that name the line."""
    long = json.dumps({"id": "a", "text": "x" * (MAX_PASSAGE + 1)}).encode()
    with pytest.raises(InvalidInput, match=r"line 1: 'text' has 1,000,001 characters"):
        list(read_corpus(write_rows(tmp_path / "corpus.jsonl", long)))
    packed = tmp_path / "endless.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"id": "a", "text": "t"}\n' + b"x" * (MAX_LINE + 1)))
    with pytest.raises(InvalidInput, match=r"line 2 has more than 16 MiB"):
        list(read_corpus(packed))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": ["a", "a"], "text": ["x", "y"]}, "row 2: 'a' was used before, on row 1"),
        ({"id": ["a"]}, "row 1: 'text' is missing"),
        ({"id": [True], "text": ["x"]}, "row 1: 'id' is True"),
        ({"id": ["a", None], "text": ["x", "y"]}, "row 2: 'id' is missing"),
    ],
)
def test_parquet_faults_name_the_row(tmp_path, columns, message):
    """An id used twice, a missing text and an id of another type are errors with the row."""
    with pytest.raises(InvalidInput, match=message):
        list(read_corpus(write_parquet(tmp_path / "corpus.parquet", columns)))


def test_a_column_that_occurs_twice_is_named(tmp_path):
    """A join may keep the columns of both sides. A column that is not read may occur twice."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, names in (("text", ["id", "text", "text"]), (None, ["id", "text", "more", "more"])):
        table = arrow.table([arrow.array([cell]) for cell in names], names=names)
        parquet.write_table(table, tmp_path / "corpus.parquet")
        if name is None:
            assert [passage.id for passage in read_corpus(tmp_path / "corpus.parquet")] == ["id"]
            continue
        with pytest.raises(InvalidInput, match="has 'text' twice") as caught:
            list(read_corpus(tmp_path / "corpus.parquet"))
        assert caught.value.field == name


def test_parquet_in_capital_letters_with_ids_of_other_types(tmp_path):
    """Decimals keep all their digits, and a UUID is its text."""
    ids = [Decimal("12345678901234567890"), Decimal(7)]
    file = write_parquet(tmp_path / "CORPUS.PARQUET", {"id": ids, "text": ["x", "y"]})
    assert [passage.id for passage in read_corpus(file)] == ["12345678901234567890", "7"]
    arrow = pytest.importorskip("pyarrow")
    key = UUID(int=7)
    column = arrow.array([key.bytes], arrow.uuid())
    file = write_parquet(tmp_path / "corpus.parquet", {"id": column, "text": ["x"]})
    assert [passage.id for passage in read_corpus(file)] == [str(key)]


@pytest.mark.parametrize("text", [" ", "\u200b", "\ufeff \u3164", "\u200b" * 100])
def test_rows_of_invisible_text_are_left_out(tmp_path, text):
    """Spaces and invisible characters alone are no text."""
    rows = [json.dumps({"id": name, "text": said}).encode() for name, said in (("a", text), ("b", text + "x"))]
    left_out = []
    passages = read_corpus(write_rows(tmp_path / "c.jsonl", *rows), leave_out=lambda *why: left_out.append(why))
    assert [passage.id for passage in passages] == ["b"]
    assert left_out == [("line 1", "it has no text")]


def test_what_is_no_parquet_is_said(tmp_path):
    """A file with the name only cannot be read."""
    pytest.importorskip("pyarrow")
    (tmp_path / "corpus.parquet").write_text("no")
    with pytest.raises(InvalidInput, match="cannot be read"):
        list(read_corpus(tmp_path / "corpus.parquet"))


def write_rows(path, *rows, before=b""):
    path.write_bytes(before + b"".join(row + b"\n" for row in rows))
    return path


def test_a_byte_order_mark_is_no_part_of_the_corpus(tmp_path):
    """With it the same passages are read, also before a later line, where files were joined."""
    row = b'{"id": "a", "text": "x"}'
    mark = b"\xef\xbb\xbf"
    assert list(read_corpus(write_rows(tmp_path / "c.jsonl", row, before=mark))) == [
        Passage(id="a", title="", text="x")
    ]
    joined = write_rows(tmp_path / "d.jsonl", row, mark + b'{"id": "b", "text": "y"}', before=mark)
    assert [passage.id for passage in read_corpus(joined)] == ["a", "b"]


def test_a_gzipped_corpus_is_read(tmp_path):
    """By its first bytes; one that is cut short names the file, and one that is plain text already is read."""
    packed = gzip.compress(b'{"id": "a", "text": "x"}\n')
    (tmp_path / "c.jsonl.gz").write_bytes(packed)
    (tmp_path / "c.jsonl").write_bytes(packed)
    for name in ("c.jsonl.gz", "c.jsonl"):
        assert list(read_corpus(tmp_path / name)) == [Passage(id="a", title="", text="x")]
    (tmp_path / "plain.jsonl.gz").write_bytes(gzip.decompress(packed))
    assert [passage.id for passage in read_corpus(tmp_path / "plain.jsonl.gz")] == ["a"]
    (tmp_path / "c.jsonl.gz").write_bytes(packed[:-9])
    with pytest.raises(InvalidInput, match=r"c\.jsonl\.gz: the gzip is cut short"):
        list(read_corpus(tmp_path / "c.jsonl.gz"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "b", "text": "caf\xe9"}', "line 5001 is not UTF-8: its byte 25 is 0xe9"),
        ('{"id": "b", "text": "x"}'.encode("utf-16"), "line 5001 is not UTF-8: its byte 1 is 0xff"),
        (b"[" * 100_000, "line 5001 is not JSON"),
        (b'{"id": ' + b"1" * 5000 + b"}", "line 5001 is not JSON"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, line, message):
    """Bytes of another encoding, and JSON beyond what Python reads, are found far behind any buffer."""
    rows = [json.dumps({"id": f"a{number}", "text": "x"}).encode() for number in range(5000)]
    with pytest.raises(InvalidInput, match=message):
        list(read_corpus(write_rows(tmp_path / "c.jsonl", *rows, line)))


def documents(folder, **files):
    for package in ("semantic_text_splitter", "pypdf"):
        pytest.importorskip(package, reason="pip install '.[documents]'")
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def pdf(text, title=None):
    """A PDF of one page, written by hand: its objects, and a table of where each begins."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    bodies = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    told = b""
    if title is not None:
        bodies.append(f"<</Title({title})>>".encode())
        told = b"/Info 6 0 R"
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(bodies, start=1):
        places.append(len(out))
        out += b"%d 0 obj%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(bodies) + 1
    head = b"xref\n0 %d\n0000000000 65535 f \n" % size
    return out + head + table + b"trailer<</Size %d/Root 1 0 R%s>>\nstartxref\n%d\n%%%%EOF" % (size, told, len(out))


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
        ("d.md#1", "City", "# City\n\nParis."),
        ("e.pdf#1", "e", "Hello river"),
    ]
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["f.png is left out"]


def test_long_documents_are_cut_without_losing_a_word(tmp_path):
    """No passage is longer than 800 characters, and together they hold every word in order."""
    text = "\n\n".join(" ".join(f"word{number}x{n}" for n in range(60)) + "." for number in range(30))
    found = list(read_corpus(documents(tmp_path, long_txt=text)))
    assert len(found) > 10
    assert max(len(row.text) for row in found) <= 800
    assert " ".join(row.text for row in found).split() == text.split()
    assert [row.id for row in found][:2] == ["long.txt#1", "long.txt#2"]


@pytest.mark.parametrize(
    ("markdown", "title", "text"),
    [
        ("---\ntitle: A  town\ntags: [x]\n---\n# City\n\nParis.", "A town", "# City\n\nParis."),
        ("\ufeff---\r\ntitle: 1984\r\n---\r\nParis.", "1984", "Paris."),
        ("---\ndate: 2024-05-01\n...\n# City\n\nParis.", "City", "# City\n\nParis."),
        ("---\ntitle: [a, b]\n---\nParis.", "d", "Paris."),
        ("---\n---\nParis.", "d", "Paris."),
        ('+++\r\ntitle = "A  town"\n\n[params]\na = 1\n+++\nParis.', "A town", "Paris."),
        ('{\n  "title": "A town"\n}\n\nParis.', "A town", "Paris."),
        # without front matter: no TOML, JSON in a line of text, broken YAML, text between two rules, also if it reads
        # as a mapping, a blank line before it, a rule without an end, a rule further down
        ("+++\na town\n+++\nParis.", "d", "+++\na town\n+++\nParis."),
        ('{"title": "x"} Paris.', "d", '{"title": "x"} Paris.'),
        ("---\ntitle: a: b\n---\n\n# City", "City", "---\ntitle: a: b\n---\n\n# City"),
        ("---\nParis.\n\n---\n\nRome.", "d", "---\nParis.\n\n---\n\nRome."),
        ("---\nNote: read this.\n\n---\n\nRome.", "d", "---\nNote: read this.\n\n---\n\nRome."),
        ("---\n  \ntitle: x\n---\nRome.", "d", "---\n  \ntitle: x\n---\nRome."),
        ("---\ntitle: Paris", "d", "---\ntitle: Paris"),
        ("Paris.\n\n---\ntitle: x\n---", "d", "Paris.\n\n---\ntitle: x\n---"),
        # headings: under a fence, by underlining, with markup, of the second level, empty, in a quotation
        ("```\n# make\n```\n\n# City", "City", "```\n# make\n```\n\n# City"),
        ("Big\ncity\n===\n\nParis.", "Big city", "Big\ncity\n===\n\nParis."),
        ("# The *big* `city` [of](x) <b>light</b> #", "The big city of light", None),
        ("## Part\n\nParis.", "d", "## Part\n\nParis."),
        ("#\n\n# City", "City", "#\n\n# City"),
        ("> # Said\n\n# City", "City", None),
    ],
)
def test_markdown_has_its_own_title(tmp_path, markdown, title, text):
    """The front matter's, else the first heading of the first level, else the file's name; front matter is no text."""
    (row,) = read_corpus(documents(tmp_path, d_md=markdown))
    assert row.title == title
    assert row.text == (markdown if text is None else text)


BASE64 = "QUJD" * 500
SVG = "svg xmlns='x' viewBox='0 0 8 8'"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"A ![plan](data:image/png;base64,{BASE64}) B", "A ![plan]() B"),
        (f"[p]: <DATA:image/gif;charset=utf-8;base64,{BASE64}> 'Plan'", "[p]: <> 'Plan'"),
        (f"[p]: data:;base64,{BASE64}\n\nB", "[p]: \n\nB"),
        (f"![p](data:image/png;base64,\n{BASE64}\n{BASE64}\nQUJDQQ==) B", "![p]() B"),
        (f"<img src=\"data:image/svg+xml,%3C{SVG}%3E%3Cpath d='M0 (1)'/%3E%3C/svg%3E\"> B", '<img src=""> B'),
        (f"![p](data:image/svg+xml;utf8,<{SVG}><path/></svg>) B", "![p]() B"),
        ("the data: it is data:x,y", "the data: it is data:x,y"),
        ("moni-\ntoring, monitoring, well- \nknown, soft\u00ad\nware, Vor-\nund", None),
    ],
)
def test_text_has_no_data_uris_and_no_divided_words(tmp_path, text, kept):
    """Data URIs go; a line end in a word goes, with its hyphen if that is soft or the whole word stands elsewhere."""
    (row,) = read_corpus(documents(tmp_path, a_md=text))
    assert row.text == (kept or "monitoring, monitoring, well-known, software, Vor-und")


@pytest.mark.parametrize(
    ("page", "encoding", "text"),
    [
        ("<meta charset=iso-8859-1><p>Küche “5 €”", "cp1252", "Küche “5 €”"),
        ('<META HTTP-EQUIV=Content-Type CONTENT="text/html; charset=KOI8-R">Река', "koi8-r", "Река"),
        ("<?xml version='1.0' encoding='windows-874'?><p>แม่น้ำ", "cp874", "แม่น้ำ"),
        ("<meta charset='x-sjis'>図書館①", "cp932", "図書館①"),
        ("<meta charset=gb2312>图书馆镕", "gb18030", "图书馆镕"),
        ("<meta charset=iso-2022-jp>図書館", "iso2022_jp", "図書館"),
        ("<meta charset=iso-8859-1>Küche", "utf-8", "Küche"),
        ("<p>Küche", "utf-16", "Küche"),
        ("<p>Küche", "utf-16-be", "Küche"),
        (
            "<p>A <b>bo</b>ld hy<wbr>phen H<sub>2</sub>O<p>a<br>b<sup><a href=c>1</a></sup>",
            "utf-8",
            "A bold hyphen H2O\na\nb\n1",
        ),
        ("<td>a<td>b<option>c<option>d<b-c>e</b-c><ruby>漢<rt>かん</rt>字", "utf-8", "a\nb\nc\nd\ne\n漢字"),
        ("---\ntitle: x\n---\n<p>a", "utf-8", "a"),
    ],
)
def test_a_page_is_read_in_its_encoding_and_by_its_blocks(tmp_path, page, encoding, text):
    """A page is decoded as browsers do, but UTF-8 comes first; only tags that are not inline divide words."""
    (row,) = read_corpus(documents(tmp_path, a_html=page.encode(encoding)))
    assert row.text == text


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("one<!-- a > b --><!-->two<!---> <!-- c --!>three<!-- <p>four", "onetwo three"),
        ("<a title='x > y' href=x/>one</a><SCRIPT>if (a</b) </SCRIPT >two<script/>three", "one\ntwo\nthree"),
        ("a < b &lt;b> <3 &amp; <![CDATA[<i>&amp;]]>x</>y</ b>z<?c?>", "a < b <b> <3 & <i>&amp;xyz"),
        ("one<a href='x>two</a>three", "onetwothree"),
        ("one <a href=x", "one <a href=x"),
        ("<pre>a\n  b</pre><title/>c<template>d<p>e</template>f<title>T</title>", "a\nb\nc\nf"),
    ],
)
def test_markup_is_read_as_browsers_do(tmp_path, page, text):
    """Comments, quotes, scripts, character references, and what does not end give the text that a browser shows."""
    (row,) = read_corpus(documents(tmp_path, a_html=page))
    assert row.text == text


def test_a_character_of_thousands_of_digits_is_refused(tmp_path):
    """A page with a character reference of thousands of digits is left out with its reason."""
    left = {}
    assert list(read_corpus(documents(tmp_path, a_html=f"a&#{'9' * 5000};", b_txt="b"), leave_out=left.__setitem__))
    assert left["a.html"].startswith("the document cannot be read")


@pytest.mark.parametrize("declared", ["nonsense", "hex", "idna", "utf-16"])
def test_a_page_in_no_known_encoding_is_left_out(tmp_path, declared):
    """A page that is not UTF-8 and declares no known encoding is left out with this reason."""
    left = {}
    page = f"<meta charset={declared}>caf\xe9".encode("latin-1")
    assert [row.id for row in read_corpus(documents(tmp_path, a_html=page, b_txt="b"), leave_out=left.__setitem__)] == [
        "b.txt#1"
    ]
    assert left["a.html"].startswith("the text is not UTF-8")


@pytest.mark.parametrize(
    "text", ["word " * 10_000, "w" * 50_000, "図書館" * 15_000, '{"a": 1},' * 5_000, "a b.\n\n" * 9_000]
)
def test_a_long_text_is_cut_in_sections(text):
    """The splitter, whose time grows with the square of a text's length, gets parts of at most 16,000 characters."""
    sections = corpus._SECTION.findall(text)
    assert "".join(sections) == text
    assert max(map(len, sections)) <= 16_000
    assert min(map(len, sections[:-1])) >= 8_000


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("one\n\n<!-- todo -->\n\ntwo", "one\n\n\n\ntwo"),
        ("one <!-- a\n\nb --> two", "one  two"),
        ("<!-- lint off --># Title\n\none", "# Title\n\none"),
        ("one `<!-- kept -->` two", "one `<!-- kept -->` two"),
        ("```html\n<!-- kept -->\n```\none", "```html\n<!-- kept -->\n```\none"),
        ("- item\n\n      <!-- kept -->\n\none", "- item\n\n      <!-- kept -->\n\none"),
        ("one <!-- never closed", "one <!-- never closed"),
    ],
)
def test_comments_of_markdown_are_no_text(tmp_path, markdown, text):
    """HTML comments are left out of Markdown, except within code and if they never end."""
    rows = read_corpus(documents(tmp_path, a_md=markdown))
    assert "".join("".join(row.text.split()) for row in rows) == "".join(text.split())


def test_values_of_a_pdf_form_are_text(tmp_path):
    """What people typed or chose in a form, and texts typed on a page, are text; passwords and empty fields are not."""
    pypdf = pytest.importorskip("pypdf")
    from pypdf.generic import ArrayObject, DictionaryObject, NameObject, NumberObject, TextStringObject as Text

    def field(kind, name, **more):
        entries = {"/Type": "/Annot", "/Subtype": "/Widget", "/FT": f"/{kind}"}
        made = DictionaryObject({NameObject(key): NameObject(value) for key, value in entries.items()})
        made[NameObject("/T")] = Text(name)
        return made | {NameObject(f"/{key}"): value for key, value in more.items()}

    fields = [
        field("Tx", "applicant", V=Text("Quillfeather")),
        field("Tx", "f2", TU=Text("Town"), V=Text("Riga")),
        field("Ch", "colours", V=ArrayObject([Text("red"), Text("blue")])),
        field("Btn", "member", V=NameObject("/Yes")),
        field("Btn", "guest", V=NameObject("/Off")),
        field("Tx", "password", V=Text("hidden"), Ff=NumberObject(1 << 13)),
        field("Tx", "empty", V=Text("")),
    ]
    note = {"/Subtype": NameObject("/FreeText"), "/Contents": Text("typed here")}
    writer = pypdf.PdfWriter()
    page = writer.add_blank_page(100, 100)
    made = [writer._add_object(DictionaryObject(each)) for each in fields]
    free = writer._add_object(DictionaryObject({NameObject(key): value for key, value in note.items()}))
    page[NameObject("/Annots")] = ArrayObject([*made, free])
    form = DictionaryObject({NameObject("/Fields"): ArrayObject(made)})
    writer.root_object[NameObject("/AcroForm")] = writer._add_object(form)
    stream = io.BytesIO()
    writer.write(stream)
    (row,) = read_corpus(documents(tmp_path, form_pdf=stream.getvalue()))
    assert row.text.split("\n\n") == [
        "typed here",
        "applicant: Quillfeather",
        "Town: Riga",
        "colours: red, blue",
        "member: Yes",
    ]


@pytest.mark.parametrize(("given", "title"), [("Two rivers", "Two rivers"), ("", "e"), ("  ", "e"), (None, "e")])
def test_a_pdf_has_the_title_that_it_says(tmp_path, given, title):
    """A title that is empty is none."""
    (row,) = read_corpus(documents(tmp_path, e_pdf=pdf("Hello river", title=given)))
    assert (row.title, row.text) == (title, "Hello river")


def test_what_gives_no_text_is_left_out_with_its_reason(tmp_path, caplog):
    """Broken, empty, large and foreign files and links to nowhere or outside are left out; the others are read."""
    folder = documents(
        tmp_path / "docs",
        a_pdf=b"no pdf",
        b_txt=b"caf\xe9",
        c_odt=b"PK",
        d_txt=" ",
        e_md="---\ntitle: x\n---\n",
        z_txt="Warsaw stands.",
    )
    (folder / "f.txt").symlink_to("nowhere")
    (tmp_path / "more").mkdir()
    (folder / "g").symlink_to(tmp_path / "more")
    os.mkfifo(folder / "h.txt")
    (tmp_path / "more" / "secret.txt").write_text("the key is 1234")
    (folder / "i.txt").symlink_to("../more/secret.txt")
    (folder / "z2.txt").symlink_to(folder / "z.txt")
    with (folder / "j.txt").open("wb") as file:
        file.truncate(MAX_DOCUMENT + 1)
    left = {}
    found = list(read_corpus(folder, leave_out=left.__setitem__))
    further = "".join(f", {suffix}" for suffix in offered_places("documents"))
    assert [row.id for row in found] == ["z.txt#1", "z2.txt#1"]
    assert left == {
        "a.pdf": left["a.pdf"],
        "b.txt": "the text is not UTF-8: 'utf-8' codec can't decode byte 0xe9 in position 3: unexpected end of data",
        "c.odt": f"the file's suffix is not one of .txt, .md, .html, .htm, .pdf{further}",
        "d.txt": "the document has no text",
        "e.md": "the document has no text",
        "f.txt": "the path is not a file, or is a broken link",
        "g": "links to folders are not followed",
        "h.txt": "the path is not a file, or is a broken link",
        "i.txt": "links to files outside of the folder are not followed",
        "j.txt": "the document has more than 64 MiB",
    }
    assert left["a.pdf"].startswith("the document cannot be read: PdfStreamError")
    caplog.clear()
    assert list(read_corpus(folder)) == found
    assert [record.args[0] for record in caplog.records if record.name == "ragbandit.documents"] == sorted(left)


def test_a_folder_of_which_nothing_is_left_is_an_error(tmp_path):
    """There is nothing to index, whatever the reason."""
    with pytest.raises(InvalidInput, match="has no document"):
        list(read_corpus(documents(tmp_path, a_txt="  ", b_pdf=b"no pdf")))


def test_passages_of_a_file(tmp_path):
    """Every passage comes back whole, whatever letters it has."""
    names = [*map(str, range(60)), 'with ": " in it', "北京", "\ud800", "a\nb", '"']
    rows = [Passage(id=name, title='": "', text=f"text {name}") for name in names]
    build_index(rows, tmp_path / "i")
    hits = asyncio.run(Bm25Retriever(tmp_path / "i").search("text", k=100))
    assert sorted((hit.passage for hit in hits), key=lambda row: row.id) == sorted(rows, key=lambda row: row.id)


def test_passages_of_dpr_are_read(tmp_path):
    """Text with tabs names its columns, in any order; quoted cells keep quotes, tabs and line breaks."""
    rows = (
        'id\ttext\ttitle\n1\t"Aaron (or ""Ahärôn"")\tis\na prophet"\tAaron\n2\t \tBlank\n3\tHe said 5\'10" once.\t""\n'
    )
    file = tmp_path / "psgs_w100.tsv.gz"
    file.write_bytes(gzip.compress(rows.encode()))
    left = []
    assert list(read_corpus(file, leave_out=lambda *pair: left.append(pair))) == [
        Passage(id="1", title="Aaron", text='Aaron (or "Ahärôn")\tis\na prophet'),
        Passage(id="3", title="", text="He said 5'10\" once."),
    ]
    assert left == [("line 4", "it has no text")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id\ttext\n1\tone\ttwo\n", "line 2 has 3 cells for 2 columns"),
        ('id\ttext\n1\tone\n2\t"two\n', "line 3 unexpected end of data"),
        ("id\ttext\ttext\n1\ta\tb\n", "line 1 names a column twice"),
        ("id\ttitle\n1\tone\n", "line 2: 'text' is missing"),
        ("text\ttitle\nWords\tone\n", "line 2: 'id' is missing"),
        ("1\tone\ttwo\n", "line 1 is not JSON"),
    ],
)
def test_faults_of_text_with_tabs_name_the_line(tmp_path, text, message):
    """A file without names of columns, a row with other cells, and an open quote are errors."""
    file = tmp_path / "corpus.tsv"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        list(read_corpus(file))


def test_other_names_of_the_text_are_read(tmp_path):
    """IRCoT calls the text paragraph_text, Pyserini contents; our own name has precedence."""
    rows = [
        {"id": 1, "title": "T", "paragraph_text": "p"},
        {"id": 2, "contents": "c"},
        {"_id": "no", "id": 3, "contents": "no", "text": "t"},
    ]
    file = write_rows(tmp_path / "corpus.jsonl", *(json.dumps(row).encode() for row in rows))
    assert [(row.id, row.text) for row in read_corpus(file)] == [("1", "p"), ("2", "c"), ("3", "t")]


def test_the_text_of_a_pdf_is_counted_before_it_is_joined(tmp_path, monkeypatch):
    """A small PDF whose pages all show one long content is left out, and its pages are not read to the end."""
    pypdf = pytest.importorskip("pypdf")
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject as Name

    writer, content, read = pypdf.PdfWriter(), DecodedStreamObject(), []
    content.set_data(b"BT /F1 12 Tf 1 0 0 1 10 10 Tm (" + b"word " * 2_000 + b") Tj ET")
    shared = writer._add_object(content)
    kinds = {Name("/Type"): Name("/Font"), Name("/Subtype"): Name("/Type1"), Name("/BaseFont"): Name("/Helvetica")}
    fonts = DictionaryObject({Name("/F1"): DictionaryObject(kinds)})
    for _ in range(40):
        page = writer.add_blank_page(width=200, height=200)
        page[Name("/Contents")] = shared
        page[Name("/Resources")] = DictionaryObject({Name("/Font"): fonts})
    writer.write(tmp_path / "same.pdf")
    (tmp_path / "good.txt").write_text("Good.")
    extract = pypdf.PageObject.extract_text
    monkeypatch.setattr(pypdf.PageObject, "extract_text", lambda page: read.append(page) or extract(page))
    monkeypatch.setattr(corpus, "MAX_DOCUMENT", 50_000)
    left_out = []
    assert [each.url for each in read_corpus(tmp_path, leave_out=lambda *why: left_out.append(why))] == ["good.txt"]
    assert left_out == [("same.pdf", "the document has more than 50,000 characters of text")]
    assert len(read) < 10
