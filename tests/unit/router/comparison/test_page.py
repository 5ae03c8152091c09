"""Pages and screens of any assessment: whole, escaped, without a script, and with axes that can be read."""

import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import Phase, example, given, settings, strategies as st
from rich.cells import cell_len
from rich.console import Console

from ragbandit.router.comparison import Difference
from ragbandit.router.comparison.assessment import Assessment, LearningCurve, NumberTable, QuestionKind
from ragbandit.router.comparison.axes import number_scale, time_scale
from ragbandit.router.comparison.page import STATIC, assessment_page, check_page, coded, template_values, write_page
from ragbandit.router.comparison.plots import Line, _x_labels, draw_lines
from ragbandit.router.comparison.terminal import print_assessment
from ragbandit.router.comparison.words import estimate_words, interval_words
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.texts.formats import NOTHING
from tests.support.assessments import BETTER, WHOLE

VOID = {"meta", "br", "rect", "line", "path", "polyline", "polygon"}
TEXT = "<script>alert(1)</script>\"'{{7*7}}[red]\x1b[2J\u202e&amp; " + "a_long_name" * 9
#: texts of others in every place
HOSTILE = replace(
    WHOLE,
    comparisons=tuple(replace(BETTER, first=TEXT, second=f"{TEXT} {number}") for number in range(9)),
    frontier=tuple(replace(point, name=TEXT) for point in WHOLE.frontier),
    kinds=(QuestionKind(name=TEXT, share=1.0, arms={TEXT: 1.0}, reward=None, better_arm=TEXT, examples=(TEXT,)),),
    curves=(replace(WHOLE.curves[0], name=TEXT),),
    actions=(TEXT,) * 4,
    facts={TEXT: TEXT},
    **dict.fromkeys(("title", "sentence", "number", "about", "state", "missing"), TEXT),
)
shares, counts = st.floats(0.0, 1.0), st.integers(0, 10**7)
kinds = st.builds(QuestionKind, share=shares, arms=st.dictionaries(st.text(), shares, max_size=4))
curves = st.builds(
    lambda rows, even: LearningCurve(
        name="cold",
        questions=sorted({row[0] for row in rows}),
        policy=[row[1] for row in rows],
        fixed=[row[2] for row in rows],
        rated=[row[0] // 2 for row in rows],
        break_even=even,
    ),
    st.lists(st.tuples(counts, st.floats(), st.floats()), max_size=40, unique_by=lambda row: row[0]),
    st.none() | counts,
)
tables = st.integers(1, 4).flatmap(
    lambda width: st.builds(
        NumberTable, columns=st.tuples(*[st.text()] * width), rows=st.lists(st.tuples(*[st.text()] * width)).map(tuple)
    )
)
REST = ("verdict", "state", "comparisons", "frontier", "missing", "actions", "notes", "facts")
assessments = st.builds(
    Assessment,
    kinds=st.lists(kinds, max_size=3).map(tuple),
    curves=st.lists(curves, max_size=3).map(tuple),
    tables=st.lists(tables, max_size=3).map(tuple),
    **dict.fromkeys(REST, ...),
)
#: without shrinking, which takes minutes for values of this size
ANY = settings(max_examples=20, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))


class Parsed(HTMLParser):
    """Tags of a page, in order; it fails for a tag that is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@ANY
@example(HOSTILE)
@given(assessments)
def test_every_assessment_has_a_page(assessment):
    """Its tags are closed, texts are texts, every place lies on the picture, and nothing is loaded or run."""
    parsed = Parsed(assessment_page(assessment))
    allowed = {"href", "src", "style", "action"}
    assert not [tag for tag, given in parsed.tags if tag in ("script", "img", "link") or allowed & set(given)]
    for tag, attributes in parsed.tags:
        for name in ("x", "x1", "x2", "width"):
            value = attributes.get(name)
            if value is not None and tag in ("svg", "line", "text") and value.endswith("%"):
                assert 0.0 <= float(value[:-1]) <= 100.0
        for name in ("points", "y", "y1", "y2", "transform", "height"):
            assert not re.search("nan|inf", attributes.get(name) or "")
    drawn = template_values(assessment)
    for picture in (*drawn["plots"], *filter(None, [drawn["forest"]])):
        ElementTree.fromstring(f"<all>{picture.body}</all>")
        assert picture.title
        assert picture.alt
        assert {len(row) for row in picture.table.rows} <= {len(picture.table.columns)}


@ANY
@example(HOSTILE, True)
@example(HOSTILE, False)
@given(assessments, st.booleans())
def test_every_assessment_fits_a_screen(assessment, pipe):
    """A terminal gets at most 80 x 24 with the cursor's line, a pipe whole texts; neither gets control characters."""
    file = io.StringIO()
    print_assessment(assessment, Console(file=file, force_terminal=not pipe, width=80, color_system=None))
    lines = file.getvalue().splitlines()
    assert not set("\x1b\u202e") & set(file.getvalue())
    if pipe:
        assert file.getvalue().count("…") <= repr(assessment).count("…")
    else:
        assert len(lines) < 24
        assert max(map(cell_len, lines)) <= 80


def test_the_screen_has_what_decides():
    """The screen has the sentence, the interval with its zero, what is missing, and where the page is."""
    file = io.StringIO()
    print_assessment(WHOLE, Console(file=file, force_terminal=False), page=None, option="--html FILE")
    text = file.getvalue()
    assert re.search(r"against always deep +│ +├━+●━+┤ +\+0\.094 \(\+0\.040 to \+0\.146\) better", text)
    assert "For a verdict: about 300 more rated questions" in text
    assert text.endswith("As a page with pictures: --html FILE\n")
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_assessment(WHOLE, Console(file=plain))
    plain.seek(0)
    assert re.search(r"against always deep +\| +\[=+o=+\] +\+0\.094", plain.read())


def test_all_kinds_of_questions_are_printed_on_demand():
    """With --all the screen has each kind, its arms, its reward and an example."""
    file = io.StringIO()
    print_assessment(WHOLE, Console(file=file, force_terminal=False, width=200), show_all=True)
    text = file.getvalue()
    assert re.search(r"short +│ +70 % │ +fast 90 %, deep 10 % │ +0\.800 │ +not known yet │ +\N{EN DASH} │ +Who\?", text)
    assert "│ deep +0.100 (+0.050 to +0.150) │" in text


@given(st.lists(st.floats(), max_size=5), st.sampled_from(("", "dollars", "seconds", "percent", "steps")))
def test_labels_of_numbers_differ(values, unit):
    """An axis of numbers has at least three ticks within its ends, and no two have the same label."""
    scale = number_scale(values, unit=unit)
    labels = [label for _, label in scale.ticks]
    assert len(set(labels)) == len(labels) >= 3
    assert all(-1e-6 <= (value - scale.low) / (scale.high - scale.low) <= 1.0 + 1e-6 for value, _ in scale.ticks)
    assert unit == "percent" or max(map(len, labels)) <= 15


@pytest.mark.parametrize("values", [[0.9], [0.9, 0.9], [0.9, 0.91], [-0.9], [0.9, None]])
def test_the_axis_of_one_value_begins_at_zero(values):
    """Values that hardly differ are drawn from zero, since no axis from 0.899 to 0.901 tells a reader anything."""
    scale = number_scale(values)
    assert scale.low <= 0.0 <= scale.high
    assert 0.0 in [place for place, _ in scale.ticks]


def test_an_interval_without_a_width_is_one_number():
    """Ends that both round to zero are "0.000", not "+0.000 to +0.000"."""
    equal = Difference(low=-1e-4, high=1e-4, estimate=None)
    assert (estimate_words(equal), interval_words(equal)) == ("0.000", "0.000")
    assert interval_words(replace(equal, high=0.002)) == "+0.000 to +0.002"


def test_commands_in_sentences_are_code():
    """What stands between backticks is code on the page, and escaped; a lone backtick stays."""
    text = "run `ragbandit up <x>`, then `ask"
    assert coded(text) == "run <code>ragbandit up &lt;x&gt;</code>, then `ask"


@given(st.floats(0.0, 4e9), st.floats(0.0, 1e9))
def test_labels_of_times_differ(first, length):
    """An axis of times has no two equal labels: a time of day that comes again has its date."""
    labels = [label for _, label in time_scale(first, first + length).ticks]
    assert len(set(labels)) == len(labels) <= 8


def test_a_long_report_is_small(tmp_path, monkeypatch):
    """A page with every picture at its largest has at most 400 KB, and is written whole or not at all."""
    many = list(range(1, 20_001))
    rewards = [0.5] * len(many)
    curve = LearningCurve(name="cold", questions=many, policy=rewards, fixed=rewards, rated=many)
    assessment = replace(WHOLE, comparisons=(BETTER,) * 40, curves=(curve, replace(curve, name="warm")))
    write_page(tmp_path / "page.html", assessment)
    assert 10_000 < (tmp_path / "page.html").stat().st_size <= 400_000
    with pytest.raises(InvalidInput, match=r"name a \.html"):
        check_page(tmp_path / "page.txt")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="jinja2") as caught:
        check_page(tmp_path / "other.html")
    assert "pip install '.[replay]'" in str(caught.value.remedy)


def test_arms_have_the_colours_of_their_settings():
    """The first arm of the settings has the first colour, wherever it appears on the page."""
    signs = template_values(replace(WHOLE, arms=("fast", "deep")))["sign"]
    assert [signs.look(arm) for arm in ("deep", "fast")] == [(1, 1), (0, 0)]


def test_a_line_over_time_shows_what_it_does_not_know():
    """A line stops at a time without a value, its way to the latest time is dashed, and the mark of a mean of fewer
    than five ratings is hollow, with the number of ratings in the table.
    """
    line = Line(name="a", values=[0.4, None, 0.5, 0.6, 0.7], look=(1, 0), counts=[4, 0, 5, 9, 1])
    picture = draw_lines("Quality", xs=[3600.0 * hour for hour in range(5)], series=[line], unit="reward", times=True)
    parsed = Parsed(picture.body)
    lines = [given for tag, given in parsed.tags if tag == "polyline"]
    assert [(given["class"], given["points"].count(",")) for given in lines] == [
        ("line arm-1", 1),
        ("line arm-1", 2),
        ("line dashed arm-1", 2),
    ]
    marks = [given["class"] for tag, given in parsed.tags if tag == "path"]
    assert marks == ["point arm-1 few", "point arm-1", "point arm-1", "point arm-1 few"]
    assert [row[1] for row in picture.table.rows] == ["0.400 of 4", NOTHING, "0.500 of 5", "0.600 of 9", "0.700 of 1"]
    assert ".point.few {" in (STATIC / "page.css").read_text()
    counted = draw_lines("Reward", xs=[1.0, 2.0, 3.0], series=[replace(line, values=[0.4, None, 0.5], counts=None)])
    assert counted.body.count("<polyline") == 1


def test_an_axis_of_intervals_has_room_for_its_labels():
    """Long labels of many ticks are every second one, with the zero; ends of a dashed interval are not dashed."""
    scale = number_scale([-9e-4, 0.0, 9e-4], unit="dollars", ticks=5)
    whole, tight = (Parsed(_x_labels(scale, top=0.0, room=room)).words for room in (None, 24))
    assert len(whole) == len(scale.ticks) >= 5
    assert "$0.0000" in tight
    assert tight in (whole[::2], whole[1::2])
    body = template_values(WHOLE)["forest"].body
    assert body.count(' end"') == 2 * sum(line.startswith("range") and " end" not in line for line in classes(body))
    assert "range.busy:not(.end)" in (STATIC / "page.css").read_text()


def classes(body):
    """Classes of the lines of a picture."""
    return [given["class"] for tag, given in Parsed(body).tags if tag == "line"]


def test_a_note_names_a_way_only_if_all_comparisons_have_it():
    """The note of the intervals speaks of both ways if each row has another first way."""
    assert "the interval of routing minus the alternative" in template_values(WHOLE)["forest"].note
    mixed = replace(WHOLE, comparisons=(BETTER, replace(BETTER, first="linucb", second="mixture")))
    assert "the interval of the first way minus the second one" in template_values(mixed)["forest"].note


def test_points_at_one_place_have_one_name():
    """The name at a point that several ways share says how many they are."""
    [first, second, *_] = WHOLE.frontier
    place = {"quality": first.quality, "cost": first.cost}
    body = template_values(replace(WHOLE, frontier=(first, replace(second, **place))))["plots"][0].body
    assert "deep and 1 more</text>" in body


def test_a_table_without_a_cell_for_each_column_is_refused():
    """A table with a row that has fewer or more cells than there are columns cannot be made."""
    with pytest.raises(ValueError, match="Means: a row has 2 cells, for 3 columns"):
        NumberTable(title="Means", columns=("arm", "steps", "steps"), rows=(("fast", "1"),))


def test_only_a_known_difference_has_a_colour():
    """The number is green if the verdict is better, red if it is worse, and has no colour with another verdict."""
    colours = {}
    for verdict in ("better", "worse", "as good", "not known yet"):
        shown = replace(WHOLE, verdict=verdict)
        colours[verdict] = template_values(shown)["number_colour"]
        found = re.search(r'<p class="big ?(\w*)">', assessment_page(shown))
        assert found[1] == colours[verdict]
    assert colours == {"better": "good", "worse": "bad", "as good": "", "not known yet": ""}
