"""Office files as people see them: percentages, merged cells, charts, edges of pages, and what is hidden."""

import openpyxl
import pytest
from openpyxl.chart import BarChart
from openpyxl.comments import Comment

from ragbandit.additions.office import sheets
from ragbandit.shared.additions import load_offered
from ragbandit.shared.errors import InvalidInput
from ragbandit.strategies.retrievers.corpus import read_corpus
from tests.additions.office.files import chart, said, shape, slides, word, xml
from tests.additions.office.test_readers import rewritten

READERS = load_offered("documents")


def lines_of(path):
    return READERS[path.suffix](path)[1].split("\n")


def workbook(path, *rows, merged=(), fill=None):
    """A .xlsx with one sheet "one". fill: function that changes the sheet."""
    whole = openpyxl.Workbook()
    sheet = whole.active
    sheet.title = "one"
    for row in rows:
        sheet.append(row)
    for area in merged:
        sheet.merge_cells(area)
    if fill:
        fill(sheet)
    whole.save(path)
    return path


# ------------------------------------------------------------------------------------------------------ percentages

#: (value, number format) -> what people see
SHOWN = {
    (0.475, "0%"): "48%",
    (0.475, "0.00%"): "47.50%",
    (0.475, "0.0%"): "47.5%",
    (0.475, "0.0##%"): "47.5%",
    (0.475, "0.0 %"): "47.5 %",
    (1.0, "0.0%"): "100.0%",
    (0.285, "0%"): "29%",
    (12.5, "#,##0%"): "1,250%",
    (-0.05, "0.0%"): "-5.0%",
    (-0.05, "0%;[Red](0%)"): "(5%)",
    (-0.0001, "0%"): "0%",
    (0, '0%;-0%;"-"'): "-",
    (0, "0%;-0%;"): "0%",
    (0.475, "[$-407]0.0%_);(0.0%)"): "47.5%",
    (0.475, '_-* 0.0%_-;-* 0.0%_-;_-* "-"??_-;_-@_-'): "47.5%",
    (2, "[>1]0%;0.0%"): "200%",
    (0.5, "[>1]0%;0.0%"): "50.0%",
    (47.5, '0.0"%"'): "47.5%",
    (47.5, "0.0\\%"): "47.5%",
    (0.5, '+0" percent: "0%'): "0.5",  # a format that is not understood
    (0.475, "0.0"): "0.475",
    (1234.5, '"$"#,##0.00'): "1234.5",
    (1234.5, "#,##0.00"): "1234.5",
    (True, "0%"): "TRUE",
    ("47.5", "0%"): "47.5",
}


def test_a_percentage_of_a_sheet_is_read_as_people_see_it(tmp_path):
    """A number has the digits and signs of its format of percentages, and of other formats its stored value."""

    def fill(sheet):
        for number, (value, code) in enumerate(SHOWN, start=1):
            sheet.cell(number, 1, value).number_format = code

    assert lines_of(workbook(tmp_path / "a.xlsx", fill=fill))[1:] == list(SHOWN.values())


# ----------------------------------------------------------------------------------------------------- merged cells

#: what is merged in a sheet -> (rows, merged cells, lines)
MERGED = {
    "rows": (
        [["Region", "City", "Shops"], ["North", "Aville", 3], [None, "Beton", 4], ["South", "Cestad", 5]],
        ["A2:A3"],
        [
            "Region | City | Shops",
            "Region: North; City: Aville; Shops: 3",
            "Region: North; City: Beton; Shops: 4",
            "Region: South; City: Cestad; Shops: 5",
        ],
    ),
    "a block": (
        [["Item", "May", "June"], ["Heron", "sold out", None], ["Numbat", None, None]],
        ["B2:C3"],
        [
            "Item | May | June",
            "Item: Heron; May: sold out; June: sold out",
            "Item: Numbat; May: sold out; June: sold out",
        ],
    ),
    "a header of two rows": (
        [["Region", "2024", None, "Note"], [None, "Q1", "Q2", None], ["North", 3, 4, "good"]],
        ["A1:A2", "B1:C1", "D1:D2"],
        [
            "Region | 2024 | 2024 | Note",
            "Region | Q1 | Q2 | Note",
            "Region: North; 2024 Q1: 3; 2024 Q2: 4; Note: good",
        ],
    ),
    "a header with years below": (
        [["Region", "Sales", None], [None, 2023, 2024], ["North", 3, 4]],
        ["B1:C1"],
        ["Region | Sales | Sales", "2023 | 2024", "Region: North; Sales 2023: 3; Sales 2024: 4"],
    ),
    "a header of one row": (
        [["Name", "Contact", None], ["Ada", "a@example.org", "+49 1"]],
        ["B1:C1"],
        ["Name | Contact | Contact", "Name: Ada; Contact: a@example.org; Contact: +49 1"],
    ),
    "a title": (
        [["Stock of May", None], ["Item", "Price"], ["Heron", 3], ["Birds", None], ["Numbat", 4]],
        ["A1:B1", "A4:B4"],
        ["Stock of May", "Item | Price", "Item: Heron; Price: 3", "Birds", "Item: Numbat; Price: 4"],
    ),
    "a label beside the table": (
        [["Birds", "Item", "Price"], [None, "Heron", "three"], [None, "Numbat", "four"]],
        ["A1:A3"],
        ["Birds | Item | Price", "Birds: Birds; Item: Heron; Price: three", "Birds: Birds; Item: Numbat; Price: four"],
    ),
    "a text over many rows": ([["A note."], [None], [None], ["Next."]], ["A1:D3"], ["A note.", "Next."]),
    "a long text": ([["x" * 2_000, 1], [None, 2]], ["A1:A2"], ["x" * 2_000 + " | 1", "2"]),
    "nothing": ([["a", "b"], [None, 1], [None, 2]], ["A2:A3"], ["a | b", "b: 1", "b: 2"]),
}


@pytest.mark.parametrize("case", MERGED)
def test_the_text_of_a_merged_cell_of_a_sheet_belongs_to_each_row_and_column(tmp_path, case):
    """A merged label is read in each row and column that it covers, and a title or a long text once."""
    rows, merged, lines = MERGED[case]
    assert lines_of(workbook(tmp_path / "a.xlsx", *rows, merged=merged))[1:] == lines


def test_merged_cells_count_as_cells(tmp_path, monkeypatch):
    """A small sheet whose merged cells cover many columns in many rows is refused."""
    path = workbook(tmp_path / "a.xlsx", *[[number] for number in range(1, 30)])
    merged = '</sheetData><mergeCells><mergeCell ref="A1:XFD29"/></mergeCells>'
    rewritten(path, part="xl/worksheets/sheet1.xml", old="</sheetData>", new=merged, ending="xml")
    monkeypatch.setattr(sheets, "_MAX_CELLS", 100_000)
    with pytest.raises(InvalidInput, match="or 100000 cells"):
        READERS[".xlsx"](path)


def word_cell(text, properties=""):
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{said(text)}</w:tc>"


DOWN, GOES_ON = '<w:vMerge w:val="restart"/>', "<w:vMerge/>"
#: rows of a table of Word -> lines
WORD_TABLES = {
    "rows": (
        [word_cell("North", DOWN) + word_cell("Aville"), word_cell("", GOES_ON) + word_cell("Beton")],
        ["North | Aville", "North | Beton"],
    ),
    "the next merged cell": (
        [
            word_cell("North", DOWN) + word_cell("Aville"),
            word_cell("", '<w:vMerge w:val="continue"/>') + word_cell("Beton"),
            word_cell("South", DOWN) + word_cell("Cestad"),
            word_cell("East") + word_cell("Dorf"),
        ],
        ["North | Aville", "North | Beton", "South | Cestad", "East | Dorf"],
    ),
    "columns": (
        [
            word_cell("Region") + word_cell("2024", '<w:gridSpan w:val="2"/>'),
            word_cell("North") + word_cell("Q1") + word_cell("Q2"),
        ],
        ["Region | 2024 | 2024", "North | Q1 | Q2"],
    ),
    "columns that no row divides": (
        [word_cell("Name", '<w:gridSpan w:val="5"/>') + word_cell("Ada", '<w:gridSpan w:val="3"/>')],
        ["Name | Ada"],
    ),
    "columns in the old form": (
        [
            word_cell("2024", '<w:hMerge w:val="restart"/>') + word_cell("", "<w:hMerge/>") + word_cell("Sum"),
            word_cell("Q1") + word_cell("Q2") + word_cell("7"),
        ],
        ["2024 | 2024 | Sum", "Q1 | Q2 | 7"],
    ),
    "rows beside wide cells": (
        [
            word_cell("Both", '<w:gridSpan w:val="2"/>') + word_cell("North", DOWN),
            word_cell("a") + word_cell("b") + word_cell("", GOES_ON),
        ],
        ["Both | Both | North", "a | b | North"],
    ),
    "a row that begins later": (
        [
            word_cell("a") + word_cell("North", DOWN) + word_cell("b"),
            f'<w:trPr><w:gridBefore w:val="1"/></w:trPr>{word_cell("", GOES_ON)}{word_cell("c")}',
        ],
        ["a | North | b", "North | c"],
    ),
    "a title": (
        [word_cell("Stock", '<w:gridSpan w:val="2"/>'), word_cell("Item") + word_cell("Price")],
        ["Stock", "Item | Price"],
    ),
    "a beginning that is missing": (
        [word_cell("a", GOES_ON) + word_cell("b")],
        ["a | b"],
    ),
    "a long text": (
        [word_cell("x" * 2_000, DOWN) + word_cell("a"), word_cell("", GOES_ON) + word_cell("b")],
        ["x" * 2_000 + " | a", "b"],
    ),
}


@pytest.mark.parametrize("case", WORD_TABLES)
def test_the_text_of_a_merged_cell_of_word_belongs_to_each_row_and_column(tmp_path, case):
    """A cell of several rows or columns is read in each of them, up to the columns that other rows divide."""
    rows, lines = WORD_TABLES[case]
    table = "".join(f"<w:tr>{row}</w:tr>" for row in rows)
    assert lines_of(word(tmp_path / "a.docx", f"<w:tbl>{table}</w:tbl>")) == lines


def slide_cell(text, properties=""):
    return f"<a:tc {properties}><a:txBody><a:p><a:r><a:t>{text}</a:t></a:r></a:p></a:txBody></a:tc>"


def test_the_text_of_a_merged_cell_of_a_slide_belongs_to_each_row_and_column(tmp_path):
    """Cells with rowSpan, gridSpan, hMerge and vMerge have the text of the cell that they belong to."""
    rows = [
        slide_cell("North", 'rowSpan="2"') + slide_cell("2024", 'gridSpan="2"') + slide_cell("", 'hMerge="1"'),
        slide_cell("", 'vMerge="1"') + slide_cell("Q1") + slide_cell("Q2"),
        slide_cell("all", 'rowSpan="2" gridSpan="2"') + slide_cell("", 'rowSpan="2" hMerge="1"') + slide_cell("a"),
        slide_cell("", 'gridSpan="2" vMerge="1"') + slide_cell("", 'hMerge="1" vMerge="1"') + slide_cell("b"),
    ]
    table = "".join(f"<a:tr>{row}</a:tr>" for row in rows)
    path = slides(
        tmp_path / "a.pptx", f"<p:graphicFrame><a:graphic><a:tbl>{table}</a:tbl></a:graphic></p:graphicFrame>"
    )
    assert lines_of(path) == ["North | 2024 | 2024", "North | Q1 | Q2", "all | all | a", "all | all | b"]


# ----------------------------------------------------------------------------------------------------------- charts

SALES = chart(("Sa", "les"), ("Heron", ["North", "South"], [3, 4], "General"), ("Share", ["North"], [0.475], "0.0%"))
SALES_LINES = ["Sales", "Heron: North: 3; South: 4", "Share: North: 47.5%"]


@pytest.mark.parametrize("form", ["docx", "pptx", "xlsx"])
def test_a_chart_is_text(tmp_path, form):
    """The title of a chart, and each series with its categories and values, follow the text around it."""
    path = tmp_path / f"a.{form}"
    if form == "docx":
        word(path, said("Before."), chart=SALES)
    elif form == "pptx":
        slides(path, shape("Before."), shape("Next."), chart=SALES)
    else:
        workbook(path, ["Before."], fill=lambda sheet: sheet.add_chart(BarChart()))
        rewritten(path, part="xl/charts/chart1.xml", old=None, new=SALES, ending="xml")
    lines = lines_of(path)
    assert lines[lines.index("Before.") + 1 :][:3] == SALES_LINES


def test_a_chart_of_a_sheet_of_its_own_is_text(tmp_path):
    """A sheet that is one chart has its name and the text of the chart."""
    whole = openpyxl.Workbook()
    whole.active.append(["a", "b"])
    bars = BarChart()
    bars.title = "Sales of May"
    whole.create_chartsheet("picture").add_chart(bars)
    whole.save(tmp_path / "a.xlsx")
    assert lines_of(tmp_path / "a.xlsx") == ["Sheet", "a | b", "", "picture", "Sales of May"]


LEVELS = (
    "<c:chart><c:plotArea><c:valAx><c:title><c:tx><c:strRef><c:strCache><c:pt idx='0'><c:v>Shops</c:v></c:pt>"
    "</c:strCache></c:strRef></c:tx></c:title></c:valAx><c:barChart><c:ser><c:tx><c:v>Heron</c:v></c:tx><c:cat><c:multiLvlStrRef>"
    "<c:multiLvlStrCache><c:lvl><c:pt idx='0'><c:v>Q1</c:v></c:pt><c:pt idx='1'><c:v>Q2</c:v></c:pt></c:lvl>"
    "<c:lvl><c:pt idx='0'><c:v>2024</c:v></c:pt></c:lvl></c:multiLvlStrCache></c:multiLvlStrRef></c:cat>"
    "<c:val><c:numLit><c:pt idx='0'><c:v>3</c:v></c:pt><c:pt idx='1'><c:v>4</c:v></c:pt></c:numLit></c:val></c:ser>"
    "<c:extLst><c:ser><c:tx><c:v>Hidden</c:v></c:tx></c:ser></c:extLst></c:barChart></c:plotArea></c:chart>"
)
SCATTER = (
    "<c:chart><c:plotArea><c:scatterChart><c:ser><c:xVal><c:numLit><c:pt idx='0'><c:v>1</c:v></c:pt></c:numLit>"
    "</c:xVal><c:yVal><c:numLit><c:pt idx='0'><c:v>2</c:v></c:pt></c:numLit></c:yVal></c:ser></c:scatterChart>"
    "</c:plotArea></c:chart>"
)
FUNNEL = (
    "<cx:chartData><cx:data id='7'><cx:strDim type='cat'><cx:f>S!A1</cx:f><cx:lvl><cx:pt idx='0'>Visits</cx:pt>"
    "<cx:pt idx='1'>Orders</cx:pt></cx:lvl></cx:strDim><cx:numDim type='val'><cx:lvl formatCode='0%'><cx:pt idx='0'>1"
    "</cx:pt><cx:pt idx='1'>0.2</cx:pt></cx:lvl></cx:numDim></cx:data></cx:chartData><cx:chart><cx:title>"
    "<cx:tx><cx:txData><cx:v>Funnel of May</cx:v></cx:txData></cx:tx></cx:title><cx:plotArea><cx:series>"
    "<cx:tx><cx:txData><cx:f>S!B1</cx:f><cx:v>Share</cx:v></cx:txData></cx:tx><cx:dataId val='7'/></cx:series>"
    "</cx:plotArea></cx:chart>"
)
#: kind of chart -> (kind of its relationship, part, lines)
CHARTS = {
    "levels of categories": ("chart", xml("c:chartSpace", LEVELS), ["Shops", "Heron: 2024 Q1: 3; 2024 Q2: 4"]),
    "coordinates": ("chart", xml("c:chartSpace", SCATTER), ["1: 2"]),
    "since Office 2016": (
        "chartEx",
        xml("cx:chartSpace", FUNNEL),
        ["Funnel of May", "Share: Visits: 100%; Orders: 20%"],
    ),
    "without stored values": ("chart", xml("c:chartSpace", "<c:chart><c:ser><c:tx/></c:ser></c:chart>"), []),
}


@pytest.mark.parametrize("case", CHARTS)
def test_all_kinds_of_charts_are_text(tmp_path, case):
    """Levels of categories, coordinates, titles of axes and new forms of charts are read; hidden series are not."""
    kind, part, lines = CHARTS[case]
    assert lines_of(slides(tmp_path / "a.pptx", shape("Before."), **{kind: part})) == ["Before.", *lines]


def test_the_words_in_place_of_a_chart_are_not_read(tmp_path):
    """What older programs show in place of a chart is no text of the document."""
    choice = "<mc:Choice Requires='cx1'><p:graphicFrame><cx:chart r:id='mchartEx'/></p:graphicFrame></mc:Choice>"
    both = f"<mc:AlternateContent>{choice}<mc:Fallback>{shape('Not available.')}</mc:Fallback></mc:AlternateContent>"
    path = slides(tmp_path / "a.pptx", shape("Before.") + both, chartEx=xml("cx:chartSpace", FUNNEL))
    assert lines_of(path) == ["Before.", "Funnel of May", "Share: Visits: 100%; Orders: 20%"]


# ------------------------------------------------------------------------------- edges of pages, comments, other files


def test_headers_and_footers_of_word_are_read_once(tmp_path):
    """Headers stand before the body and footers after it; the same line of several sections is read once."""
    path = word(
        tmp_path / "a.docx",
        said("Body."),
        header=xml("w:hdr", said("Contract 4711") + said("Contract 4711")),
        footer=xml("w:ftr", f"<w:tbl><w:tr>{word_cell('Draft')}{word_cell('May')}</w:tr></w:tbl>"),
    )
    assert lines_of(path) == ["Contract 4711", "Body.", "Draft | May"]


def test_a_part_that_a_document_includes_is_named(tmp_path, caplog):
    """A file within a document of Word, which Word shows as its text, is not read, and a warning names it."""
    path = word(tmp_path / "a.docx", said("Body.") + '<w:altChunk r:id="raFChunk"/>', aFChunk="<p>More.</p>")
    with caplog.at_level("WARNING", logger="ragbandit.documents"):
        assert lines_of(path) == ["Body."]
    assert [each.getMessage() for each in caplog.records] == [
        "a.docx: word/aFChunk.xml, which the document includes, is not read"
    ]


#: part with the comments of a slide in the older and in the newer form
SLIDE_COMMENTS = [
    xml("p:cmLst", "<p:cm authorId='0'><p:pos x='1' y='2'/><p:text>Say more.</p:text></p:cm>"),
    xml(
        "p:cmLst",
        "<p:cm><p:txBody><a:bodyPr/><a:p><a:r><a:t>Say </a:t></a:r><a:r><a:t>more.</a:t></a:r></a:p></p:txBody></p:cm>",
    ),
]


@pytest.mark.parametrize("part", SLIDE_COMMENTS)
def test_comments_of_slides_are_read(tmp_path, part):
    """A comment is a line of its own, marked as one."""
    assert lines_of(slides(tmp_path / "a.pptx", shape("Plan"), comments=part)) == ["Plan", "[comment: Say more.]"]


def test_comments_of_sheets_are_read(tmp_path):
    """A comment on a cell is a line after the rows, marked as one."""

    def fill(sheet):
        sheet["A1"].comment = Comment("Ask Ada.", "Bob")

    assert lines_of(workbook(tmp_path / "a.xlsx", ["a"], fill=fill)) == ["one", "a", "[comment: Ask Ada.]"]


@pytest.mark.parametrize(
    "ending", ["docm", "dotx", "dotm", "pptm", "ppsx", "ppsm", "potx", "potm", "xlsm", "xltx", "xltm"]
)
def test_a_file_with_macros_or_a_template_is_read_like_its_sibling(tmp_path, ending):
    """Files with macros, templates and shows are documents of a folder; of macros nothing is read."""
    sibling = {"d": "docx", "p": "pptx", "x": "xlsx"}[ending[0]]
    path = tmp_path / f"a.{sibling}"
    if sibling == "docx":
        word(path, said("Heron"), vbaProject="Sub AutoOpen()")
    elif sibling == "pptx":
        slides(path, shape("Heron"), vbaProject="Sub AutoOpen()")
    else:
        workbook(path, ["Heron"])
        form = {"xlsm": "sheet.macroEnabled", "xltx": "template", "xltm": "template.macroEnabled"}[ending]
        old = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"
        new = f"application/vnd.ms-excel.{form}.main+xml"
        if ending == "xltx":
            new = "application/vnd.openxmlformats-officedocument.spreadsheetml.template.main+xml"
        rewritten(path, part="[Content_Types].xml", old=old, new=new, ending="xml")
    path.rename(path.with_suffix(f".{ending.upper()}"))
    (passage,) = read_corpus(tmp_path)
    assert passage.text.split() in (["Heron"], ["one", "Heron"])


# ------------------------------------------------------------------------------ what is hidden, or has no stored value


def test_what_is_hidden_in_a_workbook_is_marked_with_a_warning(tmp_path, caplog):
    """Hidden rows, columns and sheets are read, marked each, and a warning names their sheets."""
    whole = openpyxl.Workbook()
    seen, gone, very = whole.active, whole.create_sheet("gone"), whole.create_sheet("very")
    seen.title = "seen"
    for row in (["Item", "Price", "Cost"], ["Heron", 3, 1], ["Numbat", 4, 2]):
        seen.append(row)
    seen.row_dimensions[3].hidden = True
    seen.column_dimensions["C"].hidden = True
    gone.append(["a", "b"])
    gone.sheet_state, very.sheet_state = "hidden", "veryHidden"
    whole.save(tmp_path / "a.xlsx")
    with caplog.at_level("WARNING", logger="ragbandit.documents"):
        lines = lines_of(tmp_path / "a.xlsx")
    assert lines == [
        "seen",
        "Item | Price | [hidden column] Cost",
        "Item: Heron; Price: 3; [hidden column] Cost: 1",
        "[hidden row] Item: Numbat; Price: 4; [hidden column] Cost: 2",
        "",
        "[hidden sheet] gone",
        "[hidden sheet] a | b",
        "",
        "[hidden sheet] very",
    ]
    assert [each.getMessage() for each in caplog.records] == [
        "a.xlsx: hidden rows are read, marked [hidden row], in sheet 'seen'",
        "a.xlsx: hidden columns are read, marked [hidden column], in sheet 'seen'",
        "a.xlsx: hidden sheets are read, marked [hidden sheet], in sheet 'gone', 'very'",
    ]


#: cells of a row in XML -> its line, below a row of three numbers
FORMULAS = {
    "without a value": ('<c r="A2"><f>SUM(3,4)</f><v/></c>', "[formula: =SUM(3,4)]"),
    "with a value": ('<c r="A2"><f>SUM(3,4)</f><v>7</v></c>', "7"),
    "with the value 0": ('<c r="A2"><f>SUM(0,0)</f><v>0</v></c>', "0"),
    "with an empty text": ('<c r="A2" t="str"><f>A9</f><v></v></c><c r="B2"><v>5</v></c>', "5"),
    "with an error": ('<c r="A2" t="e"><f>1/0</f><v>#DIV/0!</v></c>', "#DIV/0!"),
    "that cells share": (
        (
            '<c r="A2"><f t="shared" ref="A2:C2" si="0">A1*$A$1</f><v>1</v></c><c r="B2"><f t="shared" si="0"/></c>'
            '<c r="C2"><f t="shared" si="0"/></c>'
        ),
        "1 | [formula: =B1*$A$1] | [formula: =C1*$A$1]",
    ),
    "of many cells": ('<c r="A2"><f t="array" ref="A2:A3">B1:B2*2</f></c>', "[formula: =B1:B2*2]"),
    "that is not known": ('<c r="A2"><f t="shared" si="4"/></c>', "[formula]"),
}


@pytest.mark.parametrize("case", FORMULAS)
def test_a_formula_without_a_stored_value_is_its_text(tmp_path, caplog, case):
    """A formula that no Excel has computed is read as its text with a warning; others are their stored values."""
    cells, line = FORMULAS[case]
    path = workbook(tmp_path / "a.xlsx", [1, 2, 3])
    rewritten(
        path,
        part="xl/worksheets/sheet1.xml",
        old="</sheetData>",
        new=f'<row r="2">{cells}</row></sheetData>',
        ending="xml",
    )
    with caplog.at_level("WARNING", logger="ragbandit.documents"):
        assert lines_of(path)[1:] == ["1 | 2 | 3", line]
    warning = "a.xlsx: formulas without a stored value are read, marked [formula: =...], in sheet 'one'"
    assert [each.getMessage() for each in caplog.records] == ([warning] if "[formula" in line else [])
