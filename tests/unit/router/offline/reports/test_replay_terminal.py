"""What a replay says in sentences and tables."""

import html
import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from ragbandit.router.offline.charts import check_page, write_page
from ragbandit.router.offline.replay.plan import (
    Arm,
    CandidateResult,
    EstimateWithInterval,
    ImportanceWeights,
    Pair,
    Plan,
    ReplayResult,
    SegmentResult,
    Skipped,
)
from ragbandit.router.offline.replay.report import alarm, cell, compared, headline, print_replay, print_summary
from ragbandit.shared.errors import InvalidInput

DAY = 86_400.0
BEGIN = 1_770_000_000.0
WEIGHTS = ImportanceWeights(
    effective_rows=2310.4, largest=28.04, possible=30.0, mean=EstimateWithInterval(value=1.004, low=0.97, high=1.04)
)


def measured(value, half=None):
    """A number with an interval of this half width, if any."""
    ends = {} if half is None else {"low": value - half, "high": value + half}
    return EstimateWithInterval(value=value, **ends)


def segment(name, difference, half=0.05, *, rows=1000):
    """A group of rows."""
    return SegmentResult(
        name=name,
        rows=rows,
        effective_rows=rows / 5,
        baseline=0.51,
        value=measured(0.51 + difference, half),
        difference=measured(difference, half),
    )


def candidate(name="linucb", gain=0.042, half=0.031, **changes):
    """A candidate that stands so far from the baseline."""
    verdict = "better" if gain > half else "worse" if gain < -half else "cannot tell"
    made = CandidateResult(
        name=name,
        described=f"{name}, learned from the other folds",
        reward=measured(0.512 + gain, half),
        quality=measured(0.63, 0.02),
        cost=measured(2.31, 0.1),
        difference=measured(gain, half),
        quality_difference=measured(0.05, 0.02),
        cost_difference=measured(0.95, 0.1),
        verdict=verdict,
        rows_needed=None,
        weights=WEIGHTS,
        unsupported={},
        bounds=None,
        shares={"none": 0.2, "single_step": 0.3, "multi_step": 0.5},
        segments={},
    )
    return replace(made, **changes)


UNKNOWN = candidate("fixed:single_step", 0.007, 0.027, rows_needed=16_134)
OPEN = candidate(
    "mba", -0.01, 0.2, verdict="cannot be judged", unsupported={"multi_step": 0.12, "none": 0.003}, bounds=(0.31, 0.66)
)
BASELINE = candidate("random", difference=None, verdict="baseline", quality_difference=None, cost_difference=None)


def replayed(*candidates, **changes):
    """A replay of a log of 12,000 questions."""
    made = ReplayResult(
        log="the ledger main",
        rows=12_000,
        begin=BEGIN,
        end=BEGIN + 5 * DAY,
        since=None,
        plan=Plan(),
        baseline="the logged policy",
        baseline_reward=measured(0.512, 0.014),
        baseline_quality=measured(0.58, 0.01),
        baseline_cost=measured(1.36, 0.05),
        comparisons=4,
        arms=(
            Arm(name="none", drawn=0.331, expected=0.333, plausible=True, reward=0.41, quality=0.41, cost=0.0),
            Arm(name="single_step", drawn=0.503, expected=0.5, plausible=True, reward=0.55, quality=0.6, cost=1.0),
            Arm(name="multi_step", drawn=0.166, expected=0.167, plausible=True, reward=None, quality=None, cost=None),
        ),
        sources={"explicit": 11_000, "default": 1000, "late": 17},
        versions={"main-500": 7000, "main-1000": 5000},
        candidates=candidates,
    )
    return replace(made, **changes)


def printed(found, *, width=80):
    """What reaches a pipe."""
    file = io.StringIO()
    print_replay(found, Console(file=file, width=width))
    return file.getvalue()


#: what the example candidates are compared with
SERVED = "against the logged policy as it served while it learned"
#: inputs of the example differences
PARTS = "quality +0.050, cost +0.950"


OPEN_END = "between -0.020 and +0.034): cannot tell yet"


@pytest.mark.parametrize(
    ("one", "sentence"),
    [
        (candidate(), f"linucb {SERVED}: +0.042 reward per question (between +0.011 and +0.073): better; {PARTS}"),
        (
            candidate("fixed:none", -0.05, 0.02),
            f"fixed:none {SERVED}: -0.050 reward per question (between -0.070 and -0.030): worse; {PARTS}",
        ),
        (
            UNKNOWN,
            (
                f"fixed:single_step {SERVED}: +0.007 reward per question ({OPEN_END}; not enough data: to detect a "
                "difference this large with 50 % power takes about 16,000 rated questions (you have 12,000)"
            ),
        ),
        (replace(UNKNOWN, rows_needed=None), f"...{OPEN_END}"),
        (
            replace(UNKNOWN, rows_needed=1_200_001),
            f"...{OPEN_END}; the difference is close to zero: more questions will not settle it soon",
        ),
        (replace(UNKNOWN, rows_needed=12_000), "...about 12,010 rated questions (you have 12,000)"),
        (replace(UNKNOWN, rows_needed=12_600), "...takes about 13,000 rated questions (you have 12,000)"),
        (replace(UNKNOWN, rows_needed=1_144_000), "...takes about 1,100,000 rated questions (you have 12,000)"),
        (replace(UNKNOWN, rows_needed=1_200_000), "...about 1,200,000 rated questions (you have 12,000)"),
        (
            OPEN,
            (
                "mba cannot be judged: 12.3 % of its decisions are for arms that the log never tried there "
                "(multi_step, none); its reward per question may lie anywhere from 0.310 to 0.660 "
                "(the logged policy has 0.512)"
            ),
        ),
        (
            candidate(unsupported={"multi_step": 0.001}, bounds=(0.52, 0.6)),
            (
                "...: better, whatever the reward of the 0.1 % of its decisions for arms that the log never tried "
                f"there (multi_step); {PARTS}"
            ),
        ),
        (
            candidate(difference=measured(0.04), verdict="cannot tell"),
            "...+0.040 reward per question (no interval can be computed): cannot tell",
        ),
        (
            candidate(difference=measured(0.04, float("inf")), verdict="cannot tell"),
            "...+0.040 reward per question (no interval can be computed): cannot tell yet",
        ),
        (
            candidate(difference=measured(0.04), verdict="cannot tell", missing="not tried enough: 9 draws"),
            f"linucb {SERVED}: not tried enough: 9 draws",
        ),
    ],
)
def test_the_sentence_of_a_candidate(one, sentence):
    """The gain with its interval and the verdict, or what is missing: rows, arms that were tried, an interval.

    Rows needed are said in two digits, are more than there are, and nobody is sent to wait for a hundred times the log.
    """
    (said,) = headline(replayed(one))
    assert said.endswith(sentence.removeprefix("...")) if sentence.startswith("...") else said == sentence


def test_the_baseline_is_not_compared_with_itself():
    """It has no sentence, but a row in the table."""
    found = replayed(BASELINE, candidate())
    assert [one.name for one in compared(found)] == ["linucb"]
    assert len(headline(found)) == 1
    assert "│ random " in printed(found)


def test_a_wrong_log_is_said_first_and_in_every_sentence():
    """The faults come before any number, and a sentence quoted alone still doubts."""
    found = replayed(candidate(), faults=("multi_step was drawn too often", "the weights do not average 1"))
    assert alarm(found) == [
        "This log is wrong: multi_step was drawn too often",
        "This log is wrong: the weights do not average 1",
        "The numbers below are not reliable.",
    ]
    assert headline(found)[0].startswith("If the log were right: linucb against")
    assert printed(found).splitlines()[:3] == alarm(found)
    assert alarm(replayed(candidate())) == []


def cells(found, name):
    """The cells of every row of this name, a list per row."""
    lines = [line for line in printed(found).splitlines() if line.startswith(f"│ {name}")]
    return [[each.strip() for each in line.strip("│").split("│")] for line in lines]


def test_the_log_is_described():
    """Rows, dates, baseline, confidence, rewards by source, versions, what was left out, and the arms."""
    skipped = (Skipped(where="line 17", reason="pmf sums to 0.9, not 1"),)
    found = replayed(
        candidate(notes=("3 decisions by the fallback",)), skipped_rows=1203, skipped=skipped, notes=("short log",)
    )
    said = printed(found)
    for part in (
        "12,000 questions from the ledger main (2026-02-02 02:40 UTC to 2026-02-07 02:40 UTC)",
        "the logged policy: reward 0.512 (0.498 to 0.526), quality 0.580 (0.570 to 0.590), cost 1.360 (1.310 to 1.410)",
        "95 % confidence; they are valid for one look, fixed in advance, and 4 comparisons share the error",
        *("11,000 from feedback; 1,000 default rewards", "17 with later feedback", "7,000 main-500; 5,000 main-1000"),
        *("Left out: 1,203 rows", "line 17: pmf sums to 0.9, not 1", "Note: short log"),
        *(
            "Note on linucb: 3 decisions by the fallback",
            "Doubly robust estimates; reward model cross-fitted on 5 folds of the questions",
        ),
        "│ single_step │ 50.3 % │     50 % │  0.550 │   0.600 │ 1.000 │",
        "│ multi_step  │ 16.6 % │   16.7 % │        │         │       │",
    ):
        assert part in said


def test_pairs_and_segments_are_shown_where_they_are():
    """Each pair and each segment is a row; without them there is no table."""
    segments = {"tenant": (segment("acme", 0.05, rows=9000), segment("globex", -0.02, None, rows=40))}
    found = replayed(
        candidate(segments=segments),
        replace(OPEN, segments=segments),
        pairs=(Pair(first="linucb", second="mba", difference=measured(0.09, 0.04)),),
    )
    said = printed(found)
    assert "│ linucb - mba   │ +0.090 (+0.050 to +0.130) │" in said
    assert [*cells(found, "acme"), *cells(found, "globex")] == [
        ["acme", "linucb", "9,000", "1,800", "0.510", "0.560 (0.510 to 0.610)", "+0.050 (+0.000 to +0.100)"],
        ["globex", "linucb", "40", "8", "0.510", "0.490", "-0.020"],
    ]
    bare = printed(replayed(candidate()))
    titles = ("By tenant", "against each other", "Left out", "Note")
    assert not any(title in bare for title in titles)


def test_tables_are_whole_in_a_pipe():
    """However narrow the console, no line is folded and no cell is cut."""
    name = "snapshot:" + "a-long-name-" * 9
    found = replayed(candidate(name), UNKNOWN, OPEN, candidate("mba-2", segments={"tenant": (segment("x", 0.1),)}))
    assert printed(found, width=20) == printed(found, width=100)
    assert printed(found).count(name) == 4  # sentence, candidates with what they learned, weights
    assert "…" not in printed(found)


def test_names_cannot_steer_the_terminal():
    """Markup is shown as it is, and control characters stand as their codes, in sentences and tables."""
    name, shown = "[red]x[/red]\x1b[2J\n", "[red]x[/red]\\u001b[2J "
    one = candidate(name, segments={name: (segment(name, 0.1),)}, notes=(name,))
    found = replayed(
        one,
        log=name,
        arms=(replace(replayed().arms[0], name=name),),
        pairs=(Pair(first=name, second=name, difference=measured(0.1)),),
        skipped=(Skipped(where=name, reason=name),),
        versions={name: 1},
        faults=(name,),
        notes=(name,),
    )
    said = printed(found)
    assert said.count(shown) == 20
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("given_number", "said"),
    [
        (measured(0.5), "0.500"),
        (measured(-0.0), "0.000"),
        (EstimateWithInterval(value=0.03, low=0.0004, high=0.06), "0.0300 (0.0004 to 0.0600)"),
        (measured(0.0012, 0.0003), "0.0012 (0.0009 to 0.0015)"),
        (measured(0.03, 1e-12), "0.030 (0.030 to 0.030)"),
        (measured(123.456, 2.0), "123.5 (121.5 to 125.5)"),
        (measured(12_345.6, 20.0), "12,346 (12,326 to 12,366)"),
        (measured(float("nan")), "not known"),
    ],
)
def test_numbers_have_the_decimals_that_they_need(given_number, said):
    """Three, more where an end or the width would vanish, fewer for large numbers."""
    assert cell(given_number) == said


def page_of(found, path):
    """The page of a replay."""
    write_page(path, show=lambda console: print_replay(found, console))
    return path.read_text(encoding="utf-8")


def test_the_page_has_what_the_terminal_shows(tmp_path):
    """Every line of the terminal stands in the page, without a script or an address."""
    text = page_of(replayed(candidate()), tmp_path / "a.html")
    shown = html.unescape(re.sub(r"<[^>]+>", "", text))
    assert all(line in shown for line in printed(replayed(candidate()), width=120).splitlines())
    assert not re.search(r"<script|<link|<img|https?://", text)


def test_what_comes_from_data_is_escaped_in_the_page(tmp_path):
    """An odd name makes no element, and control characters stand as their codes."""
    odd = "<script>alert('1')</script>\x00\x1b"
    text = page_of(replayed(candidate(odd), log=odd, notes=(odd,)), tmp_path / "a.html")
    assert "<script" not in text
    assert not {"\x00", "\x1b"} & set(text)


def test_a_place_where_no_page_can_be_is_refused_before_the_work(tmp_path):
    """Another ending, a folder, a folder that is not there: the field and the remedy are named."""
    (tmp_path / "folder.html").mkdir()
    for name in ("a.pdf", "a", "folder.html", "missing/a.html"):
        with pytest.raises(InvalidInput) as caught:
            check_page(tmp_path / name)
        assert (caught.value.field, bool(caught.value.remedy)) == ("report", True)
    check_page(tmp_path / "a.HTML")


@pytest.mark.parametrize("count", [1, 5, 40])
def test_the_summary_fits_a_screen(count):
    """The summary of any number of candidates has at most 80 columns and 24 lines, and counts what it leaves out."""
    names = [f"a-policy-with-a-long-name-{number}" for number in range(count)]
    found = replayed(*(candidate(name) for name in names))
    file = io.StringIO()
    print_summary(found, Console(file=file, width=200))
    lines = file.getvalue().splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 80) == (True, True)
    shown = sum(name + " " in file.getvalue() for name in names)
    assert shown == count or f"({count - shown} more: --all)" in lines


def test_a_weight_of_any_size_is_printed_as_unbounded():
    """A possible weight above a million is printed as a word, and the mean weight without its useless interval."""
    tame = candidate()
    wild = replace(tame, weights=replace(tame.weights, possible=2.9e8))
    assert "unbounded" in printed(replayed(wild), width=200)
    assert "unbounded" not in printed(replayed(tame), width=200)
