"""Settings of the retriever "elasticsearch"."""

from typing import Annotated, Literal

from pydantic import Field

from ragbandit.router.config.section import Seconds, Section


class IndexFields(Section):
    """Names of the fields in your own index. A dot leads into an object: `body.text`."""

    #: the text of a passage, which is searched by words
    text: Annotated[str, Field(min_length=1)]
    #: the title, which is searched too; None: passages have no titles
    title: Annotated[str, Field(min_length=1)] | None = None
    #: the passage's id; None: the document's _id
    id: Annotated[str, Field(min_length=1)] | None = None
    #: address of the source; None: passages have no addresses
    url: Annotated[str, Field(min_length=1)] | None = None
    #: with search: meaning or both: vectors of `model`, or a semantic_text field; None: `text` is semantic_text
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
    #: deleted. None: `ragbandit index build` makes the index
    fields: IndexFields | None = None
