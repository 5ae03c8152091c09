import math
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

from ragbandit.shared.errors import ConfigError, RagBanditError
from ragbandit.shared.outbound import check_address
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Hit
from ragbandit.strategies.retrievers.databases import Batches, DatabaseRetriever, Distance

#: field -> default key of the payload. "a.b" is the key b in the object a
KEYS: Final = {"title": "title", "text": "text", "url": "url"}
#: distances whose scores are smaller for nearer vectors
_FARTHER: Final = frozenset({models.Distance.EUCLID, models.Distance.MANHATTAN})
#: namespace of the UUIDs that are made from passage ids
_NAMESPACE: Final = uuid.UUID("5d2b7f36-2f0c-4f5c-9f57-0d2f3d6f7a11")


class QdrantRetriever(DatabaseRetriever):
    """Searches passages by meaning in a collection of Qdrant.

    url: address of a server, a folder for a single process, or ":memory:". index: name of a collection or an alias.
    fields: field of a passage -> key of the payload; "vector" -> name of the vector. By default "id" is the point's id.
    exact: True to compare every vector instead of searching the graph. Raises ConfigError for an invalid url.
    """

    kind = "qdrant"
    errors: ClassVar[tuple[type[Exception], ...]] = (ApiException, QdrantException, ValueError, RuntimeError)

    def __init__(
        self,
        url: str,
        *,
        index: str,
        fields: Mapping[str, str] | None = None,
        exact: bool = True,
        distance: Distance = "cosine",
        api_key: str | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        super().__init__(index=index, fields=fields)
        self.exact, self.distance = exact, distance
        self._keys = KEYS | self.fields
        self._using = self._keys.pop("vector", "")
        self._local = "://" not in url
        with self._translated_errors(ConfigError):
            if self._local:
                self._client = QdrantClient(path=url, force_disable_check_same_thread=True)
            else:
                check_address(url, field="retriever.url", remedy="write http://host:6333, or the path of a folder")
                # check_compatibility=True would request the server's version, and warn.
                self._client = QdrantClient(
                    url=url, api_key=api_key, timeout=math.ceil(timeout_s), check_compatibility=False
                )

    def _read(self) -> None:
        if self.index not in self._aliases() and not self._client.collection_exists(self.index):
            raise self._unusable(f"{self.index!r} is not a collection of this server")
        config = self._client.get_collection(self.index).config
        self.meta = dict((config.metadata or {}).get("ragbandit", {}))
        if self.meta:
            self._keys.setdefault("id", "id")
        vectors = config.params.vectors
        by_name = vectors if isinstance(vectors, dict) else {"": vectors}
        chosen = by_name.get(self._using)
        if chosen is None:
            remedy = f"set retriever.fields.vector to one of: {', '.join(by_name)}"
            raise self._unusable(f"{self.index!r} has no vector {self._using!r}", field="fields.vector", remedy=remedy)
        self.width, self._sign = chosen.size, -1 if chosen.distance in _FARTHER else 1
        text = self._keys["text"]
        for point in self._client.scroll(self.index, limit=1)[0]:
            if not isinstance(_value(point.payload, text), str):
                remedy = f"set retriever.fields.text to a key of the payload: {', '.join(point.payload or {})}"
                raise self._unusable(f"{self.index!r} has no text under {text!r}", field="fields.text", remedy=remedy)

    def _nearest(self, vector: npt.NDArray[np.float32], *, k: int) -> list[Hit]:
        params = models.SearchParams(exact=self.exact, hnsw_ef=max(100, 2 * k))
        # In a folder every vector is compared, and the client would warn about search parameters.
        chosen: dict[str, Any] = {"search_params": None if self._local else params}
        reply = self._client.query_points(
            self.index, query=vector.tolist(), using=self._using or None, limit=k, **chosen
        )
        hits = []
        for point in reply.points:
            values = {field: _value(point.payload, key) for field, key in self._keys.items()}
            hits.append(Hit(passage=self._passage({"id": point.id, **values}), score=self._sign * point.score))
        return hits

    def _count(self) -> int:
        return int(self._client.count(self.index, exact=True).count)

    def _fill(self, batches: Batches, *, meta: dict[str, Json]) -> None:
        client, keys = self._client, {"id": "id"} | self._keys
        first, second = f"{self.index}-a", f"{self.index}-b"
        live = self._aliases().get(self.index)
        if live not in (None, first, second) or (live is None and client.collection_exists(self.index)):
            raise self._not_ours(self.index)
        building = second if live == first else first
        if client.collection_exists(building):  # an interrupted build left it
            if "ragbandit" not in (client.get_collection(building).config.metadata or {}):
                raise self._not_ours(building)
            client.delete_collection(building)
        params = models.VectorParams(size=int(str(meta["width"])), distance=models.Distance(self.distance.title()))
        config = {self._using: params} if self._using else params
        client.create_collection(building, vectors_config=config, metadata={"ragbandit": {}})
        for passages, vectors in batches:
            assert vectors is not None  # this retriever is always built with an encoder
            points = []
            for passage, vector in zip(passages, vectors.tolist(), strict=True):
                payload = {key: getattr(passage, field) for field, key in keys.items()}
                whole = {self._using: vector} if self._using else vector
                key = str(uuid.uuid5(_NAMESPACE, passage.id))  # Qdrant accepts only numbers and UUIDs as ids
                points.append(models.PointStruct(id=key, payload=payload, vector=whole))
            client.upsert(building, points=points, wait=True)
        client.update_collection(building, metadata={"ragbandit": meta})
        if client.get_collection(building).config.metadata is None:
            raise ConfigError("the server stores no metadata", field="retriever.url", remedy="use Qdrant 1.16 or newer")
        alias = models.CreateAlias(collection_name=building, alias_name=self.index)
        moves: list[Any] = [models.CreateAliasOperation(create_alias=alias)]
        if live is not None:
            moves.insert(0, models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=self.index)))
        client.update_collection_aliases(moves)
        if live is not None:
            client.delete_collection(live)

    def _aliases(self) -> dict[str, str]:
        return {alias.alias_name: alias.collection_name for alias in self._client.get_aliases().aliases}

    def _disconnect(self) -> None:
        self._client.close()

    def _translated(self, error: Exception, *, kind: type[RagBanditError]) -> RagBanditError:
        if isinstance(error, ResponseHandlingException):
            remedy = "start it, or correct retriever.url"
            return kind(f"Qdrant does not answer: {error.source}", field="retriever.url", remedy=remedy)
        if isinstance(error, UnexpectedResponse) and error.status_code in (401, 403):
            remedy = "put a key that may read and write the collection into the variable of retriever.api_key_env"
            return kind(f"Qdrant refuses the key: {error.reason_phrase}", field="retriever.api_key_env", remedy=remedy)
        return kind(f"Qdrant refuses the request: {error}", field="retriever.url", remedy="see the Qdrant server's log")


def _value(payload: Mapping[str, Any] | None, key: str) -> Any:
    value: Any = payload
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
