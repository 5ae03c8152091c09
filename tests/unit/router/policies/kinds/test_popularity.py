"""Adaptive Retrieval: what the index builder counts, what the policy reads, and where it draws the line."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ragbandit.router.policies.base import pmf_of_one
from ragbandit.router.policies.kinds.popularity import BINS, READ, SHOWN, Popularity, PopularityTable, read_table
from ragbandit.shared.errors import ConfigError, PolicyFault, SnapshotError
from ragbandit.shared.types import ArmName, Query
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers.mention_counts import WORDS, count_mentions, write_popularity
from ragbandit.testing.policies import ARMS, made_reward, made_updates, sha_of, taught

NO, ONE, MANY = ARMS
TABLE = str(Path(__file__).parents[4] / "support" / "popularity.json")

PASSAGES = [
    Passage(id="1", title="Vistula", text="The Vistula is a river. Warsaw stands on the Vistula, in Poland."),
    Passage(id="2", title="Warsaw (film)", text="A film by Jane Q. Public about the city of Warsaw, shot in New York."),
    Passage(id="3", title="The Lord of the Rings", text="Tolkien's novel. It was read by Jane Q. Public in 1970."),
    Passage(id="4", title="", text="Rivers run to the sea. Rings and a city; the film “New York” of Apollo 11."),
    Passage(
        id="5", title="What Maisie Knew", text="When Tolkien wrote, what he knew was vast: O\u2019Brien\u2019s cité."
    ),
]


def table_file(folder, mentions, *, common=(), words=4, **more):
    path = folder / "table.json"
    described = {"format": 1, "passages": 9, "words": words, "mentions": mentions, "common": list(common), **more}
    path.write_text(json.dumps(described), encoding="utf-8")
    return str(path)


def entities(folder, text, mentions, **more):
    return read_table(table_file(folder, mentions, **more)).entities(text)


def word_of(policy, text, arms=ARMS):
    return pmf_of_one(policy, Query(text=text), features=None, arms=arms)


# What the builder counts.


@pytest.mark.parametrize(
    ("key", "passages"),
    [
        ("vistula", 1),  # twice in one passage
        ("warsaw", 2),  # in a title without its bracket, and in a text
        ("new york", 2),  # in quotes too
        ("york", 2),
        ("jane q public", 2),  # an initial's full stop ends nothing
        ("lord of the rings", 1),  # a title, without its article
        ("tolkien", 2),  # without the possessive
        ("o'brien", 1),  # apostrophes inside stay
        ("apollo 11", 1),
        ("what maisie knew", 1),
        ("cité", None),  # small letter
        ("the lord of the rings", None),
        ("the", None),
        ("rivers", None),  # the beginning of a sentence says nothing where texts write it small
        ("what", None),
        ("rings", 2),  # a name in the title, at a sentence's beginning elsewhere; nowhere small
        ("when tolkien", None),
        ("1970", None),
        ("q", None),
        ("warsaw film", None),
        ("vistula in poland", None),  # a comma between
    ],
)
def test_passages_that_mention_a_key(key, passages):
    """Every key counts the passages that mention it, once per passage; words that are not names are not keys."""
    passages_of = count_mentions([*PASSAGES, Passage(id="6", title="", text="All rivers flow, and some film it.")])[
        "mentions"
    ]
    assert passages_of.get(key) == passages


def test_a_title_of_common_words_is_a_key():
    """A title of several common words is a key; a title of one common word is not."""
    text = "You ask for annual leave, and the leave is annual."
    passages = [Passage(id="1", title="Annual leave", text=text), Passage(id="2", title="Leave", text=text)]
    assert count_mentions(passages)["mentions"] == {"annual leave": 1}


def test_table_says_what_it_is():
    """Format, passages and longest key stand in the file; keys and common words are sorted, and no key is longer."""
    table = count_mentions(PASSAGES)
    assert (table["format"], table["passages"], table["words"]) == (1, len(PASSAGES), WORDS)
    assert list(table["mentions"]) == sorted(table["mentions"])
    assert table["common"] == sorted(table["common"])
    assert {"city", "river", "who"} <= set(table["common"])
    assert max(len(key.split()) for key in table["mentions"]) <= WORDS
    assert min(table["mentions"].values()) >= 1


def test_file_is_what_the_policy_reads(tmp_path):
    """What the builder writes the policy reads, with every key it looks for found in it."""
    path = write_popularity(PASSAGES, tmp_path)
    assert path == tmp_path / "popularity.json"
    assert [file.name for file in tmp_path.iterdir()] == ["popularity.json"]
    table = read_table(str(path))
    asked = "Did Jane Q. Public film The Lord of the Rings in New York, or O'Brien's Maisie?"
    found = table.entities(asked)
    assert found == {"jane q public": 2, "lord of the rings": 1, "new york": 2, "o'brien": 1, "maisie": 1}


# What the policy reads in a question.


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Where is Poachie Range?", {"poachie range": 2}),
        ("Where is Poachie?", {"poachie": 0}),  # no key of its own, no common word
        ("Where is the Range?", {}),  # a common word
        ("Poachie is where?", {}),  # the sentence's first word, unknown
        ("Obama is who?", {"obama": 50}),  # the sentence's first word, known
        ("Did Barack Obama see Poachie Range?", {"barack obama": 40, "poachie range": 2}),
        ("Is Obama taller? Zaphod asks.", {"obama": 50}),  # Zaphod begins a sentence
        ("Is Zaphod taller than Obama's wife?", {"zaphod": 0, "obama": 50}),
        ('Who sang "let it be"?', {"let it be": 7}),
        ("Who sang “Let It Bleed”?", {"let it bleed": 0}),
        ("who is taller, barack obama or zaphod", {"barack obama": 40}),  # typed without capitals
        ("what is two plus two", {}),
        ("", {}),
        ("?!", {}),
        ("Émile E\u0301mile", {"émile": 3}),
        ("12 years a slave by whom?", {"12 years a slave": 4}),
    ],
)
def test_entities_of_a_question(tmp_path, text, found):
    """Longest keys from left to right; capitalised words and quotes that are not in the table have popularity 0."""
    mentions = {"poachie range": 2, "obama": 50, "barack obama": 40, "let it be": 7, "émile": 3, "12 years a slave": 4}
    assert entities(tmp_path, text, mentions, common=["range", "where", "did", "is", "who"]) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x " * (READ // 2) + "Obama Zaphod", {}),
        ("x" * (READ - 6) + " Obama", {"obama": 50}),  # the whole name is within
        ("x" * (READ - 6) + " Obama Zaphod", {"obama": 50}),
        ("x" * (READ - 6) + " Obamas", {}),  # half of another name is none
        ("x" * (READ - 5) + " Obama", {}),
        (" " * READ + "Obama", {}),
        ("X" * (READ + 9), {}),
    ],
)
def test_long_question_is_read_up_to_a_length(text, found):
    """Only the first READ characters of a question are searched, up to the last whole word."""
    table = PopularityTable(format=1, mentions={"obama": 50.0}, common=frozenset(), words=5)
    assert table.entities(text) == found


@pytest.mark.parametrize(
    ("text", "arm"),
    [
        ("Who wrote Dracula?", NO),
        ("Who wrote Dracula in the City?", ONE),  # the least popular one decides
        ("Who wrote Dracula about Zaphod?", ONE),
        ("Who are they?", ONE),  # no entity
    ],
)
def test_given_threshold_decides(text, arm):
    """From the threshold on `above` answers; below it, and where an entity is missing, `below` does."""
    output = word_of(Popularity(table=TABLE, threshold=30.0, epsilon=0.3), text)
    assert output.pmf == pytest.approx([0.1 + (0.7 if name == arm else 0.0) for name in ARMS])


@pytest.mark.parametrize(
    ("arms", "pmf"),
    [
        ((ONE, MANY), (0.95, 0.05)),  # `above` is not offered: `below` answers
        ((NO, MANY), (0.95, 0.05)),
        ((MANY, ArmName("other")), (0.5, 0.5)),
        ((MANY,), (1.0,)),
    ],
)
def test_arms_that_are_not_offered(arms, pmf):
    """The other arm stands in for one that is not offered; without both all are alike."""
    policy = Popularity(table=TABLE, threshold=2.0)
    assert word_of(policy, "Who wrote Dracula?", arms).pmf == pytest.approx(pmf)


def test_facts_say_why():
    """Entities, popularity, threshold and epsilon are logged; of many entities the least popular ones."""
    facts = word_of(Popularity(table=TABLE, threshold=5.0), "Who wrote Dracula about the City and the River?").facts
    assert facts["entities"] == {"city": 4, "river": 17, "dracula": 30}
    assert (facts["popularity"], facts["threshold"], facts["epsilon"]) == (4, 5.0, 0.1)
    many = word_of(Popularity(table=TABLE), " ".join(f"x Zaphod{i}" for i in range(40)) + " Dracula").facts
    assert len(many["entities"]) == SHOWN
    assert "dracula" not in many["entities"]


# What it learns.


def lessons(rows):
    """Updates from (text, arm, reward)."""
    return [
        replace(update, query=Query(text=text), arm=arm, features=None, reward=made_reward(value))
        for update, (text, arm, value) in zip(made_updates(len(rows)), rows, strict=True)
    ]


def best_edge(rows, *, bins):
    """The oracle: mean reward of every edge by brute force over (bin, arm, reward) rows, highest edge of the best."""
    overall = {arm: np.mean([r for _, a, r in rows if a == arm] or [0.0]) for arm in (ONE, NO)}

    def mean(place, arm):
        cell = [r for b, a, r in rows if (b, a) == (place, arm)]
        return (sum(cell) + overall[arm]) / (len(cell) + 1)

    worth = [
        sum(mean(place, ONE if place < edge else NO) for place, _, _ in rows) / len(rows) for edge in range(bins + 1)
    ]
    return max(edge for edge in range(bins + 1) if worth[edge] >= max(worth) - 1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_learned_threshold_is_the_best_edge(tmp_path, seed):
    """The edge has the highest estimated mean reward over the ledger, by brute force over all edges."""
    rng = np.random.default_rng(seed)
    names = {f"name{n}": int(n) for n in np.unique(np.geomspace(1, 3000, 40).astype(int))}
    policy = Popularity(table=table_file(tmp_path, names))
    top = math.log10(3000 + 2)
    rows, seen = [], []
    for _ in range(150):
        name = str(rng.choice(list(names)))
        arm = (NO, ONE, MANY)[rng.integers(3)]
        right = rng.random() < (0.1 + 0.8 * math.log10(names[name] + 1) / top if arm == NO else 0.55)
        rows.append((f"Who is Name{name[4:]}?", arm, float(right)))
        seen.append((int(BINS * math.log10(names[name] + 1) / top), arm, float(right)))
    for lesson in lessons(rows):
        policy.learn(lesson)
    assert policy.edge == best_edge(seen, bins=BINS)
    assert policy.threshold == pytest.approx(10 ** (policy.edge * top / BINS) - 1)


def test_learned_threshold_retrieves_what_memory_gets_wrong(tmp_path):
    """Where memory is right from popularity 100 on, the threshold comes to lie between the rare and the popular."""
    policy = Popularity(table=table_file(tmp_path, {"rare": 3, "known": 1000}), epsilon=0.0)
    assert word_of(policy, "Who is Known?").pmf == (0.0, 1.0, 0.0)  # nothing learned: retrieve
    rows = [
        ("Who is Rare?", NO, 0.0),
        ("Who is Rare?", ONE, 0.7),
        ("Who is Known?", NO, 1.0),
        ("Who is Known?", ONE, 0.7),
    ]
    for lesson in lessons(rows * 5):
        policy.learn(lesson)
    assert 3 < policy.threshold <= 1000
    assert word_of(policy, "Who is Rare?").pmf == (0.0, 1.0, 0.0)
    assert word_of(policy, "Who is Known?").pmf == (1.0, 0.0, 0.0)


def test_ties_retrieve():
    """Where both arms earn the same, everything is retrieved."""
    policy = Popularity(table=TABLE)
    for lesson in lessons([("Where is Dracula?", NO, 0.5), ("Where is Dracula?", ONE, 0.5)] * 4):
        policy.learn(lesson)
    assert policy.edge == BINS


def test_row_without_a_reward_is_refused():
    """A reward that is not a number is a PolicyFault, and changes nothing."""
    policy = taught(lambda: Popularity(table=TABLE), made_updates(5))
    before = sha_of(policy)
    row = made_updates(1, first=6)[0]
    with pytest.raises(PolicyFault):
        policy.learn(replace(row, reward=replace(row.reward, value=math.nan)))
    assert sha_of(policy) == before


# The file.


def test_rows_count_as_their_weights(tmp_path):
    """Sums and counts of a bin add what the rows count as, and a state with parts of rows comes back."""
    policy = Popularity(table=table_file(tmp_path, {"dracula": 9}))
    rows = [("Dracula?", NO, 1.0), ("Dracula?", NO, 0.0), ("Dracula?", ONE, 0.5)] * 3
    for update, weight in zip(lessons(rows), (0.25, 2.5, 1.0) * 3, strict=True):
        policy.learn(replace(update, reward=replace(update.reward, sample_weight=weight)))
    arrays, facts = policy.state()
    assert arrays["counts"].sum(axis=1).tolist() == [3.0, 8.25]
    assert arrays["sums"].sum(axis=1).tolist() == [1.5, 0.75]
    back = Popularity(table=table_file(tmp_path, {"dracula": 9}))
    back.restore(arrays, facts)
    assert sha_of(back) == sha_of(policy)


def test_snapshot_of_another_table_is_refused(tmp_path):
    """Another file makes another sha256, and a state made with one is refused by a policy that has the other."""
    path = tmp_path / "table.json"
    shutil.copy(TABLE, path)
    one = taught(lambda: Popularity(table=str(path)), made_updates(9))
    path.write_text(path.read_text(encoding="utf-8").replace("30", "31"), encoding="utf-8")
    other = taught(lambda: Popularity(table=str(path)), made_updates(9))
    assert sha_of(one) != sha_of(other)
    with pytest.raises(SnapshotError, match="another table"):
        other.restore(*one.state())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"format": 2, "words": 4, "mentions": {}, "common": []}',
        '{"format": 1, "words": 4, "mentions": {}}',
        '{"format": 1, "words": 4, "mentions": [1], "common": []}',
        '{"format": 1, "words": 4, "mentions": {"a": 0}, "common": []}',
        '{"format": 1, "words": 4, "mentions": {"a": -1}, "common": []}',
        '{"format": 1, "words": 4, "mentions": {"a": "many"}, "common": []}',
        '{"format": 1, "words": 4, "mentions": {"a": Infinity}, "common": []}',
        '{"format": 1, "words": 0, "mentions": {"a": 1}, "common": []}',
        '{"format": 1, "words": 4, "mentions": {"a": 1}, "common": [1]}',
    ],
)
def test_file_that_is_no_table_is_refused(tmp_path, content):
    """A broken table, or one of another format, is a ConfigError of `table` that says what writes one."""
    path = tmp_path / "table.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match="not a table of format 1") as caught:
        Popularity(table=str(path))
    assert caught.value.field == "policy.params.table"
    assert "ragbandit index build" in caught.value.remedy


def test_index_build_writes_the_table(tmp_path, monkeypatch):
    """`ragbandit index build` leaves popularity.json in the index's folder; --no-popularity leaves it out."""
    from typer.testing import CliRunner

    from ragbandit.workers.cli import app

    corpus = tmp_path / "corpus.jsonl"
    rows = ({"id": p.id, "title": p.title, "text": p.text} for p in PASSAGES)
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    folder = tmp_path / "index"
    command = ["index", "build", "--corpus", str(corpus), "--index", str(folder)]
    monkeypatch.chdir(tmp_path)
    for more, there in (([], True), (["--no-popularity"], False)):
        run = CliRunner().invoke(app, [*command, *more])
        assert run.exit_code == 0, run.output
        assert (folder / "popularity.json").exists() == there
        assert ("\npopularity " in run.output) == there
