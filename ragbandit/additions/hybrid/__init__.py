"""The retriever "hybrid": the hits of two others, merged by rank."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(retrievers={"hybrid": "kind:hybrid_kind"}, sections={"retriever": "settings:HybridSection"})
