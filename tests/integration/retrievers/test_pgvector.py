"""The retriever of PostgreSQL with pgvector, against the real server that carries the extension."""

import asyncio
import itertools

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers.sentences import SentenceEncoder
from ragbandit.workers.setup.retrievers import kind_of, make_retriever
from tests.support.arms import retriever_checks
from tests.support.arms.retriever_checks import PASSAGES, RETRIEVER_CHECKS, found
from tests.support.cases import every_case
from tests.support.tiny_models import tiny_encoder

pytest.importorskip("pgvector", reason="pip install '.[pgvector]'")

import psycopg

from ragbandit.strategies.retrievers.pgvector import PgvectorRetriever

NAMES = (f"library {number}" for number in itertools.count())


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder(tiny_encoder(), name="tiny")


@pytest.fixture(scope="module")
def dsn(postgres):
    name = postgres.new_database()
    yield f"host={postgres.folder} user=postgres dbname={name}"
    postgres.drop(name)


@pytest.fixture(scope="module")
def run(dsn):
    """A function that runs statements, in a database that has got the extension after a retriever missed it."""
    with pytest.raises(ConfigError, match="CREATE EXTENSION vector"):
        PgvectorRetriever(dsn, index="any").facts()

    def execute(*statements):
        with psycopg.connect(dsn) as connection:
            for statement in statements:
                connection.execute(statement)

    execute("CREATE EXTENSION vector")
    return execute


@pytest.fixture
def make(run, dsn):
    """A function that makes retrievers of this database."""
    return lambda index, **given: PgvectorRetriever(dsn, index=index, **given)


@pytest.mark.parametrize("exact", [True, False])
def test_contract(exact, make, encoder, monkeypatch):
    """Exact and approximate search follow the contract of retrievers, except for NUL, which PostgreSQL cannot store."""
    signs = Passage(id="signs", title="", text=PASSAGES[3].text.replace("\x00", "\ufffd"))
    monkeypatch.setattr(retriever_checks, "PASSAGES", (*PASSAGES[:3], signs))
    built = {}

    def opened(passages):
        if tuple(passages) not in built:
            built[tuple(passages)] = index = next(NAMES)
            make(index, exact=exact).build(passages, encoder=encoder)
        return make(built[tuple(passages)], exact=exact).opened(encoder)

    with every_case() as case:
        for check in RETRIEVER_CHECKS:
            with case(check.__name__):
                check(opened)


def test_a_build_is_whole_or_nothing(make, encoder):
    """An interrupted build keeps the old index; the next one replaces it; NUL and half surrogate pairs are replaced."""
    index = next(NAMES)

    def broken():
        yield from PASSAGES[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(index).build(broken(), encoder=encoder)
    with pytest.raises(ConfigError, match=r"not a table of this database.*index build --retriever pgvector"):
        make(index).facts()
    linked = Passage(id="u\ud800", title="t", text="a\x00b", url="https://example.com")
    done = []
    meta = make(index).build([*PASSAGES[:2], linked], encoder=encoder, progress=done.append)
    assert (meta["passages"], meta["model"], meta["width"], done) == (3, encoder.name, 32, [3])
    with pytest.raises(KeyboardInterrupt):
        make(index).build(broken(), encoder=encoder)
    assert make(index).facts() == meta
    stored = Passage(id="u?", title="t", text="a\ufffdb", url="https://example.com")
    assert stored in {hit.passage for hit in found(make(index).opened(encoder), "t", k=3)[0]}
    make(index, exact=False).build(PASSAGES[:1], encoder=encoder)
    assert len(found(make(index, exact=False).opened(encoder), "river", k=9)[0]) == 1


def test_a_table_of_yours_is_read_as_it_stands(run, dsn, encoder, monkeypatch):
    """Numbers as ids, the title in JSON, every distance, half precision, a view; and it is not written to."""
    vectors = [vector.tolist() for vector in encoder.encode(["The longest river", "A city"])]
    run(
        "CREATE TABLE chunks (id bigint, document text, cmetadata jsonb, embedding vector, half halfvec(32))",
        "CREATE VIEW cities AS SELECT * FROM chunks WHERE id = 2",
        "CREATE INDEX ON chunks USING hnsw (half halfvec_l2_ops)",
        *(
            f'INSERT INTO chunks VALUES ({number}, \'{title.upper()}\', \'{{"about": {{"title": "{title}"}}}}\', '
            f"'{vector}', '{vector}')"
            for number, title, vector in zip((1, 2), ("River", "City"), vectors, strict=True)
        ),
        f"INSERT INTO chunks VALUES (3, 'no vector', '{{}}', NULL, NULL), (4, 'zero', '{{}}', '{[0] * 32}', NULL)",
    )
    monkeypatch.setenv("MY_DSN", dsn)
    fields = {"text": "document", "title": "cmetadata.about.title"}

    def chosen(**given):
        shared = {"name": "pgvector", "index": "chunks", "dsn_env": "MY_DSN", "model": tiny_encoder()}
        return Settings(retriever={"fields": fields, **shared, **given})

    want = [Passage(id="1", title="River", text="RIVER"), Passage(id="2", title="City", text="CITY")]
    half = {"search_by": "hnsw", "fields": fields | {"vector": "half"}, "distance": "euclid"}
    for given, best in (({}, 1.0), ({"distance": "dot"}, 1.0), ({"distance": "euclid"}, 0.0), (half, 0.0)):
        hits = found(make_retriever(chosen(**given)), "The longest river", k=5)[0]
        assert [hit.passage for hit in hits if given == {} or hit.passage.text != "zero"] == want
        assert hits[0].score == pytest.approx(best, abs=1e-2)
    assert kind_of(chosen()).info() == {"table": "chunks", "passages": 4, "width": 32}
    retriever = make_retriever(chosen(index="public.cities"))
    assert retriever.name == "pgvector:public.cities"
    assert [hit.passage.id for hit in found(retriever, "river")[0]] == ["2"]
    run("UPDATE chunks SET document = NULL WHERE id = 2")
    with pytest.raises(ArmFailed, match=r"passage '2' of 'chunks' has no text.*retriever\.fields\.text"):
        found(make_retriever(chosen()), "river")
    with pytest.raises(ConfigError, match="exists, and is not made by ragbandit"):
        kind_of(chosen(fields={})).build(lambda: PASSAGES, lambda _: None)


def test_what_cannot_serve_is_said(run, make, dsn, encoder, monkeypatch):
    """Each fault names its setting and the remedy; the connection string is in none of them."""
    run(
        "CREATE TABLE plain (id text, text text, embedding real[])",
        "CREATE TABLE wide (id text, text text, embedding vector(3))",
        "INSERT INTO wide VALUES ('a', 'b', '[1,2,3]')",
    )
    make("other").build(PASSAGES, encoder=SentenceEncoder(tiny_encoder(1), name="tiny"))
    monkeypatch.setenv("DOWN", "postgresql://me:pa55word@127.0.0.1:9/x?connect_timeout=2")
    monkeypatch.setenv("BROKEN", "my pa55word")
    monkeypatch.setenv("PGVECTOR_DSN", dsn)
    cases = [
        ({"dsn_env": "UNSET"}, "dsn_env", "UNSET is not set"),
        ({"dsn_env": "BROKEN"}, "dsn_env", "not a connection string"),
        ({"dsn_env": "DOWN"}, "dsn_env", "PostgreSQL refuses, or does not answer: connection"),
        ({"index": "nothing"}, "index", "index build --retriever pgvector"),
        ({"index": "plain"}, "fields.vector", "of the type real"),
        ({"index": "wide", "fields": {"text": "body"}}, "fields.text", "one of its columns: id, text, embedding"),
        ({"index": "wide", "fields": {"url": "link"}}, "fields.url", "has no column 'link'"),
        ({"index": "wide", "search_by": "hnsw"}, "search_by", 'CREATE INDEX ON "wide" USING hnsw'),
        ({"index": "wide"}, "model", "with 3 numbers, and"),
        ({"index": "other"}, "model", "set retriever.model to the model of these vectors"),
    ]
    with every_case() as case:
        for given, field, message in cases:
            with case(message):
                with pytest.raises(ConfigError, match=message) as caught:
                    make_retriever(Settings(retriever={"name": "pgvector", "model": tiny_encoder(), **given}))
                assert caught.value.field == f"retriever.{field}"
                assert "pa55word" not in str(caught.value)
    with pytest.raises(ConfigError, match="has a dot"):
        make("x", fields={"title": "a.b"}).build(PASSAGES, encoder=encoder)


def test_a_table_that_stalls_or_goes_fails_the_search(run, make, dsn, encoder):
    """A locked table fails it when its time is over; connections that the server has ended are replaced."""
    make("stalling").build(PASSAGES, encoder=encoder)
    retriever = make("stalling", timeout_s=0.2).opened(encoder)
    with psycopg.connect(dsn) as other:
        other.execute("LOCK TABLE stalling")
        with pytest.raises(ArmFailed, match="canceling statement due to statement timeout"):
            asyncio.run(retriever.search("river", k=1))
    run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND datname = current_database()")  # fmt: skip
    assert asyncio.run(retriever.search("river", k=1))
    run("DROP TABLE stalling")
    with pytest.raises(ArmFailed, match="does not exist"):
        found(retriever, "river")
