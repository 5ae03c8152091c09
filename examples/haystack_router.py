"""Haystack: a component sends the query to the branch that the service chooses (pip install '.[haystack]').

    ragbandit up --config examples/bring_your_own_pipelines.yaml
    python -m ragbandit.examples.haystack_router

The branches end with their prompts: put a generator behind each.
"""

from haystack import Pipeline
from haystack.components.builders import PromptBuilder

from ragbandit import Client
from ragbandit.integrations.haystack import BanditReport, BanditRouter


def main() -> None:
    pipeline = Pipeline()
    pipeline.add_component("router", BanditRouter(["fast", "deep"]))
    pipeline.add_component("fast", PromptBuilder("In a word: {{ query }}", required_variables=["query"]))
    pipeline.add_component("deep", PromptBuilder("Step by step: {{ query }}", required_variables=["query"]))
    pipeline.add_component("report", BanditReport())
    for arm in ("fast", "deep"):
        pipeline.connect(f"router.{arm}", f"{arm}.query")
        pipeline.connect(f"{arm}.prompt", "report.replies")
    pipeline.connect("router.decision", "report.decision")
    found = pipeline.run({"router": {"query": "Who wrote Dracula?"}})["report"]
    print(found["answer"])
    with Client() as client:
        client.feedback(found["decision_id"], rating=True)
    for name in ("router", "report"):
        pipeline.get_component(name).close()


if __name__ == "__main__":
    main()
