"""Settings of rerankers."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ragbandit.router.config.section import Count, Seconds, Section


class RerankPrices(Section):
    """Prices of a reranker, in dollars. A request costs the sum of the three."""

    #: price of a search. The server's number of searches counts if it reports one (Cohere: one per 100 documents)
    search: Annotated[float, Field(ge=0)] = 0.0
    #: price of 1,000 documents
    documents: Annotated[float, Field(ge=0)] = 0.0
    #: price of a million tokens; the server's count, else an estimate that counts the question for each text
    tokens: Annotated[float, Field(ge=0)] = 0.0


class RerankSettings(Section):
    """A reranker, which scores the hits of a retriever: a cross-encoder in the worker, or a server."""

    #: cross-encoder: a folder or hub name of a model with one output. With `url`: the model's name on the server
    model: Annotated[str, Field(min_length=1)] | None = None
    #: number of hits that are searched and scored; the best of them go to the arm. Elasticsearch returns at most 10,000
    depth: Annotated[int, Field(ge=1, le=10_000)] = 50
    #: device of the cross-encoder; "auto": the GPU if there is one
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: address of a server's endpoint `/rerank`; None if the worker loads `model`
    url: Annotated[str, Field(min_length=1)] | None = None
    #: server: environment variable with the API key; None to send no key
    api_key_env: Annotated[str, Field(min_length=1)] | None = None
    #: server: form of requests. "cohere": {model, query, documents, top_n}, also of Jina, vLLM and others. "tei":
    #: {query, texts, truncate}, of Text Embeddings Inference
    form: Literal["cohere", "tei"] = "cohere"
    #: server: maximum number of documents of a request; None for 1,000, or for 32 with `form: tei`
    batch: Count | None = None
    #: server: timeout of an attempt, seconds
    timeout_s: Seconds = 10.0
    #: server: maximum number of retries after a temporary failure
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    #: dollars per search, per 1,000 documents or per million tokens; None for 0 dollars. A price that the server
    #: reports counts instead (docs/price.md#prices-that-servers-tell)
    prices: RerankPrices | None = None

    @model_validator(mode="after")
    def _one_place(self) -> "RerankSettings":
        if self.url is None and self.model is None:
            raise ValueError("needs the model of a cross-encoder, or the url of a server")
        of_server = {"api_key_env", "form", "batch", "timeout_s", "retries"} & self.model_fields_set
        if self.url is None and of_server:
            raise ValueError(f"has {min(of_server)}, which only a server reads, and no url")
        if self.url is not None and "device" in self.model_fields_set:
            raise ValueError("has a device, but the server at its url chooses the device; leave it out")
        return self
