"""The page of a replay: whole, safe, the same every time, and what its figures show."""

import os
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from ragbandit.router.offline.replay.results import Arm, Histogram, Pair, Skipped
from ragbandit.router.offline.reports.figures import drawn
from ragbandit.router.offline.reports.page import check_page, page, write_page
from ragbandit.router.offline.reports.phrases import alarm, headline
from ragbandit.shared.errors import ConfigError, InvalidInput
from tests.unit.router.offline.reports.test_replay_terminal import (
    OPEN,
    UNKNOWN,
    WEIGHTS,
    candidate,
    measured,
    replayed,
    segment,
)

SVG = "{http://www.w3.org/2000/svg}"
SEGMENTS = {"tenant": (segment("acme", 0.05, rows=9000), segment("globex", -0.02, None, rows=40))}
FOUND = replayed(
    candidate(segments=SEGMENTS),
    candidate("fixed:none", -0.05, 0.02),
    UNKNOWN,
    replace(OPEN, segments=SEGMENTS),
    pairs=(Pair(first="linucb", second="mba", difference=measured(0.09, 0.04)),),
    skipped_rows=1203,
    skipped=(Skipped(where="line 17", reason="pmf sums to 0.9, not 1"),),
)
NOTHING = replace(WEIGHTS, histogram=Histogram(edges=(-1.0, 0.0, 1.0), counts=(0, 0)))
#: what would break a page, a drawing or a formula, and letters that few fonts have
ODD = "<script>alert('1')</script>&amp;\"$x_{1}$\x00\x1b]]>质问🙂"


class Balanced(HTMLParser):
    """Fails at an element that is closed in the wrong place, and keeps what it has read."""

    VOID = ("meta", "br")

    def __init__(self):
        super().__init__()
        self.open, self.texts, self.ids, self.tags = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @classmethod
    def read(cls, text):
        """The parser at the end of a page without open elements."""
        parser = cls()
        parser.feed(text)
        parser.close()
        assert parser.open == []
        return parser


@pytest.fixture(scope="module")
def whole():
    """The page of FOUND."""
    return page(FOUND)


@pytest.fixture(scope="module")
def figures():
    """The figures of FOUND by title."""
    return {one.title: one for one in drawn(FOUND)}


def texts_of(svg):
    """The words in a drawing."""
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def titled(found, title):
    """The figure of this title."""
    (one,) = [one for one in drawn(found) if one.title == title]
    return one


def test_the_page_begins_with_the_sentences_and_holds_every_section(whole):
    """The headline is its first text, and each table and the glossary follow."""
    texts = Balanced.read(whole).texts
    said = [text for text in texts if text.strip()]
    assert [text.replace("\xa0", " ") for text in said[2:6]] == headline(FOUND)
    for title in (
        "Against the logged policy",
        "Reward over time",
        "Which arms are chosen",
        "Importance weights",
        "linucb by tenant",
        "The candidates",
        "How far each candidate is from the log",
        "The arms in the log",
        "The reward by other estimators",
        "The candidates against each other",
        "By tenant",
        "The log",
        "Paired difference",
        "Effective rows",
        "Unsupported decisions",
    ):
        assert title in said


def test_the_tables_hold_the_numbers(whole):
    """Every number of the terminal stands in the page too, and each cell names its column for narrow screens."""
    text = whole.replace("&nbsp;", " ")
    for column, cell in (
        ("reward", "0.554 (0.523 to 0.585)"),
        ("difference", "+0.042 (+0.011 to +0.073)"),
        ("verdict", "cannot be judged"),
        ("reward", "0.310 to 0.660"),
        ("effective rows", "2,310 of 12,000"),
        ("largest weight", "28"),
        ("mean weight (right: 1)", "1.004 (0.970 to 1.040)"),
        ("very large", "0.12 % of the questions above 20"),
        ("drawn", "50.3 %"),
        ("ips", "0.570 (0.530 to 0.610)"),
        ("difference", "+0.090 (+0.050 to +0.130)"),
        ("difference", "-0.020"),
    ):
        assert f'<td data-name="{column}">{cell}</td>' in text
    assert "<li>Left out: 1,203 rows</li>" in text
    assert "line 17: pmf sums to 0.9, not 1" in text


def test_a_wrong_log_comes_first_and_no_verdict_shines(whole):
    """The alarm stands before the sentences, which lose their colours."""
    found = replayed(candidate(over_time=(), weights=NOTHING), faults=("drawn too often",))
    text = page(found)
    texts = [text for text in Balanced.read(text).texts if text.strip()]
    assert texts[2:4] == alarm(found) == ["This log is wrong: drawn too often", "The numbers below are not reliable."]
    assert '<li class="better">' not in text
    assert '<li class="better">' in whole
    assert 'class="alarm"' not in whole


def test_what_there_is_not_is_not_shown():
    """Without pairs, segments, stretches and other estimators there is no empty section."""
    text = page(replayed(candidate(over_time=(), others={})))
    for title in ("against each other", "By tenant", "over time", "other estimators", "Left out", "<td></td>"):
        assert title not in text


def test_every_figure_is_valid_says_what_it_shows_and_has_its_own_ids(whole, figures):
    """XML that parses, a role, a text instead, a caption; and no id twice in the page."""
    texts = [text.replace("\xa0", " ") for text in Balanced.read(whole).texts]
    assert len(figures) == 5
    for one in figures.values():
        root = ElementTree.fromstring(one.svg)
        assert root.tag == f"{SVG}svg"
        assert root.get("role") == "img"
        assert root.get("aria-label").startswith("acme" if "tenant" in one.title else "linucb")
        assert one.caption in texts
        assert not [e for e in root.iter() if e.tag in (f"{SVG}script", f"{SVG}style", f"{SVG}metadata")]
    ids = Balanced.read(whole).ids
    assert len(ids) == len(set(ids)) > 0
    references = set(re.findall(r'(?:url\(#|href="#)([\w-]+)', whole))
    assert references == set(ids)


def test_the_differences_are_drawn_with_their_verdicts(figures):
    """Each candidate by name and verdict; its numbers are in the text instead."""
    one = figures["Against the logged policy"]
    names = ["linucb: better", "fixed:none: worse", "fixed:single_step: cannot tell", "mba: cannot be judged"]
    assert [text for text in texts_of(one.svg) if text in names] == names
    said = ElementTree.fromstring(one.svg).get("aria-label")
    assert "linucb: better: +0.042 (+0.011 to +0.073)" in said
    assert "mba: cannot be judged: -0.210 to +0.190" in said
    assert "Dashed" in one.caption
    assert (
        "Dashed"
        not in titled(replayed(replace(UNKNOWN, over_time=(), weights=NOTHING)), "Against the logged policy").caption
    )


def test_intervals_are_drawn_where_they_are():
    """On the common scale the bar's ends and the dot lie in the proportion of the numbers."""
    one = titled(replayed(candidate("a", 0.05, 0.04, over_time=(), weights=NOTHING)), "Against the logged policy")
    root = ElementTree.fromstring(one.svg)
    (bar,) = [
        e
        for e in root.iter(f"{SVG}path")
        if "stroke: #009e73" in e.get("style", "").lower() and "clip-path" in e.attrib
    ]
    left, right = (float(x) for x in re.findall(r"[ML] ([\d.]+) ", bar.get("d")))
    zero = next(
        float(e.get("d").split()[1])
        for e in root.iter(f"{SVG}path")
        if "stroke: currentColor" in e.get("style", "") and "clip-path" in e.attrib
    )
    assert (right - zero) / (left - zero) == pytest.approx(0.09 / 0.01, rel=1e-3)


def test_what_cannot_be_judged_is_not_estimated_in_a_figure(figures):
    """A candidate with holes has no curve and no segments."""
    assert "mba" not in texts_of(figures["Reward over time"].svg)
    assert "mba" in texts_of(figures["Which arms are chosen"].svg)
    assert "mba by tenant" not in figures


def test_stretches_that_have_no_date_are_counted(figures):
    """The axis of time says dates where there are some, else the number of the stretch."""
    assert any("Feb" in text for text in texts_of(figures["Reward over time"].svg))
    for begin in (None, 1e30):
        over_time = tuple(segment("", 0.01, begin=begin) for _ in range(3))
        words = texts_of(titled(replayed(candidate(over_time=over_time, weights=NOTHING)), "Reward over time").svg)
        assert "stretch of the log" in words
        assert not any("Feb" in text for text in words)


def test_many_arms_are_drawn_as_the_largest_and_the_others():
    """Twelve bars at most; the shares of the rest stand together."""
    arms = tuple(
        Arm(name=f"arm{i}", drawn=0.05, expected=0.05, plausible=True, reward=0.5, quality=0.5, cost=1.0)
        for i in range(20)
    )
    shares = {f"arm{i}": 0.62 if i == 19 else 0.02 for i in range(20)}
    one = titled(replayed(candidate(over_time=(), shares=shares, weights=NOTHING), arms=arms), "Which arms are chosen")
    names = [text for text in texts_of(one.svg) if "arm" in text or "others" in text]
    assert names == ["arm19", *(f"arm{i}" for i in range(10)), "9 others"]
    assert "arm19 62 % (log 5 %)" in one.svg
    assert "9 others 18 % (log 45 %)" in one.svg


def test_weights_are_drawn_on_a_logarithmic_scale(figures):
    """Round weights are named, and the largest stands in words; without any weight there is no figure."""
    words = texts_of(figures["Importance weights"].svg)
    assert {"0.1", "1", "10"} <= set(words)
    assert "linucb: largest weight 28" in words
    titles = [one.title for one in drawn(replayed(candidate(over_time=(), weights=NOTHING)))]
    assert "Importance weights" not in titles


def test_what_comes_from_data_is_escaped():
    """An odd name in every place: no element is made of it, and it can be read."""
    odd_arms = tuple(replace(arm, name=f"{ODD}{i}") for i, arm in enumerate(FOUND.arms))
    one = candidate(
        ODD,
        described=ODD,
        estimator=ODD,
        shares={arm.name: 1 / 3 for arm in odd_arms},
        segments={ODD: (segment(ODD, 0.1),)},
        others={ODD: measured(0.5, 0.1)},
        notes=(ODD,),
    )
    hole = replace(one, verdict="cannot be judged", unsupported={ODD: 0.1}, bounds=(0.1, 0.9))
    found = replayed(
        one,
        hole,
        log=ODD,
        baseline=ODD,
        arms=odd_arms,
        sources={ODD: 1},
        versions={ODD: 2},
        pairs=(Pair(first=ODD, second=ODD, difference=measured(0.1, 0.1)),),
        skipped_rows=1,
        skipped=(Skipped(where=ODD, reason=ODD),),
        faults=(ODD,),
        notes=(ODD,),
    )
    text = page(found)
    read = Balanced.read(text)
    assert "script" not in read.tags
    assert "\x00" not in text
    assert "\x1b" not in text
    shown = ODD.replace("\x00", "\\u0000").replace("\x1b", "\\u001b")
    assert sum(shown in each for each in read.texts) > 20
    drawings = re.findall("<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 5
    for drawing in drawings:
        ElementTree.fromstring(drawing)


def test_nothing_is_asked_from_elsewhere(whole):
    """No address but the names of namespaces, no script, no style sheet, no image, no font."""
    addresses = set(re.findall(r"(?:https?:)?//[^\s\"'<>)]+", whole))
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert set(re.findall(r'(?:href|src)="(.)', whole)) <= {"#"}
    assert not {"script", "link", "img", "iframe", "object"} & set(Balanced.read(whole).tags)
    assert not re.search(r"@import|@font-face|url\((?!#)", whole)
    assert "default-src 'none'" in whole


def test_equal_replays_give_equal_pages(whole):
    """No time of writing, no random id; and another number gives another page."""
    assert page(replace(FOUND)) == whole
    light = candidate(over_time=(), weights=NOTHING)
    assert page(replayed(light)) != page(replayed(light, rows=12_001))


def test_the_page_leaves_matplotlib_as_it_was():
    """Neither the settings of matplotlib are changed, nor does the page leave figures open."""
    import matplotlib

    before = dict(matplotlib.rcParams)
    page(replayed(candidate(over_time=(), weights=NOTHING)))
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_long_names_are_cut_in_the_middle():
    """In a figure a name keeps its beginning and its end; in the tables it is whole."""
    name = "snapshot:/models/" + "x" * 80 + "/last"
    found = replayed(candidate(name, over_time=(), segments={"tenant": (segment("t" * 90, 0.1),)}))
    made = drawn(found)
    for one in made:
        assert max(len(text) for text in texts_of(one.svg)) <= 52
    (text,) = [text for text in texts_of(made[0].svg) if "better" in text]
    assert text.startswith("snapshot:/m")
    assert text.endswith("/last: better")
    assert f"<td>{name} (" in page(found)


@pytest.mark.parametrize(
    "odd",
    [
        replayed(),
        replayed(OPEN),
        replayed(replace(OPEN, bounds=None, difference=measured(0.1))),
        replayed(candidate(over_time=(segment("", 0.1, begin=0.0),), shares={"none": 1.0}), rows=1),
        replayed(candidate(over_time=(segment("", float("nan"), None),) * 2)),
        replayed(candidate(difference=measured(float("nan")), verdict="cannot tell")),
        replayed(candidate(difference=measured(0.0, 0.0), verdict="cannot tell"), begin=0.0, end=0.0),
        replayed(candidate(weights=replace(WEIGHTS, effective_rows=float("nan"), possible=float("inf")))),
        replayed(*(candidate(f"{i}" * 60, segments={"field": (segment("s" * 60, 0.1),) * 30}) for i in range(2))),
    ],
)
def test_odd_replays_have_a_page(odd):
    """Nothing to compare, nothing known, one row, numbers that are none, and far too much of everything."""
    assert "nan" not in " ".join(Balanced.read(page(odd)).texts).lower().replace("snan", "")


def test_a_place_where_no_page_can_be_is_refused_before_the_work(tmp_path):
    """Another ending, a folder, a folder that is not there: the field and the remedy are named."""
    (tmp_path / "folder.html").mkdir()
    for name in ("a.pdf", "a"):
        with pytest.raises(InvalidInput, match=r"does not end in \.html"):
            check_page(tmp_path / name)
    for name in ("a.png", "a", "folder.html", "missing/a.html"):
        with pytest.raises(InvalidInput) as caught:
            check_page(tmp_path / name)
        assert (caught.value.field, bool(caught.value.remedy)) == ("report", True)
    check_page(tmp_path / "a.HTML")
    assert os.listdir(tmp_path) == ["folder.html"]


def test_without_matplotlib_the_page_has_no_charts(tmp_path, monkeypatch):
    """A base install writes the page with its sentences and tables, and with the name of the extra for the charts."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_page(FOUND, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    assert "<svg" not in text
    assert "The charts are left out, since the package matplotlib is missing: pip install '.[plots]'." in text
    assert "The candidates" in text


def test_a_figure_without_matplotlib_names_the_extra(monkeypatch):
    """Whoever draws a figure without the extra is told its name."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError) as caught:
        drawn(FOUND)
    assert "pip install '.[plots]'" in caught.value.remedy


def test_a_disk_that_fails_is_named(tmp_path, monkeypatch):
    """An error of the file system becomes an error of ours that names the file."""
    monkeypatch.setattr("pathlib.Path.write_text", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(ConfigError, match=r"a\.html cannot be written: disk full"):
        write_page(replayed(), tmp_path / "a.html")
