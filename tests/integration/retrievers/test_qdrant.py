"""The retriever of Qdrant, on the client's in-process form in a folder: no package brings a server of it.

What is sent to a server is the same; its errors are tried with an address where nobody listens, and one that refuses.
"""

import itertools
import shutil
from dataclasses import replace

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers.sentences import SentenceEncoder
from ragbandit.workers.setup.retrievers import kind_of, make_retriever
from tests.support.arms import retriever_checks
from tests.support.arms.retriever_checks import PASSAGES, RETRIEVER_CHECKS, found
from tests.support.cases import every_case
from tests.support.servers.scripted_http import ScriptedHttp, json_reply
from tests.support.tiny_models import tiny_encoder

pytest.importorskip("qdrant_client", reason="pip install '.[qdrant]'")

from qdrant_client import QdrantClient, models

from ragbandit.strategies.retrievers.qdrant import QdrantRetriever


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder(tiny_encoder(), name="tiny")


@pytest.fixture
def make(tmp_path):
    """A function that makes retrievers of one folder."""
    return lambda index="library", **given: QdrantRetriever(str(tmp_path / "qdrant"), index=index, **given)


class Rounded(QdrantRetriever):
    """In process numpy adds up in an order that depends on where in memory the vectors lie."""

    def _nearest(self, vector, *, k):
        return [replace(hit, score=round(hit.score, 3)) for hit in super()._nearest(vector, k=k)]


def test_contract(tmp_path, encoder, monkeypatch):
    """The retriever follows the contract of retrievers, except for NUL, which vector databases store as U+FFFD."""
    signs = Passage(id="signs", title="", text=PASSAGES[3].text.replace("\x00", "\ufffd"))
    monkeypatch.setattr(retriever_checks, "PASSAGES", (*PASSAGES[:3], signs))
    built, folders = {}, (tmp_path / str(number) for number in itertools.count())

    def opened(passages):
        # A folder takes one retriever at a time, and the checks have two of one corpus: each has a copy.
        if tuple(passages) not in built:
            built[tuple(passages)] = folder = next(folders)
            QdrantRetriever(str(folder), index="library").build(passages, encoder=encoder)
        copy = shutil.copytree(built[tuple(passages)], next(folders))
        return Rounded(str(copy), index="library").opened(encoder)

    with every_case() as case:
        for check in RETRIEVER_CHECKS:
            with case(check.__name__):
                check(opened)


def test_a_build_replaces_what_it_made_when_it_is_whole(make, tmp_path, encoder):
    """One that was cut off changes nothing; the name of something else is refused; urls and ids come back."""

    def broken():
        yield from PASSAGES[:3]
        raise KeyboardInterrupt

    with pytest.raises(ConfigError, match="is not a collection of this server"):
        make().opened(encoder)
    linked = Passage(id="u\ud800", title="t", text="a\x00b", url="https://example.com")
    meta = make().build([*PASSAGES[:2], linked], encoder=encoder)
    assert (meta["passages"], meta["model"], meta["width"]) == (3, encoder.name, 32)
    with pytest.raises(KeyboardInterrupt):
        make().build(broken(), encoder=encoder)
    assert make().facts() == meta
    stored = Passage(id="u?", title="t", text="a\ufffdb", url="https://example.com")
    assert stored in {hit.passage for hit in found(make().opened(encoder), "t", k=3)[0]}
    for _ in range(2):
        make(distance="euclid").build(PASSAGES[:2], encoder=encoder)
    hits = found(make().opened(encoder), "Vistula\nThe longest river in Poland.")[0]
    assert [hit.passage.id for hit in hits] == ["vistula", "warsaw"]
    assert hits[0].score == pytest.approx(0.0, abs=1e-5)
    with pytest.raises(ConfigError, match="exists, and is not made by ragbandit"):
        make("library-a").build(PASSAGES, encoder=encoder)
    yours = QdrantClient(path=str(tmp_path / "qdrant"))
    yours.create_collection("mine-a", vectors_config=models.VectorParams(size=2, distance=models.Distance.DOT))
    yours.close()
    with pytest.raises(ConfigError, match="'mine-a' exists, and is not made by ragbandit"):
        make("mine").build(PASSAGES, encoder=encoder)


def test_a_collection_of_yours_is_read_as_it_stands(tmp_path, encoder):
    """LangChain's layout: the point's own id, the text in `page_content`, the rest in `metadata`; a vector by name."""
    folder = str(tmp_path / "qdrant")
    client = QdrantClient(path=folder)
    params = models.VectorParams(size=32, distance=models.Distance.COSINE)
    client.create_collection("chunks", vectors_config={"dense": params})
    vectors = encoder.encode(["The longest river", "A city"]).tolist()
    payloads = [
        {"page_content": title.upper(), "metadata": {"title": title, "source": f"{title}.md"}}
        for title in ("River", "City")
    ]
    points = [models.PointStruct(id=n, vector={"dense": vectors[n]}, payload=payloads[n]) for n in (0, 1)]
    client.upsert("chunks", points)
    client.close()
    fields = {"text": "page_content", "title": "metadata.title", "vector": "dense"}

    def chosen(**given):
        shared = {"name": "qdrant", "index": "chunks", "url": folder, "model": tiny_encoder(), "fields": fields}
        return Settings(retriever={**shared, **given})

    want = [Passage(id="0", title="River", text="RIVER"), Passage(id="1", title="City", text="CITY")]
    retriever = make_retriever(chosen())
    assert retriever.name == "qdrant:chunks"
    assert [hit.passage for hit in found(retriever, "The longest river", k=5)[0]] == want
    own = chosen(fields=fields | {"id": "metadata.source"})
    assert {hit.passage.id for hit in found(make_retriever(own), "A city", k=5)[0]} == {"River.md", "City.md"}
    assert kind_of(chosen()).info() == {"url": folder, "collection": "chunks", "passages": 2, "width": 32}
    cases = [
        ({"index": "none"}, "index", "index build --retriever qdrant"),
        ({"fields": {"text": "page_content"}}, "fields.vector", "to one of: dense"),
        ({"fields": {"vector": "dense"}}, "fields.text", "page_content, metadata"),
        ({"model": tiny_encoder(), "url": "http://127.0.0.1:9"}, "url", "Qdrant does not answer"),
        ({"url": "http://me:pa55word@h:99999"}, "url", "is not a url"),
    ]
    with every_case() as case, ScriptedHttp(json_reply({"status": {"error": "no"}}, status=401)) as refusing:
        for given, field, message in [*cases, ({"url": refusing.url}, "api_key_env", "Qdrant refuses the key")]:
            with case(message):
                with pytest.raises(ConfigError, match=message) as caught:
                    make_retriever(chosen(**given))
                assert caught.value.field == f"retriever.{field}"
                assert "pa55word" not in str(caught.value)
