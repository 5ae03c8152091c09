"""Passages in an Elasticsearch server, version 8 or 9, found by words or by meaning.

Words: the english analyzer on title and text, and one match on each whose scores add, as in IRCoT and Adaptive-RAG.
Meaning: the approximate nearest neighbours of the query's vector. For both, join two of these in a HybridRetriever:
the server's own fusion is not in every licence.

The index of a name is an alias of "NAME-a" or "NAME-b": a build fills the one that is not in use and then moves the
alias, so that searches see the old passages or the new ones, whole. What the index is stands in its mapping's _meta.
"""

import asyncio
import hashlib
import itertools
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from elastic_transport import HttpxAsyncHttpNode
from elasticsearch import ApiError, AsyncElasticsearch, Elasticsearch, NotFoundError, TransportError
from elasticsearch import ConnectionError as Unreachable
from elasticsearch.helpers import BulkIndexError, bulk

from ragbandit.shared.errors import ArmFailed, ConfigError, InvalidInput, RagBanditError
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Hit, Passage, Retriever
from ragbandit.strategies.outbound import check_address, shown_address
from ragbandit.strategies.retrievers.corpus import build_command, model_text, numbered

if TYPE_CHECKING:  # searching by words needs no torch
    from ragbandit.strategies.retrievers.sentences import SentenceEncoder

#: version of the mapping; another one cannot be read
FORMAT = "elasticsearch-1"

#: how passages are found; see the module
Search = Literal["words", "meaning"]

#: distinct words of a query that are searched for. The server refuses more than 1,024 clauses in one query, its floor
#: on small machines, and every word is two, one per field
MAX_WORDS = 500
#: passages sent, and encoded, at a time
_BATCH = 500
_BULK_BYTES = 10 * 1024 * 1024
#: bytes, a limit of the server
_LONGEST_ID = 512
_BUSY = frozenset({429, 502, 503, 504})
_URL_REMEDY = "write http://host:9200"
_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\\W\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
_Result = TypeVar("_Result")

# It warns of every failed try with a traceback of a hundred lines; our error says the same in one.
logging.getLogger("elastic_transport").setLevel(logging.ERROR)


def connect(url: str, *, api_key: str | None = None, timeout_s: float = 30.0) -> Elasticsearch:
    """A client for building, which waits for its replies. Raises ConfigError for a url that is none."""
    check_address(url, field="retriever.url", remedy=_URL_REMEDY)
    try:
        return Elasticsearch(url, api_key=api_key, request_timeout=timeout_s, max_retries=3, retry_on_timeout=True)
    except ValueError as error:
        message = f"{shown_address(url)!r} is no url: {error}"
        raise ConfigError(message, field="retriever.url", remedy=_URL_REMEDY) from error


def read_meta(client: Elasticsearch, *, index: str) -> dict[str, Json]:
    """The facts in the mapping's _meta: format, passages, sha256 of the passages, created_at, model, width, settings.

    Raises ConfigError if there is no such index, if it is not ours or of another version, or if nobody answers.
    """
    try:
        mappings = client.indices.get_mapping(index=index)
    except NotFoundError as error:
        raise _unusable(index, fault="does not exist") from error
    except (ApiError, TransportError) as error:
        raise _in_our_words(error, kind=ConfigError) from error
    meta = next(facts["mappings"].get("_meta", {}).get("ragbandit", {}) for facts in mappings.body.values())
    if meta.get("format") != FORMAT:
        raise _unusable(index, fault=f"has format {meta.get('format')!r}, and this version reads {FORMAT!r}")
    if not meta.get("complete"):
        raise _unusable(index, fault="was not built to its end")
    return cast(dict[str, Json], {key: value for key, value in meta.items() if key != "complete"})


def build_index(
    rows: Iterable[Passage],
    *,
    client: Elasticsearch,
    index: str,
    encoder: "SentenceEncoder | None" = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Json]:
    """Load passages and make them the index of that name; returns what its _meta says.

    With an encoder, every passage gets its vector, and the index can be searched by meaning too. A build that was
    cut off goes on where it ended: passages that are there unchanged are passed over. `progress` is called with the
    number of passages done. Half a surrogate pair in a text becomes "?", for the server takes UTF-8 only.
    Raises InvalidInput for an id seen twice, an id above 512 bytes, or no passage; ConfigError if the name belongs
    to something else; ArmFailed if the server fails.
    """
    try:
        live, building = _places(client, index=index)
        meta: dict[str, Json] = {
            "format": FORMAT,
            "settings": {"analyzer": "english", "k1": 1.2, "b": 0.75},
            "model": encoder.name if encoder else None,
            "width": encoder.width if encoder else None,
        }
        resumed = _prepare(client, index=building, meta=meta)
        count, sha256 = _load(
            rows, client=client, index=building, encoder=encoder, resumed=resumed, progress=progress or (lambda _: None)
        )
        meta |= {"passages": count, "sha256": sha256, "created_at": time.time()}
        _publish(client, name=index, building=building, live=live, meta=meta)
    except BulkIndexError as error:
        raise ArmFailed(
            f"Elasticsearch refuses a passage: {error.errors[:1]}", remedy="see the Elasticsearch server's log"
        ) from error
    except (ApiError, TransportError) as error:
        raise _in_our_words(error, kind=ArmFailed) from error
    return meta


def _places(client: Elasticsearch, *, index: str) -> tuple[str | None, str]:
    """The index that the alias names, or None, and the one to fill."""
    first, second = f"{index}-a", f"{index}-b"
    if not client.indices.exists(index=index):
        # An alias comes with the end of a build: the one that a build was cut off in is to be filled.
        return None, first
    if client.indices.exists_alias(name=index):
        names = list(client.indices.get_alias(name=index).body)
        if names in ([first], [second]):
            return names[0], second if names == [first] else first
    raise ConfigError(
        f"{index!r} exists and is no index of ours", field="retriever.index", remedy="choose another name for the index"
    )


#: kept, and not searched
_STORED: Final = {"type": "keyword", "index": False, "doc_values": False}


def _prepare(client: Elasticsearch, *, index: str, meta: dict[str, Json]) -> bool:
    """Make the index, or keep the one that a build with the same settings left half full: then True."""
    if client.indices.exists(index=index):
        existing = client.indices.get_mapping(index=index)[index]["mappings"].get("_meta", {}).get("ragbandit")
        if existing is None:
            fault = f"{index!r} exists and is no index of ours"
            raise ConfigError(fault, field="retriever.index", remedy="choose another name for the index")
        if existing == meta:
            client.indices.put_mapping(index=index, properties={"url": _STORED})  # it may be of before there were any
            return True
        client.indices.delete(index=index)
    text = {"type": "text", "analyzer": "english"}
    fields: dict[str, Any] = {
        "id": _STORED,
        "url": _STORED,
        "title": text,
        "text": text,
        "number": {"type": "integer", "index": False},
        "digest": _STORED,
    }
    if meta["width"]:
        fields["vector"] = {"type": "dense_vector", "dims": meta["width"], "index": True, "similarity": "cosine"}
    client.indices.create(
        index=index,
        # One shard: the frequencies of words, and with them the scores, are those of the whole corpus.
        settings={"number_of_shards": 1, "refresh_interval": "-1"},
        mappings={"dynamic": "strict", "_meta": {"ragbandit": meta}, "properties": fields},
    )
    return False


def _load(
    rows: Iterable[Passage],
    *,
    client: Elasticsearch,
    index: str,
    encoder: "SentenceEncoder | None",
    resumed: bool,
    progress: Callable[[int], None],
) -> tuple[int, str]:
    """(passages read, sha256 over their lines)."""
    seen, digest = set[str](), hashlib.sha256()
    source = numbered(rows, seen=seen)
    while batch := list(itertools.islice(source, _BATCH)):
        documents = []
        for number, passage, line in batch:
            if not passage.id or len(passage.id.encode("utf-8", "replace")) > _LONGEST_ID:
                fault = f"passage {number}: {passage.id[:40]!r} is empty or above {_LONGEST_ID} bytes"
                raise InvalidInput(fault, field="id", remedy="give a shorter one: it is Elasticsearch's limit")
            digest.update(line)
            documents.append(_document(passage, number=number, line=line))
        missing = _missing(documents, client=client, index=index) if resumed else documents
        if encoder is not None and missing:
            vectors = encoder.encode([model_text(row["text"], title=row["title"]) for row in missing])
            missing = [{**row, "vector": vector.tolist()} for row, vector in zip(missing, vectors, strict=True)]
        actions = ({"_index": index, "_id": row["id"], "_source": row} for row in missing)
        bulk(client, actions, max_retries=5, initial_backoff=1, max_chunk_bytes=_BULK_BYTES)
        progress(len(seen))
    client.indices.refresh(index=index)
    if (count := client.count(index=index)["count"]) != len(seen):
        client.indices.delete(index=index)
        fault = f"the half-built index held {count - len(seen)} passages of another corpus and was removed"
        raise ConfigError(fault, field="corpus", remedy="build again: it begins anew")
    return len(seen), digest.hexdigest()


def _document(passage: Passage, *, number: int, line: bytes) -> dict[str, Any]:
    named = {key: getattr(passage, key) for key in ("id", "title", "text", "url")}
    whole = {key: value.encode("utf-8", "replace").decode() for key, value in named.items() if value is not None}
    return {**whole, "number": number, "digest": hashlib.sha256(line).hexdigest()[:32]}


def _missing(documents: list[dict[str, Any]], *, client: Elasticsearch, index: str) -> list[dict[str, Any]]:
    """Those that are not there, or were another passage or in another place."""
    reply = client.mget(index=index, ids=[row["id"] for row in documents], source_includes=["digest", "number"])
    there = {(d["_id"], d["_source"]["digest"], d["_source"]["number"]) for d in reply["docs"] if d["found"]}
    return [row for row in documents if (row["id"], row["digest"], row["number"]) not in there]


def _publish(client: Elasticsearch, *, name: str, building: str, live: str | None, meta: dict[str, Json]) -> None:
    """Mark it complete, move the alias in one step, and drop what it named before."""
    client.indices.put_settings(index=building, settings={"refresh_interval": None})
    client.indices.put_mapping(index=building, meta={"ragbandit": {**meta, "complete": True}})
    actions: list[dict[str, Any]] = [{"add": {"index": building, "alias": name}}]
    if live is not None:
        actions.append({"remove_index": {"index": live}})
    client.indices.update_aliases(actions=actions)


class ElasticsearchRetriever(Retriever):
    """Searches an index that `build_elasticsearch` made.

    search: "words" (BM25) or "meaning" (vectors), which needs `encoder`, the one that the index was built with.
    timeout_s: of one request; attempts: how often one is sent while the server is busy or unreachable, with a pause
    that doubles from 0.1 s. connections: how many are kept open; later requests wait for one.
    `meta` is `read_meta`. `name` is "elasticsearch:", the search, and the first 12 digits of the passages' sha256.
    Raises ConfigError if the server does not answer or the index cannot serve this search.
    """

    def __init__(
        self,
        url: str,
        *,
        index: str,
        search: Search = "words",
        encoder: "SentenceEncoder | None" = None,
        api_key: str | None = None,
        timeout_s: float = 10.0,
        attempts: int = 3,
        connections: int = 10,
    ) -> None:
        with connect(url, api_key=api_key, timeout_s=timeout_s) as client:
            self.meta = read_meta(client, index=index)
        if search == "meaning":
            _check_encoder(encoder, model=self.meta.get("model"), index=index)
        self.name = f"elasticsearch:{search}:{str(self.meta['sha256'])[:12]}"
        self._index, self._attempts = index, attempts
        self._encoder = encoder if search == "meaning" else None
        self._client = AsyncElasticsearch(
            url,
            api_key=api_key,
            request_timeout=timeout_s,
            max_retries=0,  # its own retries come at once, when a busy server is as busy as before
            connections_per_node=connections,
            node_class=HttpxAsyncHttpNode,
        )

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """The at most k best passages; a query without a word finds nothing.

        Equal scores of words come in the order indexed. Of a query beyond 500 distinct words the first 500 are
        searched for. k above 10,000, the server's window, is refused.
        Raises ArmFailed if the server does not answer, or refuses.
        """
        words = _words(query)
        if k < 1 or not words:
            return ()
        return await (self._by_words(words, k=k) if self._encoder is None else self._by_meaning(query, k=k))

    async def passages(self, ids: Sequence[str]) -> tuple[Passage, ...]:
        """Those of these passages that are there, in the order asked for, each once. Raises ArmFailed as `search`."""
        wanted = [key.encode("utf-8", "replace").decode() for key in dict.fromkeys(ids)]
        if not wanted:
            return ()
        reply = await self._patiently(
            lambda: self._client.mget(index=self._index, ids=wanted, source_includes=["id", "title", "text", "url"])
        )
        return tuple(_passage(row["_source"]) for row in reply["docs"] if row.get("found"))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _by_words(self, words: str, *, k: int) -> tuple[Hit, ...]:
        matches = [{"match": {field: {"query": words}}} for field in ("title", "text")]
        return await self._ask(
            query={"bool": {"should": matches}}, sort=["_score", {"number": "asc"}], track_scores=True, size=k
        )

    async def _by_meaning(self, query: str, *, k: int) -> tuple[Hit, ...]:
        assert self._encoder is not None  # search() comes here only with one
        vector = (await asyncio.to_thread(self._encoder.encode, [query]))[0]  # (width,)
        wide = min(10_000, max(100, 5 * k))
        return await self._ask(
            knn={"field": "vector", "query_vector": vector.tolist(), "k": k, "num_candidates": wide}, size=k
        )

    async def _ask(self, **body: Any) -> tuple[Hit, ...]:
        reply = await self._patiently(
            lambda: self._client.search(
                index=self._index, source_includes=["id", "title", "text", "url"], track_total_hits=False, **body
            )
        )
        try:
            return tuple(_hit(row) for row in reply["hits"]["hits"])
        except (KeyError, TypeError, ValueError) as error:
            raise ArmFailed(
                f"the index {self._index!r} replied what is no result: {error!r}",
                remedy="is it Elasticsearch that answers there, and did `ragbandit index build` make the index?",
            ) from error

    async def _patiently(self, call: Callable[[], Awaitable[_Result]]) -> _Result:
        pause = 0.1
        for left in reversed(range(self._attempts)):
            try:
                return await call()
            except (ApiError, TransportError) as error:
                passing = isinstance(error, Unreachable) or getattr(error, "status_code", None) in _BUSY
                if not left or not passing:
                    raise _in_our_words(error, kind=ArmFailed, index=self._index) from error
                await asyncio.sleep(pause)
                pause *= 2
        raise AssertionError("attempts is at least 1")


def _words(query: str) -> str:
    """The query as it is, or its first MAX_WORDS distinct words; "" where it has none."""
    words = _WORD.findall(query)
    if not words:
        return ""
    if len(words) > MAX_WORDS:
        return " ".join(list(dict.fromkeys(words))[:MAX_WORDS])
    return query.encode("utf-8", "replace").decode()  # half a surrogate pair is no JSON


def _hit(row: Mapping[str, Any]) -> Hit:
    return Hit(passage=_passage(row["_source"]), score=float(row["_score"]))


def _passage(source: Mapping[str, str]) -> Passage:
    return Passage(id=source["id"], title=source["title"], text=source["text"], url=source.get("url"))


def _check_encoder(encoder: "SentenceEncoder | None", *, model: object, index: str) -> None:
    if encoder is None:
        raise ConfigError(
            "searching by meaning needs an encoder",
            field="retriever.model",
            remedy="set it to the model that the index was built with",
        )
    if model != encoder.name:
        raise _unusable(index, fault=f"holds vectors of {model!r}, not of {encoder.name!r}")


def _in_our_words(error: Exception, *, kind: type[RagBanditError], index: str | None = None) -> RagBanditError:
    """The client's error in our words: server down, index gone, key refused, or the server's own reason."""
    status = getattr(error, "status_code", None)
    if not isinstance(error, ApiError):
        reason = f"Elasticsearch does not answer: {error}"
        return kind(reason, field="retriever.url", remedy="start it, or correct retriever.url")
    if status in (401, 403):
        remedy = "put a key that may read and write the index into the variable that retriever.api_key_env names"
        return kind(f"Elasticsearch refuses us: {error}", field="retriever.api_key_env", remedy=remedy)
    if status == 404 and index:
        return kind(f"the index {index!r} is gone", remedy=build_command("elasticsearch", index=index))
    return kind(f"Elasticsearch refuses the request: {error}", remedy="see the Elasticsearch server's log")


def _unusable(index: str, *, fault: str) -> ConfigError:
    return ConfigError(
        f"the index {index!r} {fault}", field="retriever.index", remedy=build_command("elasticsearch", index=index)
    )
