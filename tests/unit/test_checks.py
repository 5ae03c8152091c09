"""The checks that ship: what they take for JSON, for a citation, and for tests that pass."""

from ragbandit import checks
from tests.support.cases import every_case

SOURCES = [
    {
        "id": "a",
        "title": "Dracula",
        "text": "Bram Stoker wrote the novel Dracula in the year 1897.",
        "url": "https://a",
    },
    {"id": "b", "title": "Other", "text": "short", "url": None},
]


def test_json_parses():
    """One object or array, alone or in a code fence; nothing around it, and no scalar."""
    good = ['{"a": 1}', " [1, 2]\n", '```json\n{"a": 1}\n```', "```\n[]\n```"]
    bad = ["", "42", '"text"', 'Here: {"a": 1}', '{"a": 1', "```json\n{}\n``` so", "[" * 100_000, "{'a': 1}"]
    with every_case() as case:
        for answer in good + bad:
            with case(answer[:20]):
                assert checks.json_parses(answer=answer, question="", sources=[]) is (answer in good)


def test_cites_source():
    """A source's number, its URL, or eight consecutive words are a citation; an unknown number is not."""
    cases = [
        ("Stoker did [1].", True),
        ("Stoker did [1, 2].", True),
        ("Stoker did [3].", False),
        ("Stoker did [1][0].", False),
        ("See https://a for it.", True),
        ("As it says, bram stoker wrote the novel Dracula, in 1897.", False),
        ('"Bram Stoker wrote the novel Dracula in the year"', True),
        ("Stoker.", False),
        ("", False),
    ]
    with every_case() as case:
        for answer, wanted in cases:
            with case(answer):
                assert checks.cites_source(answer=answer, question="", sources=SOURCES) is wanted
    assert checks.cites_source(answer="Stoker did [1].", question="", sources=[]) is None
