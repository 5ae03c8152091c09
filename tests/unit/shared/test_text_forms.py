"""The form of texts that are compared and searched."""

import unicodedata

import pytest
from hypothesis import given, strategies as st

from ragbandit.shared.texts.text_forms import answer_words, canonical_text, is_blank, words
from tests.support.examples import steady


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ("Option: A", "option (a)"),
        ("B\u266d", "Bb"),
        ("\u0643\u062a\u0640\u0627\u0628", "\u0643\u062a\u0627\u0628"),
        ("such a thing", "such thing"),
        ("in a nutshell", "in nutshell"),
        ("**D**", "D."),
        ("The Nile", "nile, the"),
        ("“Dune”", "«Dune»"),
        ("L\u2019Équipe", "L'e\u0301quipe"),
        ("it`s — fine", "it s fine"),
        ("rock\u2019n\u2019roll", "rocknroll"),
        ("1914\u20131918", "1914-1918"),
        ("大阪\uff01", "『大阪』"),
        ("ﾄﾖﾀ", "トヨタ"),
        ("\uff16\uff13\uff05", "63 %"),
        ("٦٣", "63"),
        ("o\u200bne\ufeff t\u00adwo\u202e", "one two"),
        ("GROẞE ﬂüsse", "grosse flüsse"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("DİYARBAKIR", "diyarbak\u0131r"),
        ("\u22127 °C", "-7°C"),
        ("12,500,000", "12500000"),
        ("12\u202f500", "12'500"),
        ("1,23,45,678", "12345678"),
        (".25", "0.25"),
        ("U.K.", "UK"),
        ("e-book", "ebook"),
        ("snake_case", "snakecase"),
        ("_Rome_", "Rome"),
        ("Tokyo™", "tokyo"),
        ("می\u200cروم", "میروم"),
        ("C♯", "c#"),
        ("2½ l", "2 1/2 L"),
        ("-$3", "$-3"),
    ],
)
def test_forms_that_readers_cannot_tell_apart_are_the_same_answer(one, same):
    """Two writings of the same answer have the same words."""
    assert answer_words(one) == answer_words(same) != []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[("A", other) for other in ("The", "an", "?", "…", "B", "A+", "A-")],
        *[("12", other) for other in ("1.2", "1,2", "-12", "1/2", "1:2", "12.0.1", "1²")],
        *[("C", other) for other in ("C++", "C#", "A C", "a C")],
        ("A and C", "and C"),
        *[("1e-5", other) for other in ("1e5", "15")],
        *[
            ("€9", "$9"),
            ("≥9", "9"),
            (">9", "< 9"),
            ("<=9", "9"),
            ("1.2", "1,2"),
            ("3½", "31/2"),
            ("😀", "😢"),
            ("!", "?"),
        ],
        *[("10-12", "1012"), ("resume", "résumé"), ("कमल", "कमला")],
    ],
)
def test_answers_that_differ_have_other_words(one, other):
    """Signs, points, marks and option letters tell answers apart."""
    assert answer_words(one) != answer_words(other)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("नई दिल्ली।", ["नई", "दिल्ली"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("שָׁלוֹם עֲלֵיכֶם", list(map(canonical_text, ["שָׁלוֹם", "עֲלֵיכֶם"]))),
        ("東京2024年", ["東", "京", "2024", "年"]),
        ("ที่นี่", ["ที่", "นี่"]),
        ("한국어 책", ["한국어", "책"]),
        ("in 2019,2020 and 1.5,2.5", ["in", "2019", "2020", "and", "1.5", "2.5"]),
        (
            "C++17, F# (v2.0.1) x-ray e.g. J.R.R. Tolkien",
            ["c++", "17", "f#", "v2.0.1", "x", "ray", "eg", "jrr", "tolkien"],
        ),
        ("See example.org.Then go", ["see", "example", "org", "then", "go"]),
        ("p < .05 -> 2 <b>", ["p", "<", "0.05", "2", "b"]),
        ("?! \u200b", []),
    ],
)
def test_words_of_every_script(text, expected):
    """Marks stay in their words, and scripts without spaces give a word per character."""
    assert words(text) == expected


@pytest.mark.parametrize("text", [None, "", " \n\t", "\u200b\ufeff", "\u3000\u00a0"])
def test_what_cannot_be_seen_is_blank(text):
    """White space, invisible characters and no text are blank; a mark or a letter is not."""
    assert is_blank(text)
    assert not is_blank(".")


@steady
@given(st.text(max_size=60))
def test_case_and_normal_form_never_matter(text):
    """A text, its composed and its decomposed form have the same form, and only blank text has no words."""
    assert canonical_text(unicodedata.normalize("NFD", text)) == canonical_text(unicodedata.normalize("NFC", text))
    assert (answer_words(text) == []) is is_blank(text)


@pytest.mark.parametrize("text", ["1" * 100_000, "1," * 50_000, "a-" * 50_000, "क्" * 50_000, "c" + "#" * 100_000 + "x"])
def test_long_runs_are_read_once(text):
    """A long run of one pattern is read in steps that grow with its length: a square would not end here."""
    assert answer_words(text)
