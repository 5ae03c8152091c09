"""Scores by the endpoint `/rerank` of a server, for example Cohere, Jina, vLLM or Text Embeddings Inference (TEI)."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import urlsplit, urlunsplit

import httpx

from ragbandit.shared.model_servers.call_prices import is_plausible, told_dollars, told_in_reply
from ragbandit.shared.model_servers.error_replies import server_message
from ragbandit.shared.model_servers.failures import Failure, ServerFailed
from ragbandit.shared.model_servers.json_server import JsonServer
from ragbandit.shared.model_servers.outbound import check_address, check_header_value, retry_pause
from ragbandit.shared.model_servers.token_usage import add_usage, count_of
from ragbandit.shared.reading.fields import finite_number
from ragbandit.strategies.base import run_concurrently
from ragbandit.strategies.retrievers.corpus import clean_text
from ragbandit.strategies.retrievers.rerankers.reranked import Price, Reranker, ScoredAmounts, book_price, no_price

#: form of requests. "cohere": {model, query, documents, top_n}. "tei": {query, texts, truncate}
Form = Literal["cohere", "tei"]

#: form -> default of the maximum number of texts of a request. 32 is TEI's own
BATCHES: Final[Mapping[Form, int]] = {"cohere": 1000, "tei": 32}
_SECTION: Final = "retriever.rerank"
_EXAMPLE: Final = '{"results": [{"index": 0, "relevance_score": 0.9}, ...]}'
#: maximum bytes of a reply: _MOST, plus _MOST_PER_CHARACTER per character of the texts, because servers may repeat them
_MOST: Final = 1_000_000
_MOST_PER_CHARACTER: Final = 6
#: longest random pause before the second attempt, and longest pause before any attempt, seconds
_PAUSE_S = 0.5
_LONGEST_S: Final = 30.0


class RerankServer(Reranker):
    """Asks a server for scores of texts.

    url: address of the endpoint; "/rerank" is appended unless its last part has that word. Redirects are not followed.
    key: sent as a bearer token; no error message contains it. None to send no key.
    batch: maximum number of texts of a request; None for `BATCHES`. Several requests are sent at the same time.
    timeout_s: time limit of an attempt, seconds. retries: maximum number of retries after a temporary failure.
    price: price of the scored texts, if the server reports none of its own. Tokens and searches are the server's
        counts, else estimates. A cancelled, late or broken request costs its estimate; a refused request costs nothing.
    Raises ConfigError for an invalid url or key.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        key: str | None = None,
        form: Form = "cohere",
        batch: int | None = None,
        timeout_s: float = 10.0,
        retries: int = 2,
        price: Price = no_price,
    ) -> None:
        example = "for example https://api.cohere.com/v2/rerank"
        check_address(url, field=f"{_SECTION}.url", remedy=example, query=True)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        for value in headers.values():
            remedy = "give only the key"
            check_header_value(value, source="the key", field=f"{_SECTION}.api_key_env", remedy=remedy)
        address = _with_rerank_path(url)
        self._server = JsonServer(url=address, section=_SECTION, what="reranker", example=_EXAMPLE, headers=headers)
        self.name = model or self._server.shown_url
        self._model, self._form = model, form
        self._batch = batch or BATCHES[form]
        self._timeout_s, self._retries = timeout_s, retries
        self._price = price
        self._client: httpx.AsyncClient | None = None

    async def scores(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        sent = list(map(clean_text, texts))
        parts = [sent[start : start + self._batch] for start in range(0, len(sent), self._batch)]
        scores = await run_concurrently([partial(self._ask, clean_text(query), part) for part in parts])
        return [score for part in scores for score in part]

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _ask(self, query: str, texts: list[str]) -> list[float]:
        attempts = 0
        while True:
            attempts += 1
            try:
                return await self._attempt(query, texts)
            except ServerFailed as error:
                failure = error.failure
                asked_s = failure.retry_after_s or 0.0
                pause = retry_pause(attempts, base_s=_PAUSE_S, longest_s=_LONGEST_S, asked_s=asked_s)
                if attempts > self._retries or pause is None or not failure.may_pass:
                    raise
            await asyncio.sleep(pause)

    async def _attempt(self, query: str, texts: list[str]) -> list[float]:
        if self._client is None:
            self._client = self._server.client()
        body: dict[str, Any] = {"query": query, "texts": texts, "truncate": True}
        if self._form == "cohere":
            body = {"query": query, "documents": texts, "top_n": len(texts)}
            body |= {} if self._model is None else {"model": self._model}
        most = _MOST + _MOST_PER_CHARACTER * sum(map(len, texts))
        scored: ScoredAmounts | None = ScoredAmounts.estimate(query, texts)
        price, seen = self._price, dict[str, str]()
        try:
            reply = await self._server.post(
                self._client, body, timeout=self._timeout_s, max_bytes=most, take_headers=seen.update
            )
            scored = _count_scored(reply, estimate=ScoredAmounts.estimate(query, texts))
            price = _told_price(reply, headers=seen, listed=price)
            return self._read(reply, texts=len(texts))
        except ServerFailed as error:
            if error.failure.status is not None or error.failure.kind == "unreachable":
                scored = None
            raise
        finally:
            if scored is not None:
                book_price(scored, price=price)

    def _read(self, reply: Any, *, texts: int) -> list[float]:
        """The score of each text. Raises ServerFailed with the name of an unreadable field."""
        rows = _result_rows(reply)
        if rows is None:
            said = self._server.redact(server_message(reply))[:200]
            raise self._unreadable(f"the reply has no list of results{f': {said}' if said else ''}")
        scores: dict[int, float] = {}
        for number, row in enumerate(rows):
            fields = row if isinstance(row, dict) else {}
            index = count_of(fields.get("index"))
            if index is None or index >= texts or index in scores:
                raise self._unreadable(f"the index of result {number} is {fields.get('index')!r:.80}")
            found = next((fields[name] for name in ("relevance_score", "score") if fields.get(name) is not None), None)
            score = finite_number(found)
            if score is None:
                raise self._unreadable(f"the score of result {number} is {found!r:.80}")
            scores[index] = score
        if len(scores) < texts:
            raise self._unreadable(f"the reply has {len(scores)} results for {texts} documents")
        return [scores[index] for index in range(texts)]

    def _unreadable(self, fault: str) -> ServerFailed:
        remedy = f"{_SECTION}.url has to be an endpoint that replies {_EXAMPLE}"
        return ServerFailed(f"{self._server.shown_url}: {fault}", failure=Failure(kind="unreadable"), remedy=remedy)


def _with_rerank_path(url: str) -> str:
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    return url if "rerank" in path.rpartition("/")[2] else urlunsplit(parts._replace(path=f"{path}/rerank"))


def _result_rows(reply: Any) -> list[Any] | None:
    """The list of results: the reply itself (TEI), or its `results` (Cohere, Jina, vLLM) or `data` (Voyage)."""
    if isinstance(reply, dict):
        inner = reply["output"] if isinstance(reply.get("output"), dict) else reply  # DashScope's replies have `output`
        return next((inner[name] for name in ("results", "data") if isinstance(inner.get(name), list)), None)
    return reply if isinstance(reply, list) else None


def _told_price(reply: Any, *, headers: Mapping[str, str], listed: Price) -> Price:
    """The price that the server reports; `listed` if it reports none, or an implausible one."""
    in_headers = told_dollars(headers, place="headers")
    told = told_in_reply(reply if isinstance(reply, dict) else {}, before=in_headers)
    if told is None:
        return listed
    return lambda scored: told if is_plausible(told, listed=listed(scored)) else listed(scored)


def _count_scored(reply: Any, *, estimate: ScoredAmounts) -> ScoredAmounts:
    """The server's counts of tokens and searches, else the estimate."""
    fields: Mapping[str, Any] = reply if isinstance(reply, dict) else {}
    meta = fields["meta"] if isinstance(fields.get("meta"), dict) else {}
    billed = meta["billed_units"] if isinstance(meta.get("billed_units"), dict) else {}
    counts: dict[str, int] = {}
    for usage in (meta, fields.get("usage")):
        add_usage(counts, {"usage": usage})
    tokens = next(filter(None, map(counts.get, ("total", "read", "read_plain"))), estimate.tokens)
    searches = count_of(billed.get("search_units")) or 1
    searches = searches if searches <= estimate.documents else 1  # a larger number does not count searches
    return ScoredAmounts(documents=estimate.documents, tokens=tokens, searches=searches)
