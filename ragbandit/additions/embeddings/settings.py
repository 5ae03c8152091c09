"""The setting `embeddings`."""

from ragbandit.router.config.section import Section
from ragbandit.shared.model_servers.openai_options import OpenAiOptions


class EmbeddingsSection(Section):
    """Settings that embeddings add to the top level."""

    #: server that replies to /v1/embeddings, with options like `generator.openai`; None if there is no such server. If
    #: token_prices are set, models without a price are refused (404)
    embeddings: OpenAiOptions | None = None
