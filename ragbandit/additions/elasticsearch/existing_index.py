"""An index of another program, with its own mapping. It is only read, never created, written or deleted."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from ragbandit.additions.elasticsearch.retriever import ElasticsearchRetriever, Search
from ragbandit.additions.elasticsearch.settings import IndexFields
from ragbandit.shared.errors import ConfigError, encodable
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Hit, Passage

if TYPE_CHECKING:  # this import loads torch
    from ragbandit.strategies.retrievers.sentences import SentenceEncoder

_WORDS: Final = ("text", "match_only_text", "search_as_you_type")
_SEMANTIC: Final = "semantic_text"
_VECTOR: Final = "dense_vector"
#: key in a sub-field's facts: name of its parent field, under which documents contain the value
_PARENT: Final = "#holder"


class ExistingIndex(ElasticsearchRetriever):
    """Searches an index by words, or by meaning: with vectors, or with the server's `semantic_text`."""

    _key_remedy = (
        "put a key with the privileges read and view_index_metadata for this index into the variable that "
        "retriever.api_key_env names"
    )

    def __init__(self, url: str, *, fields: IndexFields, index: str, search: Search = "words", **given: Any) -> None:
        super().__init__(url, index=index, search=search, **given)
        self._fields, self._search_by = fields, search
        self._is_semantic = False

    def opened(self, encoder: "SentenceEncoder | Callable[[], SentenceEncoder | None] | None" = None) -> Self:
        """Check the fields, and return self. encoder: an encoder, or a function that makes one; only for vectors."""
        try:
            with self._translate_errors(ConfigError):
                self.meta = self._read()
            if self._search_by == "meaning" and not self._is_semantic:
                made = encoder() if callable(encoder) else encoder
                if made is None or made.width != self.meta["width"]:
                    fault = f"{self.index!r} has vectors of {self.meta['width']} numbers, and the model makes others"
                    remedy = "set retriever.model to the model that made these vectors"
                    raise ConfigError(fault, field="retriever.model", remedy=remedy)
                self._encoder = made
        except ConfigError:
            self._client.close()
            raise
        self.name = f"{self._label}:{self.index}"
        return self

    def facts(self) -> dict[str, Json]:
        """Returns facts about the index, and disconnects. Raises ConfigError."""
        try:
            with self._translate_errors(ConfigError):
                return self._read()
        finally:
            self._client.close()

    def _read(self) -> dict[str, Json]:
        """Facts about the index. Raises ConfigError if the index or a field is missing, or cannot be searched."""
        mappings = self._client.indices.get_mapping(index=self.index).body
        if not mappings:
            raise self._unusable(f"no index is called {self.index!r}")
        known: dict[str, Mapping[str, Any]] = {}
        for index, body in mappings.items():
            known = dict(_properties(body["mappings"]))
            self._check(known, index=index)
        fields = self._fields.model_dump(exclude_none=True, exclude={"vector"})
        self._returned = [known.get(name, {}).get(_PARENT, name) for name in fields.values() if name != "_id"]
        width = known[self._vectors].get("dims") if self._search_by == "meaning" else None
        passages = self._client.count(index=self.index)["count"]
        return {"passages": passages, "indexes": sorted(mappings), "fields": fields, "width": width}

    def _check(self, known: Mapping[str, Mapping[str, Any]], *, index: str) -> None:
        for setting, name in self._fields.model_dump(exclude_none=True).items():
            if name not in known and name != "_id":
                names = ", ".join(sorted(known)[:40])
                fault = f"{index!r} has no field {name!r}; it has {names or 'none'}"
                raise ConfigError(fault, field=f"retriever.fields.{setting}", remedy="name a field of the index")
        types = {name: str(facts.get("type")) for name, facts in known.items()}
        if self._search_by == "words":
            setting, name = "text", self._fields.text
            wanted: tuple[str, ...] = (*_WORDS, _SEMANTIC)
            remedy = "name a field of text, such as the sub-field `body.text`"
        else:
            setting, name, wanted = "vector", self._fields.vector or self._fields.text, (_VECTOR, _SEMANTIC)
            remedy = "set retriever.fields.vector to a field of vectors or of semantic_text, or search by words"
        if types.get(name) not in wanted or known[name].get("index") is False:
            fault = (
                f"the field {name!r} of {index!r} is {types.get(name)}, which cannot be searched by {self._search_by}"
            )
            raise ConfigError(fault, field=f"retriever.fields.{setting}", remedy=remedy)
        self._is_semantic = types[name] == _SEMANTIC
        self._vectors = name

    def _search(self, query: str, *, k: int) -> list[Hit]:
        if self._is_semantic:
            return self._hits(query={"semantic": {"field": self._vectors, "query": encodable(query)}}, size=k)
        return super()._search(query, k=k)

    def _search_words(self, query: str, *, k: int) -> list[Hit]:
        searched = filter(None, (self._fields.title, self._fields.text))
        matches = [{"match": {field: {"query": query}}} for field in searched]
        return self._hits(query={"bool": {"should": matches}}, size=k)

    def _passage(self, row: Mapping[str, Any]) -> Passage:
        source, fields = row["_source"], self._fields
        key = _as_text(_field_value(source, fields.id)) if fields.id and fields.id != "_id" else ""
        return Passage(
            id=key or str(row["_id"]),
            title=_as_text(_field_value(source, fields.title)),
            text=_as_text(_field_value(source, fields.text)),
            url=_as_text(_field_value(source, fields.url)) or None,
        )

    @property
    def _index_remedy(self) -> str:
        return "name an index, an alias or a data stream of this server"

    def build(self, rows: Iterable[Passage], **_given: Any) -> dict[str, Json]:  # noqa: ARG002
        """Raises ConfigError, because the index belongs to another program."""
        self._client.close()
        remedy = "leave retriever.fields out to build an index of RagBandit, under another name"
        raise ConfigError(f"{self.index!r} is read only", field="retriever.fields", remedy=remedy)


def _properties(mapping: Mapping[str, Any], *, before: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (path, facts) of each field in a mapping and its objects. A sub-field's facts name its parent."""
    for name, facts in mapping.get("properties", {}).items():
        yield f"{before}{name}", facts
        yield from _properties(facts, before=f"{before}{name}.")
        for inner, inner_facts in facts.get("fields", {}).items():
            yield f"{before}{name}.{inner}", {**inner_facts, _PARENT: f"{before}{name}"}


def _field_value(source: Any, path: str | None) -> Any:
    """The value of a field, or None. For a sub-field, the value of its parent, since documents contain only that."""
    value = source
    for part in path.split(".") if path else ():
        if isinstance(value, list) and any(isinstance(one, dict) for one in value):
            value = [one[part] for one in value if isinstance(one, dict) and part in one]
        elif isinstance(value, dict):
            if path in value:
                return value[path]
            value = value.get(part)
    return value if path else None


def _as_text(value: Any) -> str:
    """A value as text; several values are lines. Before 8.18, an object holds the text of semantic_text."""
    if isinstance(value, dict):
        value = value.get("text")
    if isinstance(value, list):
        return "\n".join(filter(None, map(_as_text, value)))
    return "" if value is None else str(value)
