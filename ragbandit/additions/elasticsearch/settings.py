"""Settings of the retriever "elasticsearch"."""

from typing import Annotated, Literal

from pydantic import Field

from ragbandit.router.config.section import Seconds, Section


class IndexFields(Section):
    """Names of the fields in your own index. A dot leads into an object: `body.text`."""

    #: the text of a passage, which is searched by words
    text: Annotated[str, Field(min_length=1)]
    #: the title, which is searched too; None for passages without titles
    title: Annotated[str, Field(min_length=1)] | None = None
    #: the passage's id; None to use the document's _id
    id: Annotated[str, Field(min_length=1)] | None = None
    #: address of the source; None for passages without addresses
    url: Annotated[str, Field(min_length=1)] | None = None
    #: field for search by meaning: vectors of `model`, or semantic_text; None if `text` is a semantic_text field
    vector: Annotated[str, Field(min_length=1)] | None = None


class ElasticsearchSection(Section):
    """Settings that the retriever "elasticsearch" adds to the section `retriever`."""

    #: "elasticsearch": address of the server
    url: str = "http://127.0.0.1:9200"
    #: "elasticsearch": environment variable with the API key; if it is not set, no key is sent
    api_key_env: Annotated[str, Field(min_length=1)] = "ELASTICSEARCH_API_KEY"
    #: "elasticsearch": search by words (BM25), by meaning (vectors of `model`), or by both, merged by rank
    search: Literal["words", "meaning", "both"] = "words"
    #: "elasticsearch": timeout of a request, seconds
    timeout_s: Seconds = 10.0
    #: "elasticsearch": fields of an existing index with its own mapping, which is only read, never created, written or
    #: deleted. None for an index that `ragbandit index build` makes
    fields: IndexFields | None = None
