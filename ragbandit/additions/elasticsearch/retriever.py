import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt
import urllib3
from elastic_transport import NodeConfig, Urllib3HttpNode
from elasticsearch import ApiError, BadRequestError, Elasticsearch, TransportError
from elasticsearch.helpers import BulkIndexError, bulk
from urllib3.util import make_headers

from ragbandit.shared.errors import ArmFailed, ConfigError, InvalidInput, RagBanditError, encodable
from ragbandit.shared.model_servers.outbound import check_address, check_header_value, shown_address
from ragbandit.shared.proxies import certificates, proxy_in_words, proxy_of
from ragbandit.shared.texts.text_forms import words
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Hit, Passage, Retriever
from ragbandit.strategies.retrievers.corpus import PassageReader, build_command, model_text

if TYPE_CHECKING:  # this import loads torch, which is not needed to search by words
    from ragbandit.strategies.retrievers.sentences import SentenceEncoder

FORMAT = "elasticsearch-1"

Search = Literal["words", "meaning"]

BATCH: Final = 256  #: passages per batch of a build
CONNECTIONS: Final = 10  #: maximum number of connections of a retriever
#: maximum number of words of a query. Each is searched in two fields, and small servers accept at most 1,024 clauses
MAX_WORDS = 500
_LONGEST_ID = 512  #: maximum bytes of an id that the server accepts
_MAX_REASON: Final = 500  #: maximum number of characters of the server's reason in an error message
_BUILD: Final = "`ragbandit index build --retriever elasticsearch --corpus CORPUS.jsonl`"
#: (part of an error's text "<status> type reason", remedy for the error); the first match is used
_REMEDIES: Final = (
    ("flood", "make room on the server's disk, or add a node; the block then goes away by itself"),
    ("read-only", "make room if the disk is full, then set to null the index's or cluster's setting blocks.read_only"),
    ("[forbidden/", "remove the block that the reason names: PUT /_all/_settings or PUT /_cluster/settings"),
    ("cluster_block", "wait until the cluster has a master and has recovered; GET /_cluster/health shows it"),
    ("compatible-with", "the server is older than the client: install a release of `elasticsearch` with its number"),
    ("mapp", f"the index has another mapping: build it again: {_BUILD}"),
    ("<413>", "shorten the passages, or raise http.max_content_length of the server or the limit of the proxy"),
    ("<429>", "the server is overloaded: try again later, or give it more memory"),
    ("<50", "the server or a proxy in front of it is not ready: try again later, and see its log"),
)
_URL_REMEDY = "write http://host:9200, or the address of a project as https://NAME.es.REGION.aws.elastic.cloud"
_FIELDS: Final = ["id", "title", "text", "url"]
#: mapping of a field that is stored, but not searched
_STORED: Final = {"type": "keyword", "index": False, "doc_values": False}

# Warnings of the client are not logged: every failed attempt would log a traceback of a hundred lines.
logging.getLogger("elastic_transport").setLevel(logging.ERROR)


class ElasticsearchRetriever(Retriever):
    """Searches passages in an Elasticsearch server, version 8 or 9. The first request is made by `opened`, or `build`.

    The name of the index is an alias of the index "NAME-a" or "NAME-b". A build fills the unused index and then moves
    the alias, so searches see either all old or all new passages.
    search: "words" adds the BM25 scores of title and text, as in IRCoT and Adaptive-RAG. "meaning" finds approximate
    nearest neighbours of the query's vector, and needs an encoder.
    timeout_s: timeout of a request, which the client sends up to three times if the server is busy or unreachable. A
    build waits 30 seconds for each request instead, and sends it up to four times.
    The server refuses a k above 10,000. Raises ConfigError for an invalid url or key.
    """

    #: passages, sha256, created_at, model, width and settings of the index
    meta: Mapping[str, Json]
    _encoder: "SentenceEncoder | None" = None
    #: fields of a document that a search returns, and the field with its vector
    _returned: Sequence[str] = _FIELDS
    _vectors = "vector"
    #: remedy if the server refuses the key
    _key_remedy = "put a key that may read and write the index into the variable that retriever.api_key_env names"

    def __init__(
        self, url: str, *, index: str, search: Search = "words", api_key: str | None = None, timeout_s: float = 10.0
    ) -> None:
        check_address(url, field="retriever.url", remedy=_URL_REMEDY)
        parts = urlsplit(url)
        if parts.port is None:  # the client has no default port, and addresses of Elastic's projects have no port
            place = f"{parts.netloc.rstrip(':')}:{443 if parts.scheme == 'https' else 80}"
            url = parts._replace(netloc=place).geturl()
        self.index, self._url = index, url
        self.name = self._label = f"elasticsearch:{search}"
        # The retriever has threads of its own: a server that hangs must not block all threads of the event loop.
        self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="ragbandit-elasticsearch")
        try:
            self._client = Elasticsearch(
                url,
                api_key=_sent_key(api_key),
                request_timeout=timeout_s,
                max_retries=2,
                connections_per_node=CONNECTIONS,
                node_class=_Node,
            )
        except ValueError as error:
            message = f"{shown_address(url)!r} is not a url: {error}"
            raise ConfigError(message, field="retriever.url", remedy=_URL_REMEDY) from error

    def opened(self, encoder: "SentenceEncoder | None" = None) -> Self:
        """Check the index, and return self. encoder: None to search by words. Raises ConfigError."""
        try:
            with self._translate_errors(ConfigError):
                self.meta = self._read()
            model, width = self.meta.get("model"), self.meta.get("width")
            if encoder is not None and (width, model) != (encoder.width, encoder.name):
                fault = f"{self.index!r} has vectors of {model!r} with {width} numbers, and {encoder.name!r} has "
                remedy = "set retriever.model to the model of these vectors"
                raise ConfigError(f"{fault}{encoder.width}", field="retriever.model", remedy=remedy)
        except ConfigError:
            self._client.close()
            raise
        self.name = f"{self._label}:{str(self.meta['sha256'])[:12]}"
        self._encoder = encoder
        return self

    def facts(self) -> dict[str, Json]:
        """Read the facts about the index, and disconnect. Returns `meta`. Raises ConfigError."""
        self.opened()
        self._client.close()
        return dict(self.meta)

    def _read(self) -> dict[str, Json]:
        mapping = next(iter(self._client.indices.get_mapping(index=self.index).body.values()))["mappings"]
        meta = mapping.get("_meta", {}).get("ragbandit", {})
        if meta.get("format") != FORMAT:
            raise self._unusable(f"{self.index!r} has format {meta.get('format')!r}, and this version reads {FORMAT!r}")
        if not meta.get("complete"):
            raise self._unusable(f"{self.index!r} is incomplete: its build was interrupted")
        return {key: value for key, value in meta.items() if key != "complete"}

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        if k < 1 or not any(character.isalnum() for character in query):
            return ()
        search = self._translate_errors(ArmFailed)(partial(self._search, query, k=k))
        return tuple(await asyncio.get_running_loop().run_in_executor(self._threads, search))

    def _search(self, query: str, *, k: int) -> list[Hit]:
        if self._encoder is not None:
            return self._search_vectors(self._encoder.encode([query])[0], k=k)
        query_words = words(query)
        if len(query_words) > MAX_WORDS:
            query = " ".join(list(dict.fromkeys(query_words))[:MAX_WORDS])
        return self._search_words(encodable(query), k=k)

    def _search_words(self, query: str, *, k: int) -> list[Hit]:
        matches = [{"match": {field: {"query": query}}} for field in ("title", "text")]
        either = {"bool": {"should": matches}}
        return self._hits(query=either, sort=["_score", {"number": "asc"}], track_scores=True, size=k)

    def _search_vectors(self, vector: npt.NDArray[np.float32], *, k: int) -> list[Hit]:
        candidates = min(10_000, max(100, 5 * k))
        nearest = {"field": self._vectors, "query_vector": vector.tolist(), "k": k, "num_candidates": candidates}
        return self._hits(knn=nearest, size=k)

    def _hits(self, **body: Any) -> list[Hit]:
        reply = self._client.search(index=self.index, source_includes=self._returned, track_total_hits=False, **body)
        try:
            rows = reply["hits"]["hits"]
            return [Hit(passage=self._passage(row), score=float(row["_score"])) for row in rows]
        except (KeyError, TypeError, ValueError) as error:
            message = f"the index {self.index!r} sent an unexpected reply: {error!r}"
            remedy = f"check that the url is an Elasticsearch server, and that the index was made by {_BUILD}"
            raise ArmFailed(message, remedy=remedy) from error

    def _passage(self, row: Mapping[str, Any]) -> Passage:
        values = row["_source"]
        return Passage(id=values["id"], title=values["title"], text=values["text"], url=values.get("url"))

    def build(
        self,
        rows: Iterable[Passage],
        *,
        encoder: "SentenceEncoder | None" = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> dict[str, Json]:
        """Build the index, or replace an index that RagBandit built, atomically. Returns its `meta`. Disconnects.

        Raises InvalidInput if there are no passages or two with the same id, ConfigError if RagBandit did not build the
        index of this name, and ArmFailed if the server fails.
        """
        try:
            with self._translate_errors(ArmFailed):
                return self._build(PassageReader(rows, progress=progress), encoder=encoder)
        finally:
            self._client.close()

    def _build(self, reader: PassageReader, *, encoder: "SentenceEncoder | None") -> dict[str, Json]:
        client = self._client.options(request_timeout=30.0, max_retries=3, retry_on_timeout=True)
        live, building = self._index_names(client)
        _create(client, building, mappings=_mappings(width=None if encoder is None else encoder.width))
        numbers = itertools.count(1)
        for batch in reader.batches(BATCH):
            documents = [_document(passage, number=next(numbers)) for passage, _ in batch]
            if encoder is not None:
                texts = [model_text(passage.text, title=passage.title) for passage, _ in batch]
                for document, vector in zip(documents, encoder.encode(texts).tolist(), strict=True):
                    document["vector"] = vector
            writes = ({"_index": building, "_id": row["id"], "_source": row} for row in documents)
            bulk(client, writes, max_retries=5, initial_backoff=1, max_chunk_bytes=10 * 1024 * 1024)
        meta: dict[str, Json] = {"model": encoder and encoder.name, "width": encoder and encoder.width}
        meta |= {**reader.facts(), "format": FORMAT, "settings": {"analyzer": "english", "k1": 1.2, "b": 0.75}}
        client.indices.put_settings(index=building, settings={"refresh_interval": None})
        client.indices.put_mapping(index=building, meta={"ragbandit": {**meta, "complete": True}})
        client.indices.refresh(index=building)
        actions: list[dict[str, Any]] = [{"add": {"index": building, "alias": self.index}}]
        if live:
            actions.append({"remove_index": {"index": live}})
        client.indices.update_aliases(actions=actions)
        return meta

    def _index_names(self, client: Elasticsearch) -> tuple[str | None, str]:
        """Returns (index behind the alias or None, index to fill). Deletes the index that a failed build has left."""
        first, second = f"{self.index}-a", f"{self.index}-b"
        live = None
        if client.indices.exists_alias(name=self.index):
            live, *others = client.indices.get_alias(name=self.index).body
            if live not in (first, second) or others:
                raise _not_ours(self.index)
        elif client.indices.exists(index=self.index):
            raise _not_ours(self.index)
        building = second if live == first else first
        if client.indices.exists(index=building):  # the leftover of an interrupted build
            if "ragbandit" not in client.indices.get_mapping(index=building)[building]["mappings"].get("_meta", {}):
                raise _not_ours(building)
            client.indices.delete(index=building)
        return live, building

    async def close(self) -> None:
        self._threads.shutdown(wait=False)
        self._client.close()

    @property
    def _index_remedy(self) -> str:
        return build_command("elasticsearch", index=self.index)

    def _unusable(self, fault: str) -> ConfigError:
        return ConfigError(fault, field="retriever.index", remedy=self._index_remedy)

    @contextmanager
    def _translate_errors(self, kind: type[RagBanditError]) -> Iterator[None]:
        try:
            yield
        except (ApiError, TransportError, BulkIndexError) as error:
            raise self._translate(error, kind=kind) from error

    def _translate(self, error: Exception, *, kind: type[RagBanditError]) -> RagBanditError:
        if isinstance(error, BulkIndexError):
            item: dict[str, Any] = next(iter(error.errors[0].values()))
            status, body = item.get("status"), item
            refused = f"the passage {str(item.get('_id'))[:80]!r}"
        elif isinstance(error, ApiError):
            status, body = error.status_code, error.body
            refused = "the request"
        else:
            reason = f"Elasticsearch does not answer{proxy_in_words(self._url)}: {error}"
            return kind(reason, field="retriever.url", remedy="start it, or correct retriever.url")
        name, reason = _error_cause(body)
        reply = f"{status}, {': '.join(filter(None, (name, reason))) or str(error)[:_MAX_REASON]}"
        if status == 401 or name == "security_exception" or (status == 403 and not name):
            fault = f"Elasticsearch refuses the key: {reply}"
            return kind(fault, field="retriever.api_key_env", remedy=self._key_remedy)
        if status == 404 and name in ("", "index_not_found_exception"):
            fault = f"the index {self.index!r} does not exist"
            return kind(fault, field="retriever.index", remedy=self._index_remedy)
        signs = f"<{status}> {name} {reason}".lower()
        remedy = next((remedy for sign, remedy in _REMEDIES if sign in signs), "see the Elasticsearch server's log")
        return kind(f"Elasticsearch refuses {refused}: {reply}", remedy=remedy)


class _Node(Urllib3HttpNode):  # type: ignore[misc] # its package has no types
    """Sends requests like all other calls: through the proxy and with the certificates of shared/proxies.py."""

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        address = self.base_url.removesuffix(self.path_prefix)
        proxy = urlsplit(proxy_of(address) or "")
        options: dict[str, Any] = {"maxsize": config.connections_per_node, "block": True}
        options["timeout"] = urllib3.Timeout(total=config.request_timeout)
        if "https" in (config.scheme, proxy.scheme):
            options["ssl_context"] = certificates()
        pools = urllib3.PoolManager(**options)
        if proxy.scheme:
            login = unquote(f"{proxy.username}:{proxy.password or ''}") if proxy.username else None
            sent = login and login.encode().decode("latin-1")  # so that the header has the bytes of UTF-8
            options |= {"proxy_headers": make_headers(proxy_basic_auth=sent)}
            pools = urllib3.ProxyManager(proxy.geturl(), proxy_ssl_context=options.get("ssl_context"), **options)

        def send(method: str, target: str, **given: Any) -> Any:
            return pools.urlopen(method, f"{address}{target}", redirect=False, **given)

        self.pool: Any = SimpleNamespace(urlopen=send, close=pools.clear)


def _sent_key(key: str | None) -> str | tuple[str, str] | None:
    """The key in the client's form; None without a key. Elastic shows a key as one text, or as "id:key"."""
    key = (key or "").strip()
    remedy = "put the key into this variable as Elastic shows it, without a line break"
    check_header_value(key, source="the key of Elasticsearch", field="retriever.api_key_env", remedy=remedy)
    name, colon, secret = key.partition(":")
    return (name, secret) if colon else name or None


def _not_ours(name: str) -> ConfigError:
    remedy = f"choose another name for the index, or delete {name!r}"
    return ConfigError(f"{name!r} exists, and is not made by ragbandit", field="retriever.index", remedy=remedy)


def _create(client: Elasticsearch, name: str, *, mappings: dict[str, Any]) -> None:
    """Make an index with one shard, so that word frequencies and scores are computed over the whole corpus.

    Elastic's serverless projects refuse a number of shards, so they get none: they divide indexes themselves.
    """
    settings: dict[str, Any] = {"refresh_interval": "-1"}
    try:
        client.indices.create(index=name, settings={"number_of_shards": 1, **settings}, mappings=mappings)
    except BadRequestError as error:
        if "serverless" not in str(error.body):
            raise
        client.indices.create(index=name, settings=settings, mappings=mappings)


def _mappings(*, width: int | None) -> dict[str, Any]:
    """The mappings of a new index. width: number of components of a vector; None without vectors."""
    text = {"type": "text", "analyzer": "english"}
    fields: dict[str, Any] = {"id": _STORED, "url": _STORED, "title": text, "text": text}
    fields["number"] = {"type": "integer", "index": False}
    if width:
        fields["vector"] = {"type": "dense_vector", "dims": width, "index": True, "similarity": "cosine"}
    return {"dynamic": "strict", "_meta": {"ragbandit": {"format": FORMAT}}, "properties": fields}


def _error_cause(body: object) -> tuple[str, str]:
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return "", str(error or "")[:_MAX_REASON]
    roots = [*(error.get("root_cause") or []), error.get("caused_by"), error]
    cause: dict[str, object] = next((root for root in roots if isinstance(root, dict) and root.get("reason")), error)
    return str(cause.get("type") or "")[:_MAX_REASON], str(cause.get("reason") or "")[:_MAX_REASON]


def _document(passage: Passage, *, number: int) -> dict[str, Any]:
    values = {name: getattr(passage, name) for name in _FIELDS}
    document: dict[str, Any] = {name: encodable(value) for name, value in values.items() if value is not None}
    if not passage.id or len(document["id"].encode()) > _LONGEST_ID:
        fault = f"passage {number}: {passage.id[:40]!r} is empty or above {_LONGEST_ID} bytes"
        raise InvalidInput(fault, field="id", remedy="give an id within this limit of Elasticsearch")
    return document | {"number": number}
