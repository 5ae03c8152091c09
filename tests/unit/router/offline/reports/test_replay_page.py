"""The page of a replay: whole, safe, the same every time, and what its figures show."""

import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from ragbandit.router.offline.replay.plan import Pair, Skipped
from ragbandit.router.offline.reports.page import check_page, differences, page, write_page
from ragbandit.router.offline.reports.text import alarm, headline
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


def test_the_page_begins_with_the_sentences_and_holds_every_section(whole):
    """The headline is its first text, and each table and the glossary follow."""
    texts = Balanced.read(whole).texts
    said = [text for text in texts if text.strip()]
    assert [text.replace("\xa0", " ") for text in said[2:6]] == headline(FOUND)
    for title in (
        "Against the logged policy",
        "Over time",
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
    found = replayed(candidate(over_time=()), faults=("drawn too often",))
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


def test_the_differences_are_drawn_where_they_are():
    """On the common scale the bar's ends lie in the proportion of the numbers, each under name and verdict."""
    root = ElementTree.fromstring(str(differences(replayed(candidate("a", 0.05, 0.04)))))
    assert root.get("role") == "img"
    assert root.get("aria-label") == "a: +0.050 (+0.010 to +0.090)"
    assert [one.text for one in root.iter(f"{SVG}text")] == ["a: better"]
    zero, bar = (one.get("d") for one in root.iter(f"{SVG}path"))
    places = ((r"M([\d.]+)", zero), (r"M([\d.]+)", bar), (r"H([\d.]+)", bar))
    middle, left, right = (float(re.search(pattern, path)[1]) for pattern, path in places)
    assert (right - middle) / (left - middle) == pytest.approx(9.0, rel=0.02)


def test_what_cannot_be_judged_is_drawn_as_a_range(whole):
    """It has a dashed bar and no dot; a candidate without an interval is not drawn."""
    root = ElementTree.fromstring(str(differences(FOUND)))
    dashed = [one for one in root.iter(f"{SVG}g") if one.get("class") == "cannot be judged"]
    assert len(dashed) == 1
    assert not list(dashed[0].iter(f"{SVG}circle"))
    assert str(differences(replayed())) == ""


def test_long_names_are_cut_in_the_middle():
    """In the figure a name keeps its beginning and its end; in the tables it is whole."""
    name = "snapshot:/models/" + "x" * 80 + "/last"
    found = replayed(candidate(name))
    (text,) = [one.text for one in ElementTree.fromstring(str(differences(found))).iter(f"{SVG}text")]
    assert text.startswith("snapshot:/m")
    assert text.endswith("/last: better")
    assert f"<td>{name} (" in page(found)


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
    (drawing,) = re.findall("<svg.*?</svg>", text, re.DOTALL)
    ElementTree.fromstring(drawing)


def test_nothing_is_asked_from_elsewhere(whole):
    """No address but the names of namespaces, no script, no style sheet, no image, no font."""
    addresses = set(re.findall(r"(?:https?:)?//[^\s\"'<>)]+", whole))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r'(?:href|src)="(.)', whole)) <= {"#"}
    assert not {"script", "link", "img", "iframe", "object"} & set(Balanced.read(whole).tags)
    assert not re.search(r"@import|@font-face|url\((?!#)", whole)
    assert "default-src 'none'" in whole


def test_equal_replays_give_equal_pages(whole):
    """No time of writing, no random id; and another number gives another page."""
    assert page(replace(FOUND)) == whole
    light = candidate(over_time=())
    assert page(replayed(light)) != page(replayed(light, rows=12_001))


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


def test_a_disk_that_fails_is_named(tmp_path, monkeypatch):
    """An error of the file system becomes an error of ours that names the file."""
    monkeypatch.setattr("pathlib.Path.write_text", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(ConfigError, match=r"a\.html cannot be written: disk full"):
        write_page(replayed(), tmp_path / "a.html")
