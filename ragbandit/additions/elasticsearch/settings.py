"""Settings of the retriever "elasticsearch"."""

from typing import Annotated, Literal

from pydantic import Field

from ragbandit.router.config.section import Seconds, Section


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
