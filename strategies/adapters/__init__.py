"""Adapters: pipelines and retrievers of LangChain, LlamaIndex and Haystack inside our workers.

    arms:
      chain: {class: "ragbandit.strategies.adapters.arms:LangChainArm", object: "my_rag:chain"}
    retriever: {name: "my_rag:retriever"}

They use what the frameworks' objects can do, and import no framework: your module does.
"""

from ragbandit.strategies.adapters.arms import HaystackArm, LangChainArm, LlamaIndexArm
from ragbandit.strategies.adapters.retrievers import HaystackRetriever, LangChainRetriever, LlamaIndexRetriever

__all__ = [
    "HaystackArm",
    "HaystackRetriever",
    "LangChainArm",
    "LangChainRetriever",
    "LlamaIndexArm",
    "LlamaIndexRetriever",
]
