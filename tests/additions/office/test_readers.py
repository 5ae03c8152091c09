"""Office files as a corpus: what a reader sees of them, and files that are refused."""

import datetime
import warnings
import zipfile

import openpyxl
import pytest

from ragbandit.additions.office import package as package_module, sheets
from ragbandit.shared.additions import load_offered
from ragbandit.shared.errors import InvalidInput
from ragbandit.strategies.retrievers.corpus import read_corpus
from tests.additions.office.files import TYPES, links, package, run, said, shape, slides, word, xml

READERS = load_offered("documents")
BOX = f"<w:txbxContent>{said('In a box.')}</w:txbxContent>"
SHAPE = f"<wps:wsp><wps:txbx>{BOX}</wps:txbx></wps:wsp>"
#: what is in the body of a .docx -> its text
WORD = {
    "paragraphs of several runs": (said("One ", "line.") + said("An", "other."), "One line.\nAnother."),
    "tabs and breaks": ("<w:p><w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>c</w:t></w:r></w:p>", "a b\nc"),
    "hyphens": ("<w:p><w:r><w:t>e</w:t><w:noBreakHyphen/><w:t>mail</w:t></w:r></w:p>", "e-mail"),
    "an insertion": (f"<w:p>{run('It was ')}<w:ins>{run('not ')}</w:ins>{run('so.')}</w:p>", "It was not so."),
    "a deletion": (
        f"<w:p>{run('It was ')}<w:del><w:r><w:delText>not </w:delText></w:r></w:del>{run('so.')}</w:p>",
        "It was so.",
    ),
    "a deletion with texts": (f"<w:p>{run('It was ')}<w:del>{run('not ')}</w:del>{run('so.')}</w:p>", "It was so."),
    "a move": (
        f"<w:p><w:moveFrom>{run('late ')}</w:moveFrom>{run('came ')}<w:moveTo>{run('late')}</w:moveTo></w:p>",
        "came late",
    ),
    "a deleted end of a paragraph": (
        f"<w:p><w:pPr><w:rPr><w:del/></w:rPr></w:pPr>{run('One ')}</w:p>{said('line.')}",
        "One line.",
    ),
    "a content control around paragraphs": (
        f"<w:sdt><w:sdtContent>{said('Inside.')}</w:sdtContent></w:sdt>",
        "Inside.",
    ),
    "a content control in a line": (
        f"<w:p>{run('Dear ')}<w:sdt><w:sdtPr/><w:sdtContent>{run('Ada')}</w:sdtContent></w:sdt></w:p>",
        "Dear Ada",
    ),
    "a smart tag": (f"<w:p>{run('In ')}<w:smartTag>{run('Paris')}</w:smartTag></w:p>", "In Paris"),
    "custom XML": (f"<w:customXml>{said('Kept.')}</w:customXml>", "Kept."),
    "a link": (f"<w:p><w:hyperlink>{run('here')}</w:hyperlink></w:p>", "here"),
    "a simple field": (f"<w:p>{run('To ')}<w:fldSimple>{run('Ada')}</w:fldSimple></w:p>", "To Ada"),
    "a field and its code": (
        f"<w:p><w:r><w:instrText> PAGE </w:instrText></w:r>{run('page 7')}</w:p>",
        "page 7",
    ),
    "directions": (f"<w:p><w:bdo>{run('abc')}</w:bdo><w:dir>{run('def')}</w:dir></w:p>", "abcdef"),
    "ruby": (
        f"<w:p><w:r><w:ruby><w:rt>{run('とう')}</w:rt><w:rubyBase>{run('東')}</w:rubyBase></w:ruby></w:r></w:p>",
        "東",
    ),
    "a formula": (f"<w:p>{run('It is ')}<m:oMath><m:r><m:t>E=mc²</m:t></m:r></m:oMath></w:p>", "It is E=mc²"),
    "hidden text": (f"<w:p>{run('Seen.')}{run('Hidden.', '<w:vanish/>')}</w:p>", "Seen."),
    "text that is not hidden": ("<w:p>" + run("Seen.", "<w:vanish w:val='0'/>") + "</w:p>", "Seen."),
    "a box in both forms": (
        (
            f"<w:p>{run('Before ')}<w:r><mc:AlternateContent><mc:Choice Requires='wps'><w:drawing>{SHAPE}</w:drawing>"
            f"</mc:Choice><mc:Fallback><w:pict><v:textbox>{BOX}</v:textbox></w:pict></mc:Fallback></mc:AlternateContent>"
            f"</w:r>{run('after.')}</w:p>{said('Next.')}"
        ),
        "Before after.\nIn a box.\nNext.",
    ),
    "a box in the new form": (
        (
            f"<w:p><w:r><mc:AlternateContent><mc:Choice Requires='wps'><w:drawing>{SHAPE}</w:drawing></mc:Choice>"
            "</mc:AlternateContent></w:r></w:p>"
        ),
        "In a box.",
    ),
    "a box in the old form": (f"<w:p><w:r><w:pict><v:textbox>{BOX}</v:textbox></w:pict></w:r></w:p>", "In a box."),
    "a choice without text": (
        (
            f"<w:p><w:r><mc:AlternateContent><mc:Choice Requires='x'><w:drawing/></mc:Choice><mc:Fallback><w:pict>"
            f"<v:textbox>{BOX}</v:textbox></w:pict></mc:Fallback></mc:AlternateContent></w:r></w:p>"
        ),
        "In a box.",
    ),
    "a table": (
        (
            f"<w:tbl><w:tr><w:tc>{said('Name')}</w:tc><w:tc>{said('Age')}</w:tc></w:tr>"
            f"<w:tr><w:tc>{said('Ada')}{said('Lovelace')}</w:tc><w:tc>{said('36')}</w:tc></w:tr></w:tbl>"
        ),
        "Name | Age\nAda Lovelace | 36",
    ),
    "a table within a table": (
        f"<w:tbl><w:tr><w:tc>{said('a')}<w:tbl><w:tr><w:tc>{said('b')}</w:tc></w:tr></w:tbl></w:tc></w:tr></w:tbl>",
        "a b",
    ),
    "cells in content controls": (
        (
            f"<w:tbl><w:sdt><w:sdtContent><w:tr><w:sdt><w:sdtContent><w:tc>{said('a')}</w:tc></w:sdtContent></w:sdt>"
            f"<w:tc>{said('b')}</w:tc></w:tr></w:sdtContent></w:sdt></w:tbl>"
        ),
        "a | b",
    ),
    "deleted rows and cells": (
        (
            f"<w:tbl><w:tr><w:trPr><w:del/></w:trPr><w:tc>{said('gone')}</w:tc></w:tr>"
            f"<w:tr><w:tc><w:tcPr><w:cellDel/></w:tcPr>{said('gone')}</w:tc><w:tc>{said('kept')}</w:tc></w:tr></w:tbl>"
        ),
        "kept",
    ),
}


@pytest.mark.parametrize("case", WORD)
def test_word(tmp_path, case):
    """The text of a .docx is what a reader sees after all changes are accepted."""
    body, text = WORD[case]
    assert READERS[".docx"](word(tmp_path / "a.docx", body)) == ("", text)


STEP = "<a:p><a:r><a:t>A step.</a:t></a:r></a:p>"


def test_notes_and_diagrams_of_word(tmp_path):
    """Foot- and endnotes, comments and diagrams follow the body."""
    path = word(
        tmp_path / "a.docx",
        said("Body."),
        footnotes=xml("w:footnotes", f"<w:footnote>{said('A footnote.')}</w:footnote>"),
        endnotes=xml("w:endnotes", f"<w:endnote>{said('An endnote.')}</w:endnote>"),
        comments=xml("w:comments", f"<w:comment>{said('A comment.')}</w:comment>"),
        diagramData=xml(
            "dgm:dataModel",
            "<dgm:ptLst><dgm:pt><dgm:t><a:p><a:r><a:t>A step.</a:t></a:r></a:p></dgm:t></dgm:pt></dgm:ptLst>",
        ),
        title="The  title",
    )
    assert READERS[".docx"](path) == ("The title", "Body.\nA footnote.\nAn endnote.\n[comment: A comment.]\nA step.")


def test_strict_documents(tmp_path):
    """Namespaces of ISO's strict form make no difference."""
    path = word(tmp_path / "a.docx", said("Body."))
    with zipfile.ZipFile(path) as archive:
        text = archive.read("word/document.xml").decode()
    text.replace("schemas.openxmlformats.org/wordprocessingml/2006/main", "purl.oclc.org/ooxml/wordprocessingml/main")
    path = package(tmp_path / "b.docx", {"word/document.xml": text}, main="/word/document.xml")
    assert READERS[".docx"](path) == ("", "Body.")


TABLE = (
    "<p:graphicFrame><a:graphic><a:graphicData><a:tbl><a:tr><a:tc><a:txBody><a:p><a:r><a:t>Q1</a:t></a:r></a:p></a:txBody>"
    "</a:tc><a:tc><a:txBody><a:p><a:r><a:t>7</a:t></a:r></a:p></a:txBody></a:tc></a:tr></a:tbl></a:graphicData></a:graphic>"
    "</p:graphicFrame>"
)
CHOICE = f"<mc:Choice>{shape('New')}</mc:Choice><mc:Fallback>{shape('Old')}</mc:Fallback>"
CHOICE = f"<mc:AlternateContent>{CHOICE}</mc:AlternateContent>"
NUMBER = "<p:sp><p:txBody><a:p><a:fld type='slidenum'><a:t>2</a:t></a:fld></a:p></p:txBody></p:sp>"


def test_slides(tmp_path):
    """Slides come in the presentation's order, with groups, tables and notes, and without their numbers."""
    path = slides(
        tmp_path / "a.pptx",
        shape("Plan", "First point") + f"<p:grpSp>{shape('In a group')}</p:grpSp>",
        TABLE + NUMBER + CHOICE,
        notes={1: shape("Say hello.") + NUMBER},
        title="Talk",
    )
    assert READERS[".pptx"](path) == ("Talk", "Plan\nFirst point\nIn a group\nSay hello.\n\nQ1 | 7\nNew")


def book(path, **rows):
    """A .xlsx with a sheet for each name."""
    whole = openpyxl.Workbook()
    whole.remove(whole.active)
    for name, content in rows.items():
        sheet = whole.create_sheet(name)
        for row in content:
            sheet.append(row)
    whole.properties.title = "Prices"
    whole.save(path)
    return path


def test_sheets(tmp_path):
    """Each row of a sheet is a line with the names of its columns, and values are shown as people write them."""
    day = datetime.datetime(2024, 5, 1)
    stock = [
        ["Stock of May"],
        [],
        ["name", "price", None, "since", "sold"],
        ["Widget", 3.0, "blue", day, True],
        ["Gadget", 2.5, None, day.replace(hour=9), None, "extra"],
    ]
    plain = [[1, 2], [3, None, 4.25]]
    path = book(tmp_path / "a.xlsx", stock=stock, plain=plain)
    text = (
        "stock\nStock of May\nname | price | since | sold\n"
        "name: Widget; price: 3; blue; since: 2024-05-01; sold: TRUE\n"
        "name: Gadget; price: 2.5; since: 2024-05-01 09:00:00; extra\n\n"
        "plain\n1 | 2\n3 | 4.25"
    )
    assert READERS[".xlsx"](path) == ("Prices", text)


def test_a_folder_with_office_files(tmp_path):
    """A folder may have Office files; a document without a title has the name of its file."""
    word(tmp_path / "letter.docx", said("A soft hy\u00adphen.") + said("Second."), title="Letter")
    slides(tmp_path / "TALK.PPTX", shape("A slide."))
    book(tmp_path / "list.xlsx", one=[["a", "b"]])
    passages = {passage.url: passage for passage in read_corpus(tmp_path)}
    assert {url: (each.title, each.text) for url, each in passages.items()} == {
        "TALK.PPTX": ("TALK", "A slide."),
        "letter.docx": ("Letter", "A soft hyphen.\nSecond."),
        "list.xlsx": ("Prices", "one\na | b"),
    }


# ------------------------------------------------------------------------------------------------- what is refused


def patched(path, *, flags):
    """The file with these bits in the flags of each part, of which 1 is encryption."""
    data = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(mark)
        while at >= 0:
            data[at + offset] |= flags
            at = data.find(mark, at + 4)
    path.write_bytes(data)


def torn(path):
    path.write_bytes(path.read_bytes()[:-60])


def with_part(path, name, content, *, compression=zipfile.ZIP_DEFLATED):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the part is there twice, and the last one counts
        with zipfile.ZipFile(path, "a", compression) as archive:
            archive.writestr(name, content)


MAIN = {".docx": "word/document.xml", ".pptx": "ppt/presentation.xml", ".xlsx": "xl/workbook.xml"}
DEEP = "<w:a>" * 20_000 + "</w:a>" * 20_000
DTD = '<!DOCTYPE a [<!ENTITY b "bbbbbbbbbb"><!ENTITY c "&b;&b;&b;&b;&b;&b;">]><a>&c;</a>'
MANY_ATTRIBUTES = " ".join(f"a{n}=''" for n in range(20_000))
REFUSED = {
    "no ZIP file": (lambda path: path.write_bytes(b"text"), "the document is damaged: "),
    "empty": (lambda path: path.write_bytes(b""), "the document is damaged: "),
    "torn": (torn, "the document is damaged: "),
    "encrypted by Office": (
        lambda path: path.write_bytes(b"\xd0\xcf\x11\xe0" + bytes(600)),
        "the document is encrypted",
    ),
    "encrypted by ZIP": (lambda path: patched(path, flags=1), "the document is encrypted"),
    "no main part": (lambda path: with_part(path, "_rels/.rels", links()), "the document "),
    "no XML": (lambda path: with_part(path, MAIN[path.suffix], "text"), "the document "),
    "a DTD": (lambda path: with_part(path, MAIN[path.suffix], DTD), "the document has a DTD"),
    "a DTD in UTF-16": (
        lambda path: with_part(path, MAIN[path.suffix], DTD.encode("utf-16")),
        "the document has a DTD",
    ),
    "a ZIP bomb": (
        lambda path: with_part(path, MAIN[path.suffix], b"<a>" + b" " * 3_000_000 + b"</a>"),
        "more than 2 MiB when it is expanded",
    ),
    "a bomb before the parser": (
        lambda path: with_part(path, MAIN[path.suffix], b" " * 3_000_000),
        "more than 2 MiB when it is expanded",
    ),
    "too many tags": (
        lambda path: with_part(path, MAIN[path.suffix], b"<a>" + b"<b/>" * 20_000 + b"</a>"),
        "too many tags and attributes",
    ),
    "too many attributes": (
        lambda path: with_part(path, MAIN[path.suffix], f"<a {MANY_ATTRIBUTES}/>"),
        "too many tags and attributes",
    ),
    "too deep": (lambda path: with_part(path, MAIN[path.suffix], "<a>" * 300 + "</a>" * 300), "more than 256 deep"),
    "another compression": (
        lambda path: with_part(path, "x.bin", b"", compression=zipfile.ZIP_LZMA),
        "its compression does not occur in Office documents",
    ),
    "too many parts": (lambda path: [with_part(path, f"{n}.bin", b"") for n in range(25)], "more than 24 parts"),
}


@pytest.mark.parametrize("suffix", MAIN)
@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_cannot_be_read_is_left_out(tmp_path, monkeypatch, case, suffix):
    """Damaged and encrypted files, and files that expand beyond the caps, are left out with the reason."""
    monkeypatch.setattr(package_module, "MAX_EXPANDED", 2 * 1024 * 1024)
    monkeypatch.setattr(package_module, "MAX_PARTS", 24)
    monkeypatch.setattr(package_module, "MAX_MARKS", 20_000)
    path = tmp_path / f"bad{suffix}"
    if suffix == ".docx":
        word(path, said("a"))
    elif suffix == ".pptx":
        slides(path, shape("a"))
    else:
        book(path, one=[["a"]])
    damage, words = REFUSED[case]
    damage(path)
    (tmp_path / "good.txt").write_text("Good.")
    left_out = []
    passages = list(read_corpus(tmp_path, leave_out=lambda *why: left_out.append(why)))
    assert [passage.text for passage in passages] == ["Good."]
    ((name, reason),) = left_out
    assert name == path.name
    assert words in reason


#: what the main part of a .docx may contain -> why it is refused
HOSTILE = {
    "a text": ("<w:p><w:r><w:t>" + "a" * 3_000_000, "more than 2 MiB when it is expanded"),
    "tags": ("<w:p>" + "<a/>" * 20_000, "too many tags and attributes"),
    "tags of many paragraphs": ("<w:p/>" * 20_000, "too many tags and attributes"),
    "attributes": (f"<w:p {MANY_ATTRIBUTES}/>", "too many tags and attributes"),
    "one paragraph": ("<w:p>" + "<a b=''/>" * 4_000, "one element of the document has more than 5000 tags"),
    "one tag": (f"<w:p a='{'a' * 1_000_000}'/>", "a tag of more than 0 MiB"),
    "one comment": (f"<!--{'>' * 800_000}-->", "a tag of more than 0 MiB"),
    "signs of tags in a comment": (f"<!--{'<>' * 400_000}-->", "too many tags and attributes"),
    "depth": ("<w:p>" * 300, "nested more than 256 deep"),
}


@pytest.mark.parametrize("name", ["document.xml", "document.bin"])
@pytest.mark.parametrize("case", HOSTILE)
def test_a_part_has_caps_whatever_its_name(tmp_path, monkeypatch, case, name):
    """The part that is read is within the caps, also if a relationship names one that does not end in .xml."""
    monkeypatch.setattr(package_module, "MAX_EXPANDED", 2 * 1024 * 1024)
    monkeypatch.setattr(package_module, "MAX_MARKS", 20_000)
    monkeypatch.setattr(package_module, "MAX_TREE", 5_000 if case == "one paragraph" else 20_000)
    monkeypatch.setattr(package_module, "MAX_TAG", 512 * 1024)
    content, words = HOSTILE[case]
    whole = xml("w:document", f"<w:body>{content}").removesuffix("</w:document>")
    path = package(tmp_path / "a.docx", {f"word/{name}": whole}, main=f"word/{name}")
    with pytest.raises(InvalidInput, match=words):
        READERS[".docx"](path)


def test_a_dtd_is_refused_whatever_the_name_of_its_part(tmp_path):
    """A DTD is refused in a part of any name, before its entities become text."""
    whole = '<!DOCTYPE a [<!ENTITY b "bbbbbbbb">]>' + xml("w:document", f"<w:body>{said('&b;')}</w:body>")
    path = package(
        tmp_path / "a.docx",
        {"word/document.bin": whole.replace('<?xml version="1.0" encoding="UTF-8"?>', "")},
        main="word/document.bin",
    )
    with pytest.raises(InvalidInput, match="the document has a DTD"):
        READERS[".docx"](path)


def test_a_part_that_many_relationships_name_counts_each_time(tmp_path, monkeypatch):
    """Reading one part again and again uses up the caps of the document."""
    monkeypatch.setattr(package_module, "MAX_MARKS", 20_000)
    notes = xml("w:footnotes", f"<w:footnote>{'<w:p/>' * 3_000}</w:footnote>")
    rels = links(*((f"r{number}", "footnotes", "notes.xml") for number in range(20)))
    main = xml("w:document", f"<w:body>{said('a')}</w:body>")
    parts = {"word/document.xml": main, "word/_rels/document.xml.rels": rels, "word/notes.xml": notes}
    path = package(tmp_path / "a.docx", parts, main="word/document.xml")
    with pytest.raises(InvalidInput, match="too many tags and attributes"):
        READERS[".docx"](path)


#: what of a .xlsx is replaced -> (part, text in it, new text, why the document is refused)
SHEETS = {
    "a sheet that the workbook lists again and again": (
        "xl/workbook.xml",
        "<sheets>",
        "<sheets>" + f'<sheet xmlns:r="{TYPES}" name="two" sheetId="9" r:id="rId1"/>' * 5,
        "xl/worksheets/sheet1.xml more than once",
    ),
    "cells": (
        "xl/worksheets/sheet1.xml",
        "</sheetData>",
        "<row>" + "<c/>" * 20_000 + "</row></sheetData>",
        "too many tags and attributes",
    ),
    "attributes": (
        "xl/worksheets/sheet1.xml",
        "<sheetData>",
        f"<sheetData {MANY_ATTRIBUTES}>",
        "too many tags and attributes",
    ),
    "a long tag": (
        "xl/worksheets/sheet1.xml",
        "<sheetData>",
        f"<sheetData a='{'a' * 1_000_000}'>",
        "a tag of more than",
    ),
    "a DTD": ("xl/worksheets/sheet1.xml", "<worksheet", DTD.partition("<a>")[0] + "<worksheet", "has a DTD"),
    "shared texts": ("xl/sharedStrings.xml", "</sst>", "<si/>" * 7_000 + "</sst>", "too many tags and attributes"),
    "runs of a shared text": (
        "xl/sharedStrings.xml",
        "</sst>",
        f"<si>{'<r/>' * 7_000}</si></sst>",
        "too many tags and attributes",
    ),
    "runs of a text": (
        "xl/worksheets/sheet1.xml",
        "</sheetData>",
        f"<is>{'<r/>' * 7_000}</is></sheetData>",
        "too many tags and attributes",
    ),
    "styles": ("xl/styles.xml", "</cellXfs>", "<xf/>" * 2_000 + "</cellXfs>", "too many tags and attributes"),
    "relationships": (
        "xl/_rels/workbook.xml.rels",
        "</Relationships>",
        '<Relationship Id="x" Type="y" Target="z"/>' * 600 + "</Relationships>",
        "too many tags and attributes",
    ),
    "content types": (
        "[Content_Types].xml",
        "</Types>",
        "<Default/>" * 2_000 + "</Types>",
        "too many tags and attributes",
    ),
    "merged cells": (
        "xl/worksheets/sheet1.xml",
        "</sheetData>",
        "</sheetData><mergeCells>" + '<mergeCell ref="A1:XFD1"/>' * 3_000 + "</mergeCells>",
        "they cover too many columns",
    ),
    "a theme": ("xl/theme/theme1.xml", "</a:theme>", "a" * 3_000_000 + "</a:theme>", "2 MiB when it is expanded"),
}


def rewritten(path, *, part, old, new, ending):
    """Write a workbook again, with new text in a part, shared texts, and another ending of its sheet's name.

    old: the text in the part before; None stands for all of it.
    """
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    strings = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    types = parts["[Content_Types].xml"]
    if strings not in types:
        entry = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{strings}"/></Types>'
        parts["[Content_Types].xml"] = types.replace("</Types>", entry)
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    parts.setdefault("xl/sharedStrings.xml", f'<sst xmlns="{space}"></sst>')
    assert old is None or old in parts[part]
    parts[part] = new if old is None else parts[part].replace(old, new, 1)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(*(each.replace("sheet1.xml", f"sheet1.{ending}") for each in (name, content)))


@pytest.mark.parametrize("case", SHEETS)
def test_a_workbook_has_caps_whatever_the_names_of_its_parts(tmp_path, monkeypatch, case):
    """No part of a workbook, whatever its name, takes more work than the caps allow."""
    part, old, new, words = SHEETS[case]
    path = book(tmp_path / "a.xlsx", one=[["a", "b"], ["x", "y"]])
    rewritten(path, part=part, old=old, new=old, ending="bin")
    assert READERS[".xlsx"](path) == ("Prices", "one\na | b\na: x; b: y")
    rewritten(path, part=part.replace("sheet1.xml", "sheet1.bin"), old=old, new=new, ending="bin")
    monkeypatch.setattr(package_module, "MAX_EXPANDED", 2 * 1024 * 1024)
    monkeypatch.setattr(package_module, "MAX_MARKS", 20_000)
    monkeypatch.setattr(package_module, "MAX_TREE", 5_000 if case == "one row" else 20_000)
    monkeypatch.setattr(package_module, "MAX_FOREIGN_TAG", 512 * 1024)
    with pytest.raises(InvalidInput, match=words.replace("sheet1.xml", "sheet1.bin")):
        READERS[".xlsx"](path)


def test_deep_and_strange_parts(tmp_path):
    """Elements that are nested too deep are a reason, and slides that are listed and missing are passed over."""
    with pytest.raises(InvalidInput, match="the document is damaged"):
        READERS[".docx"](word(tmp_path / "a.docx", DEEP))
    lists = xml("p:presentation", "<p:sldIdLst><p:sldId id='256' r:id='s9'/><p:sldId id='257'/></p:sldIdLst>")
    path = package(tmp_path / "a.pptx", {"ppt/presentation.xml": lists}, main="ppt/presentation.xml")
    assert READERS[".pptx"](path) == ("", "")


@pytest.mark.parametrize("kind", ["documents", "sheets"])
def test_a_text_has_a_cap(tmp_path, monkeypatch, kind):
    """A text beyond MAX_TEXT is refused, also if it is one long text that many cells of a sheet show."""
    monkeypatch.setattr(package_module, "MAX_TEXT", 1000)
    long = (
        book(tmp_path / "a.xlsx", one=[["x" * 90]] * 12)
        if kind == "sheets"
        else word(tmp_path / "a.docx", said("x" * 90) * 12)
    )
    with pytest.raises(InvalidInput, match="MiB of text, repeated text included"):
        READERS[long.suffix](long)


def test_a_text_counts_as_it_is_in_memory(tmp_path, monkeypatch):
    """One character that is not ASCII makes each character of the whole text four bytes long."""
    monkeypatch.setattr(package_module, "MAX_TEXT", 2_000)
    path = word(tmp_path / "a.docx", said("x" * 90) * 12)
    assert len(READERS[".docx"](path)[1]) == 91 * 12 - 1
    with pytest.raises(InvalidInput, match="MiB of text"):
        READERS[".docx"](word(path, said("x" * 90) * 12 + said("\u4e00")))


@pytest.mark.parametrize("cell", ["A1048577", "A999999999", "XFD1"])
def test_a_sheet_has_a_cap(tmp_path, monkeypatch, cell):
    """Rows that no Excel has, and more cells than the cap, are refused and not counted one by one for ever."""
    monkeypatch.setattr(sheets, "_MAX_CELLS", 10_000)
    path = book(tmp_path / "a.xlsx", one=[["x"]])
    with zipfile.ZipFile(path) as archive:
        text = archive.read("xl/worksheets/sheet1.xml").decode()
    number = cell.lstrip("ADFX")
    with_part(
        path,
        "xl/worksheets/sheet1.xml",
        text.replace('r="A1"', f'r="{cell}"').replace('<row r="1"', f'<row r="{number}"'),
    )
    with pytest.raises(InvalidInput, match="more than 1048576 rows, or 10000 cells"):
        READERS[".xlsx"](path)
