"""Small files with a large text: they are refused before their text is made."""

import zipfile

import openpyxl
import pytest

from ragbandit.additions.office import package as package_module
from ragbandit.shared.additions import load_offered
from ragbandit.shared.errors import InvalidInput
from tests.additions.office.files import TYPES, package, said, word, xml
from tests.support.bombs import MOST, read_bomb

EMOJI = "\N{GRINNING FACE}"
TEXT = "of text, repeated text included"


def with_chart(path, *, points, label):
    """A .docx with a chart whose inner categories are all below a long one."""
    inner = "".join(f'<c:pt idx="{number}"><c:v>a</c:v></c:pt>' for number in range(points))
    levels = f'<c:lvl>{inner}</c:lvl><c:lvl><c:pt idx="0"><c:v>{label}</c:v></c:pt></c:lvl>'
    cache = f"<c:multiLvlStrRef><c:multiLvlStrCache>{levels}</c:multiLvlStrCache></c:multiLvlStrRef>"
    series = f"<c:ser><c:cat>{cache}</c:cat></c:ser>"
    chart = f"<c:chart><c:plotArea><c:barChart>{series}</c:barChart></c:plotArea></c:chart>"
    return word(path, "", chart=xml("c:chartSpace", chart))


def table(*, rows, span=60):
    """A table of Word whose first cell goes on in each row, over columns that only the row above has."""
    first = f'<w:tcPr><w:gridSpan w:val="{span}"/><w:vMerge w:val="restart"/></w:tcPr>'
    below = f'<w:tcPr><w:gridSpan w:val="{span}"/><w:vMerge/></w:tcPr>'
    lines = f"<w:tr><w:tc>{below}</w:tc><w:tc>{said('x')}</w:tc></w:tr>" * rows
    merged = f"<w:tr><w:tc>{first}{said(EMOJI * 990)}</w:tc><w:tc>{said('x')}</w:tc></w:tr>"
    return f"<w:tbl><w:tr>{'<w:tc/>' * (span + 1)}</w:tr>{merged}{lines}</w:tbl>"


def box(content):
    """A paragraph of Word with a text box."""
    shape = f"<w:pict><v:textbox><w:txbxContent>{content}</w:txbxContent></v:textbox></w:pict>"
    return f"<w:p><w:r>{shape}</w:r></w:p>"


def with_one_text(path, *, length, cells):
    """A .xlsx of one row, all of whose cells show the same text."""
    book = openpyxl.Workbook()
    book.active.append(["shared"])
    book.save(path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    strings = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    entry = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{strings}"/></Types>'
    parts["[Content_Types].xml"] = parts["[Content_Types].xml"].replace("</Types>", entry)
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    parts["xl/sharedStrings.xml"] = f'<sst xmlns="{space}"><si><t>{EMOJI} {EMOJI * length}</t></si></sst>'
    row = '<c t="s"><v>0</v></c>' * cells
    sheet = parts["xl/worksheets/sheet1.xml"]
    begin, end = sheet.index("<row"), sheet.index("</sheetData>")
    parts["xl/worksheets/sheet1.xml"] = f'{sheet[:begin]}<row r="1">{row}</row>{sheet[end:]}'
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


def with_many_slides(path):
    """A .pptx whose slides are all the same part, with a table of merged cells."""
    cell = f'<a:tc gridSpan="64"><a:txBody><a:p><a:r><a:t>{EMOJI * 990}</a:t></a:r></a:p></a:txBody></a:tc>'
    narrow = f"<a:tr>{'<a:tc/>' * 64}</a:tr>"
    table = f"<a:tbl>{narrow}{f'<a:tr>{cell}{cell}</a:tr>' * 20}</a:tbl>"
    slide = xml("p:sld", f"<p:cSld><p:spTree><p:graphicFrame>{table}</p:graphicFrame></p:spTree></p:cSld>")
    listed = xml("p:presentation", "<p:sldIdLst>" + "<p:sldId r:id='s1'/>" * 2_000 + "</p:sldIdLst>")
    rels = f'<Relationship Id="s1" Type="{TYPES}/slide" Target="slide.xml"/>'
    spaces = 'xmlns="http://schemas.openxmlformats.org/package/2006/relationships"'
    parts = {
        "ppt/presentation.xml": listed,
        "ppt/slide.xml": slide,
        "ppt/_rels/presentation.xml.rels": f"<Relationships {spaces}>{rels}</Relationships>",
    }
    return package(path, parts, main="ppt/presentation.xml")


#: name -> (ending, function that writes the file, why it is refused)
BOMBS = {
    "a long label of many points": (".docx", lambda path: with_chart(path, points=130_000, label=EMOJI * 1_000), TEXT),
    "a row of many cells": (
        ".docx",
        lambda path: word(path, f"<w:tbl><w:tr>{'<w:tc/>' * 300_000}</w:tr></w:tbl>"),
        "a row of a table has more than 1000 cells",
    ),
    "merged cells": (".docx", lambda path: word(path, table(rows=3_000)), TEXT),
    "merged cells in text boxes": (".docx", lambda path: word(path, box(box(table(rows=3_000)))), TEXT),
    "one long text in many cells": (".xlsx", lambda path: with_one_text(path, length=1_000_000, cells=16_000), TEXT),
    "one slide that is shown again and again": (".pptx", with_many_slides, TEXT),
}


@pytest.mark.parametrize("case", BOMBS)
def test_a_text_is_counted_before_it_is_made(tmp_path, case):
    """A process that reads a file whose text would be large has at most 400 MB of memory."""
    ending, write, reason = BOMBS[case]
    path = write(tmp_path / f"bomb{ending}")
    read = "load_offered('documents')[path.suffix](path)[0]"
    refusal, peak = read_bomb(path, imports="from ragbandit.shared.additions import load_offered", read=read)
    assert reason in refusal
    assert peak < MOST


def test_too_many_tags_are_not_parsed(tmp_path, monkeypatch):
    """A part with more tags than a document may have is refused before a parser reads it."""
    monkeypatch.setattr(package_module, "MAX_MARKS", 20_000)
    fed, feed = bytearray(), package_module._Reading.feed

    def note_and_feed(reading, chunk, *, most):
        fed.extend(chunk)
        return feed(reading, chunk, most=most)

    monkeypatch.setattr(package_module._Reading, "feed", note_and_feed)
    path = word(tmp_path / "bomb.docx", "<w:p/>" * 20_000)
    with pytest.raises(InvalidInput, match="too many tags and attributes"):
        load_offered("documents")[".docx"](path)
    assert b"Relationship" in fed
    assert b"<w:p/>" not in fed
