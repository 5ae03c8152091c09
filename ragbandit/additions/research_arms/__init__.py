"""Arms of papers: Adaptive-Note and its baselines, ReAct, Self-RAG, RQ-RAG, FLARE, DRAGIN and SeaKR."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(
    arms={
        "adaptive_note": "notes:AdaptiveNote",
        "chain_of_note": "notes:ChainOfNote",
        "dragin": "dragin:Dragin",
        "flare": "flare:Flare",
        "react": "react:React",
        "rq_rag": "rq_rag:RqRag",
        "seakr": "seakr:Seakr",
        "self_rag": "self_rag:SelfRag",
        "self_rag_trained": "self_rag_trained:SelfRagTrained",
        "self_refine": "notes:SelfRefine",
        "self_rerank": "notes:SelfRerank",
    }
)
