"""A ledger out of its store as a file and into another store: nothing lost, nothing twice, every count in balance."""

import itertools
import json
import re
import shutil
from dataclasses import replace

import pytest
from sqlalchemy import func, select
from typer.testing import CliRunner

from ragbandit.router.config.loading import load
from ragbandit.router.learning.audit.verify import verify
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.learning.status import counters
from ragbandit.router.offline.logs import BadRow, write_rows
from ragbandit.router.offline.logs.jsonl import read_rows
from ragbandit.router.offline.logs.ledger_transfer import import_rows, ledger_rows
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.jobs.answers import waiting_ids
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import (
    closures,
    decisions,
    feedback,
    outcomes,
    updates,
    waiting,
)
from ragbandit.shared.errors import Conflict
from ragbandit.shared.types import IMPORTED, Query
from ragbandit.workers.cli import app
from tests.conftest import World
from tests.support.audits import assert_compared, verified
from tests.support.logs.log_rows import LEAST, plain_rows, write_json

LEARNING = {"default_reward": -0.25, "expire_s": 60.0}
#: the path that writes rows, on both databases
both = pytest.mark.parametrize("new_url", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def new_url(request, tmp_path):
    """A factory of URLs of databases with our schema and no row, all of one kind."""
    numbers, made = itertools.count(1), []
    if getattr(request, "param", "sqlite") == "sqlite":
        template = request.getfixturevalue("sqlite_template")

        def make():
            return f"sqlite:///{shutil.copyfile(template, tmp_path / f'store{next(numbers)}.db')}"
    else:
        server, template = request.getfixturevalue("postgres"), request.getfixturevalue("postgres_template")

        def make():
            made.append(server.lend(template=template))
            return server.url(made[-1])

    yield make
    for name in made:
        server.take_back(name)


@pytest.fixture
def new_ledger(new_url):
    """A factory of ledgers in stores of their own."""
    opened = []

    def make(label="imported"):
        opened.append(Database(new_url()))
        return Ledger(opened[-1], label=label)

    yield make
    for database in opened:
        database.close()


@pytest.fixture(scope="module")
def filled(module_settings):
    """The folder of a filled store on SQLite, to be copied, and the clock at its end."""
    world = World(module_settings(learning=LEARNING))
    fill(world)
    world.close()
    return world.settings.data_dir, world.now


@pytest.fixture
def world(request, make_world, new_url, tmp_path):
    """A router with a ledger of all kinds of rows: a copy on SQLite, a new ledger on PostgreSQL."""
    if "postgresql" in request.node.name:
        new_world = make_world(database_url=new_url(), learning=LEARNING)
        fill(new_world)
        return new_world
    folder, now = request.getfixturevalue("filled")
    shutil.copytree(folder, tmp_path / "data")
    return make_world(learning=LEARNING, now=now)


def fill(made):
    """Rows that are judged, defaulted, late, answered by workers, and of odd texts."""
    made.judged(5)
    made.now += 1.25
    for text, context in (("Was weiß man? \U0001f9db", {"device": "", "n": 1e-17}), ("b" * 3000, {"k": None})):
        decision = made.router.submit(Query(text=text, context=context), run_by="caller").result(30)
        made.outcome(decision, cost={"llm_calls": 3, "seconds_total": 0.1 + 0.2})
        made.feedback(decision, label=["Paris"], feedback_id=f"mine-{len(text)}")
    ours = made.route(ours=True)
    made.outcome(ours, by_worker=True)
    made.feedback(ours, rating=0.75)
    arms = ("multi_step", "no_retrieval")
    some = made.router.submit(Query(text="only two?", arms=arms), run_by="caller").result(30)
    made.feedback(some, reward=0.3)
    silent = [made.route() for _ in range(3)]
    assert made.learn() == 9
    made.feedback(some, rating=1.0)  # late
    made.now += 100
    assert made.learn() == 3  # by default
    made.feedback(silent[0], rating=0.5)  # late for a default
    made.judged(3)
    made.learn()
    made.route()  # decided, not learned


def count(ledger, table, *where):
    with ledger.database.read() as connection:
        return connection.execute(select(func.count()).select_from(table).where(*where)).scalar_one()


def exported(ledger, path):
    write_rows(path, ledger_rows(ledger))
    return path.read_bytes()


def imported(ledger, path, **options):
    rows = list(read_rows(path))
    assert not [row for row in rows if isinstance(row, BadRow)]
    return import_rows(ledger, lambda: rows, origin="jsonl", source=path.name, **options)


@both
def test_rows_are_the_stores_own_and_come_once(world, new_ledger, tmp_path):
    """Decisions and updates arrive as they are, with a mark; the same file a second time adds no row to any table."""
    exported(world.ledger, tmp_path / "log.jsonl")
    there = new_ledger()
    imported(there, tmp_path / "log.jsonl")

    def rows_of(ledger, table, order):
        with ledger.database.read() as connection:
            own = "policy", "decided"  # label of the ledger that appended the row
            found = connection.execute(select(table).order_by(order)).mappings()
            return [{name: value for name, value in row.items() if name not in own} for row in found]

    learned = {row["decision_id"] for row in rows_of(world.ledger, updates, updates.c.seq)}
    assert rows_of(there, updates, updates.c.seq) == rows_of(world.ledger, updates, updates.c.seq)
    theirs = [row for row in rows_of(world.ledger, decisions, decisions.c.id) if row["id"] in learned]
    arrived = rows_of(there, decisions, decisions.c.id)
    assert all(json.loads(row.pop("facts"))[IMPORTED] == "jsonl" for row in arrived)
    assert all(row.pop("is_imported") for row in arrived)
    marked = ("facts", "is_imported")
    assert arrived == [{name: value for name, value in row.items() if name not in marked} for row in theirs]
    tables = (decisions, updates, feedback, outcomes, waiting, closures)
    before = [count(there, table) for table in tables]
    again = imported(there, tmp_path / "log.jsonl")
    assert (again.added, again.known) == (0, 15)
    assert [count(there, table) for table in tables] == before


@both
def test_same_id_other_body(new_ledger, tmp_path):
    """A used id with another body is a conflict that names line and field, and nothing of its page is kept."""
    there = new_ledger()
    imported(there, write_json(tmp_path / "log.jsonl", [LEAST]))
    for change, field in (
        ({"text": "another question"}, "text"),
        ({"made_at": 5.0}, "made_at"),
        ({"reward": 0.5}, "value"),
        ({"reward": {"value": 0.7, "preset": "f1"}}, "preset"),
        ({"features": [1.0, 2.0]}, "features"),
    ):
        other = write_json(tmp_path / "other.jsonl", [LEAST | {"id": "new"}, LEAST | change])
        with pytest.raises(Conflict) as caught:
            imported(there, other)
        assert caught.value.field == f"other.jsonl:2 {field}"
        assert (count(there, decisions), count(there, updates)) == (1, 1), field


@both
def test_failed_import_leaves_nothing(new_ledger):
    """A log with a wrong late row, or without its end, leaves neither rows nor a ledger; the corrected log is whole."""
    there, rows = new_ledger(), plain_rows(1100)
    other = replace(rows[3], decision=replace(rows[3].decision, floor=0.5))

    def broken():
        yield from rows[:1050]
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError):
        import_rows(there, broken, origin="jsonl")
    assert (count(there, updates), there.policy_row()) == (0, None)
    assert import_rows(there, lambda: rows, origin="jsonl").added == 1100
    more = [replace(row, decision=replace(row.decision, id=f"more{n}")) for n, row in enumerate(rows)]
    with pytest.raises(Conflict):
        import_rows(there, lambda: [*more, other], origin="jsonl")
    assert [row.decision.id for row in ledger_rows(there)] == [row.decision.id for row in rows]


@both
def test_rows_that_two_systems_number_alike(new_ledger, tmp_path):
    """Another system's row under a used id, or under none of ours, gets an id of its ledger's, the same each time."""
    one = new_ledger()
    imported(one, write_json(tmp_path / "one.jsonl", [LEAST, LEAST | {"id": "../x"}, LEAST | {"id": "x" * 70}]))
    two = Ledger(one.database, label="two")
    file = write_json(tmp_path / "two.jsonl", [LEAST | {"text": "another system's"}, LEAST | {"id": "new"}])
    assert (imported(two, file).added, imported(two, file).known) == (2, 2)
    first, second = [row.decision for row in ledger_rows(two)]
    assert (first.query.text, first.facts["logged_id"], second.id) == ("another system's", "q1", "new")
    assert [row.decision.id.startswith("imported-") for row in ledger_rows(one)] == [False, True, True]
    assert max(len(row.decision.id) for row in ledger_rows(one)) <= 64
    with pytest.raises(Conflict, match="learned"):
        imported(two, write_json(tmp_path / "two.jsonl", [LEAST | {"id": "new", "reward": 0.1}]))


def test_rows_of_another_store_in_a_live_ledger(make_world, new_url, tmp_path, other_processor):
    """Rows of another store do not disturb the deep check of a live ledger, which still makes its own again, here and
    on another processor.
    """
    first = make_world(database_url=new_url(), data_dir=str(tmp_path / "first"))
    for _ in range(2):
        first.judged(6)
        first.learn()
    exported(first.ledger, tmp_path / "log.jsonl")
    second = make_world(database_url=new_url(), data_dir=str(tmp_path / "second"))
    second.judged(4)
    second.learn()
    imported(second.ledger, tmp_path / "log.jsonl")
    second.judged(2)
    assert second.learn() == 2
    assert [row["seq"] for row in second.updates()] == list(range(1, 19))
    assert second.counters().balanced
    verdict = second.router.verify(deep=True)
    assert verdict.ok, verdict.notes
    assert (verdict.made_elsewhere, verdict.deep_decisions) == (12, 6)
    assert_compared(other_processor.call(verified, second.settings))


def test_own_rows_in_another_ledger(world, tmp_path):
    """A second ledger of a store learns its decisions with the draws that they have."""
    exported(world.ledger, tmp_path / "log.jsonl")
    there = Ledger(world.database, label="second")
    assert imported(there, tmp_path / "log.jsonl").added == 15
    assert not any(IMPORTED in row.decision.facts for row in ledger_rows(there))
    verdict = verify(there, files=SnapshotFiles(str(tmp_path)), serving=None)
    assert (verdict.ok, verdict.made_elsewhere) == (True, 0), verdict.notes


def test_counters_balance_for_every_ledger(world, tmp_path):
    """An imported log leaves the counters of both ledgers balanced; the live ledger closes its rows."""
    before = world.counters()
    there = Ledger(world.database, label="imported")
    imported(there, write_json(tmp_path / "log.jsonl", [LEAST | {"id": f"q{n}"} for n in range(7)]))
    world.route()
    theirs, live = counters(there), world.counters()
    assert theirs.balanced
    assert live.balanced
    assert (theirs.learned, theirs.waiting) == (7, before.decided + 1)
    assert live.closed == before.closed + 7
    assert world.learn() == 0
    assert world.router.verify().ok


def test_new_ledger_learns_from_it(make_world, new_url, tmp_path):
    """A router that opens a new ledger on the store learns the logged rewards, and asks no worker to answer again."""
    url = new_url()
    database = Database(url)
    rows = [LEAST | {"id": f"q{n}", "reward": n / 10, "run_by": "worker", "text": f"who {n}?"} for n in range(8)]
    imported(Ledger(database, label="imported"), write_json(tmp_path / "log.jsonl", rows))
    database.close()
    world = make_world(database_url=url, policy={"name": "uniform", "params": {}})
    assert waiting_ids(world.router.database, limit=100) == []
    assert world.learn() == 8
    assert sorted(row["value"] for row in world.updates()) == [n / 10 for n in range(8)]
    assert world.counters().balanced
    assert world.router.verify().ok


def test_of_another_encoder(make_world, tmp_path):
    """A live ledger does not take features that its policy cannot read."""
    world = make_world()
    with pytest.raises(Conflict, match="learns from encoder") as caught:
        imported(world.ledger, write_json(tmp_path / "log.jsonl", [LEAST]))
    assert caught.value.field == "log.jsonl:1 encoder_hash"


# ------------------------------------------------------------------------------------------------------------- verbs


@pytest.fixture
def command(tmp_path, monkeypatch):
    """The command, in a folder with a configuration of its own; `run(..., code)` gives its JSON or its error."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()

    def run(*arguments, code=0):
        done = runner.invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == code, done.output
        return json.loads(done.stdout) if "--json" in arguments and code == 0 else done.output

    return run


@pytest.fixture
def configured(tmp_path):
    """A factory of configurations, each with a store of its own."""

    def make(name):
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"data_dir: {tmp_path / name}\nencoder: {{model: hashing, dimension: 8}}\n")
        return path

    return make


def test_verbs(command, configured, tmp_path):
    """`import` fills a store that was not there, `export` writes what is in it, and a second time round nothing new."""
    write_rows(tmp_path / "log.parquet", plain_rows(120))
    here = configured("here")
    facts = command("data", "import", "log.parquet", "-c", here, "--json")
    assert facts == {
        "added": 120,
        "known": 0,
        "bad": 0,
        "left_out": [],
        "label": "imported",
        "last_seq": 120,
    }
    out = command("data", "export", "out.jsonl.gz", "--label", "imported", "-c", here, "--json")
    assert out == {
        "rows": 120,
        "left_out": 0,
        "file": "out.jsonl.gz",
        "format": "jsonl",
        "label": "imported",
        "bytes": (tmp_path / "out.jsonl.gz").stat().st_size,
    }
    assert re.search(r"known +120\b", command("data", "import", "out.jsonl.gz", "-c", here))
    since = ("--label", "imported", "--since", "2023-11-14T22:13:26Z", "-c", here)
    assert re.search(r"rows +114\b", command("data", "export", "out.parquet", *since))
    before = ("--label", "imported", "--before", "2023-11-14T22:13:26Z", "-c", here)
    assert command("data", "export", "old.parquet", *before, "--json")["rows"] == 6


def test_bad_row_of_a_later_page(command, configured, tmp_path):
    """A bad row is named by file, line and field and nothing of the file is kept, unless bad rows are skipped."""
    rows = [LEAST | {"id": f"q{number}"} for number in range(700)]
    write_json(tmp_path / "log.jsonl", [*rows[:600], LEAST | {"id": "bad", "arm": "dear"}, *rows[600:]])
    here = configured("here")
    said = command("data", "import", "log.jsonl", "-c", here, code=2)
    assert "log.jsonl: 1 of 701 rows cannot be used: line 601 arm 'dear' is not among" in said
    assert "nothing was imported" in said
    assert "there is none yet" in command("status", "--label", "imported", "-c", here, code=2)
    facts = command("data", "import", "log.jsonl", "--skip-bad", "-c", here, "--json")
    assert (facts["added"], facts["known"], facts["bad"]) == (700, 0, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("data", "export", "out.jsonl"), "there is no database"),
        (("data", "export", "out.csv"), "end the name in .jsonl"),
        (("data", "import", "missing.jsonl", "--label", "No Name"), "not a valid name of a ledger"),
    ],
)
def test_wrong_words(command, configured, tmp_path, arguments, words):
    """What cannot be done is said in a line, with exit code 2, and leaves no file."""
    write_json(tmp_path / "least.jsonl", [LEAST])
    assert words in command(*arguments, "-c", configured("here"), code=2).replace("\n", " ")
    assert not (tmp_path / "out.jsonl").exists()


def test_a_service_names_a_ledger_of_imported_rows(tmp_path, monkeypatch):
    """A service on a ledger into which a log was imported says that its rows have no features, and what to do."""
    monkeypatch.chdir(tmp_path)
    config = "encoder: {model: hashing}\narms: {a: {run_by: caller}, b: {run_by: caller}}\n"
    (tmp_path / "config.yaml").write_text(config)
    write_json(tmp_path / "log.jsonl", [LEAST])
    for words in (["migrate"], ["data", "import", "log.jsonl", "--label", "main"]):
        assert CliRunner().invoke(app, words).exit_code == 0
    with pytest.raises(Conflict, match="'main' was learned without features") as caught:
        Router.open(load(None).settings, jobs=MemoryJobs())
    assert "another policy.label" in caught.value.remedy
