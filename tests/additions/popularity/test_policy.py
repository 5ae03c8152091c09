"""Adaptive Retrieval: the entities of a question, the arm of its popularity, and the threshold from a table."""

import json

import numpy as np
import pytest

from ragbandit.additions.popularity.policy import Popularity, read_counts
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.router.policies.settings_check import check_arms
from ragbandit.shared.errors import ConfigError, InvalidInput, SnapshotError
from ragbandit.shared.types import ArmName, Query, TableRow
from ragbandit.testing.policies import ARMS, made_updates, sha_of, taught

NO, ONE, MANY = ARMS
MENTIONS = {
    "paris": 40,
    "new york": 30,
    "york": 12,
    "jane q public": 2,
    "lord of the rings": 5,
    "apollo 11": 3,
    "부산": 4,
}


@pytest.fixture
def counts(tmp_path):
    """The path of a file of counts."""
    return written(tmp_path / "counts.json")


def written(path, mentions=MENTIONS, **more):
    path.write_text(json.dumps({"format": 1, "mentions": mentions, **more}), encoding="utf-8")
    return str(path)


def output_of(policy, text, arms=ARMS):
    return pmf_of_one(policy, Query(text=text), features=None, arms=arms)


@pytest.mark.parametrize(
    ("text", "entities"),
    [
        ("Is Paris larger than New York?", {"paris": 40, "new york": 30}),  # the longest key
        ("Is York in Yorkshire?", {"york": 12, "yorkshire": 0}),
        ("Who read The Lord of the Rings?", {"lord of the rings": 5}),
        ("what does jane q. public think of the lord of the rings", {"jane q public": 2, "lord of the rings": 5}),
        ("Where did Apollo 11 land, and where's Paris's heart?", {"apollo 11": 3, "paris": 40}),
        ("Zorblax is where?", {}),  # a word that begins a sentence
        ("Where is Zorblax?", {"zorblax": 0}),
        ("Should I stay? Or should I go?", {}),
        ("new york", {"new york": 30}),
        ("부산 어디?", {"부산": 4}),
        ("", {}),
        ("?!", {}),
        ("in PARIS or N\u0301", {"paris": 40, "\u0144": 0}),
    ],
)
def test_entities_of_a_question(counts, text, entities):
    """Entities are the longest keys at capitals, or anywhere without capitals, and unknown words with capitals."""
    assert read_counts(counts).entities(text) == entities


def test_a_long_question_is_read_up_to_its_cap(counts):
    """What follows the first 4,000 characters is not read."""
    table = read_counts(counts)
    assert table.entities("x " * 1990 + "Paris") == {"paris": 40}
    assert table.entities("x " * 2000 + "Paris") == {}


@pytest.mark.parametrize(
    ("text", "arm"), [("Paris?", NO), ("new york?", NO), ("york?", ONE), ("New York or York?", ONE), ("who?", ONE)]
)
def test_the_least_popular_entity_decides(counts, text, arm):
    """From the threshold on `popular` answers, below it `rare`; the facts have what decided, as pairs."""
    output = output_of(Popularity(counts=counts, threshold=30.0), text)
    assert output.pmf == tuple(float(each == arm) for each in ARMS)
    lowest = min((popularity for _, popularity in output.facts["entities"]), default=0.0)
    assert (output.facts["popularity"], output.facts["threshold"]) == (lowest, 30.0)
    assert (lowest >= 30.0) == (arm == NO)


def test_arms_that_are_not_offered(counts):
    """If one of the two arms is not offered the other one answers; without both, any arm may."""
    policy = Popularity(counts=counts, threshold=30.0, popular="multi_step")
    assert output_of(policy, "Paris?", arms=(NO, ONE)).pmf == (0.0, 1.0)
    assert output_of(policy, "who?", arms=(NO, MANY)).pmf == (0.0, 1.0)
    assert output_of(policy, "who?", arms=(NO, ArmName("x"))).pmf == (0.5, 0.5)


def rows_of(count, seed):
    """Questions on known and unknown entities, with outcomes by chance, and some rows that lack an arm."""
    random = np.random.default_rng(seed)
    names = [*MENTIONS, "nobody"]
    for number in range(count):
        quality = random.integers(0, 2, size=3)
        arms = ARMS if number % 5 else ARMS[1:]
        yield TableRow(
            id=str(number),
            question=f"who is {names[random.integers(len(names))]} {number}?",
            correct={arm: float(q) for arm, q in zip(ARMS, quality, strict=True) if arm in arms},
            steps=dict(zip(ARMS, (0.0, 1.0, 4.0), strict=True)),
        )


@pytest.mark.parametrize("seed", range(6))
def test_the_trained_threshold_is_the_best_one(counts, seed):
    """No other threshold has more right answers on the training rows, or as many with fewer steps."""
    rows = list(rows_of(25, seed))
    policy = Popularity(counts=counts)
    report = policy.fit(rows)
    used = [row for row in rows if NO in row.correct]
    assert (report["rows"], report["used"]) == (25, 20)

    def merit(threshold):
        chosen = [NO if policy.popularity(row.question) >= threshold else ONE for row in used]
        right = sum(row.correct[arm] for row, arm in zip(used, chosen, strict=True))
        return right, -sum(row.steps[arm] for row, arm in zip(used, chosen, strict=True))

    best = max(merit(threshold) for threshold in (0.0, *MENTIONS.values(), 1e6))
    assert merit(policy.threshold) == best
    assert report["quality"] == pytest.approx(best[0] / len(used))
    share = sum(policy.popularity(row.question) >= policy.threshold for row in used) / len(used)
    assert report["popular_share"] == pytest.approx(share)


def test_a_trained_threshold_is_loaded_with_its_counts_only(counts, tmp_path):
    """The saved folder gives the threshold; a param overrides it; with other counts it is refused."""
    policy = Popularity(counts=counts)
    with pytest.raises(InvalidInput, match="is not trained"):
        policy.save(tmp_path / "none")
    policy.fit(list(rows_of(25, 1)))
    folder = tmp_path / "trained"
    policy.save(folder)
    with pytest.raises(ConfigError, match="already exists"):
        policy.save(folder)
    loaded = Popularity(counts=counts, trained=str(folder))
    assert (loaded.threshold, loaded.report) == (policy.threshold, policy.report)
    assert Popularity(counts=counts, trained=str(folder), threshold=7.0).threshold == 7.0
    other = written(tmp_path / "other.json", {"paris": 41})
    for where in (other, counts):
        with pytest.raises(ConfigError, match="is not usable") as caught:
            Popularity(counts=where, trained=str(folder if where == other else tmp_path))
        assert caught.value.field == "policy.params.trained"


def test_rows_without_the_two_arms_cannot_train(counts):
    """Rows that lack the outcome of an arm are left out; if all are, the error names the params."""
    row = TableRow(id="1", question="who?", correct={NO: 1.0}, steps={NO: 0.0})
    with pytest.raises(InvalidInput, match="outcomes of both"):
        Popularity(counts=counts).fit([row])


def test_without_a_threshold_it_is_refused(counts):
    """An untrained policy is uniform, and no configuration may use it."""
    policy = Popularity(counts=counts)
    output = output_of(policy, "Paris?")
    assert (output.pmf, output.facts) == ((1 / 3,) * 3, {"untrained": True})
    with pytest.raises(ConfigError, match="is not trained") as caught:
        check_arms(policy, arms=ARMS, where="policy.params")
    assert "policy train --policy popularity" in caught.value.remedy
    check_arms(Popularity(counts=counts, threshold=0.0), arms=ARMS, where="policy.params")


def test_a_snapshot_belongs_to_its_counts(counts, tmp_path):
    """A state is restored with the same counts and threshold only, and differs from the state of other ones."""
    policy = taught(lambda: Popularity(counts=counts, threshold=3.0), made_updates(5))
    others = {
        "counts": Popularity(counts=written(tmp_path / "other.json", {"paris": 1}), threshold=3.0),
        "trained": Popularity(counts=counts, threshold=4.0),
    }
    for field, other in others.items():
        with pytest.raises(SnapshotError, match="made with another") as caught:
            other.restore(*policy.state())
        assert caught.value.field == f"policy.params.{field}"
        assert sha_of(other) != sha_of(Popularity(counts=counts, threshold=3.0))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("no json", "Invalid JSON"),
        ('{"format": 2, "mentions": {}}', "format"),
        ('{"format": 1}', "mentions"),
        ('{"format": 1, "mentions": {"paris": 0}}', "mentions.paris"),
        ('{"format": 1, "mentions": {"paris": "9"}}', "mentions.paris"),
        (None, "cannot be read"),
    ],
)
def test_files_that_are_no_counts(tmp_path, text, fault):
    """A missing file, another format and wrong numbers are refused, with the command as remedy."""
    path = tmp_path / "counts.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=fault) as caught:
        Popularity(counts=str(path), threshold=1.0)
    assert caught.value.field == "policy.params.counts"
    assert "index counts" in caught.value.remedy


def test_the_two_arms_differ(counts):
    """One arm cannot be both the popular and the rare one."""
    with pytest.raises(ConfigError, match="is also the arm"):
        Popularity(counts=counts, popular="single_step")
