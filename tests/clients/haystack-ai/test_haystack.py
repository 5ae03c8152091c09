"""The Haystack components in a real pipeline."""

import uuid

import pytest
from haystack import Pipeline, component
from haystack.components.builders import PromptBuilder

from ragbandit import Client
from ragbandit.integrations.haystack import BanditReport, BanditRouter

QUESTION = "Who wrote Dracula?"


@component
class Echo:
    """A generator that answers with its prompt."""

    @component.output_types(replies=list[str])
    def run(self, prompt: str):
        return {"replies": [prompt]}


def pipeline_of(*arms):
    """Prompt and generator for each arm, behind a router, before a report."""
    made = Pipeline()
    made.add_component("router", BanditRouter(arms))
    made.add_component("report", BanditReport())
    for arm in arms:
        made.add_component(f"{arm}_prompt", PromptBuilder(f"{arm}: {{{{ query }}}}", required_variables=["query"]))
        made.add_component(f"{arm}_llm", Echo())
        made.connect(f"router.{arm}", f"{arm}_prompt.query")
        made.connect(f"{arm}_prompt.prompt", f"{arm}_llm.prompt")
        made.connect(f"{arm}_llm.replies", "report.replies")
    made.connect("router.decision", "report.decision")
    return made


@pytest.fixture
def pipeline():
    made = pipeline_of("fast", "deep")
    yield made
    made.get_component("router").close()
    made.get_component("report").close()


@pytest.fixture
def client():
    with Client() as opened:
        yield opened


def test_a_pipeline(pipeline, client):
    """Only the chosen branch runs; its reply is the outcome, under the id that the pipeline returns."""
    result = pipeline.run({"router": {"query": QUESTION}}, include_outputs_from={"fast_llm", "deep_llm", "router"})
    end = result["report"]
    record = client.decision(end["decision_id"])
    assert [arm for arm in ("fast", "deep") if f"{arm}_llm" in result] == [record["arm"]]
    assert end["answer"] == f"{record['arm']}: {QUESTION}" == record["outcome"]["answer"]
    assert record["outcome"]["cost"]["seconds_total"] > 0
    assert client.feedback(end["decision_id"], rating=True)["waiting_for"] is None


def test_saved_and_loaded(pipeline, client):
    """A pipeline with the router is saved as YAML without a key, and runs when it is loaded with the module allowed."""
    alone = Pipeline()
    alone.add_component("router", BanditRouter(["fast", "deep"], default_arm="fast"))
    text = alone.dumps()
    assert "api_key" not in text
    loaded = Pipeline.loads(text, allowed_modules=["ragbandit.integrations.haystack"])
    result = loaded.run({"router": {"query": QUESTION, "context": {"premium": True}}})["router"]
    assert client.decision(result["decision_id"])["context"] == {"premium": True}
    loaded.get_component("router").close()


def test_a_session_is_a_task(client):
    """With the unit task, all queries of a session go to one branch."""
    router, session = BanditRouter(["fast", "deep"], unit="task"), str(uuid.uuid4())
    keys = [router.run(QUESTION, session_id=session)["decision_id"] for _ in range(8)]
    assert len({client.decision(key)["arm"] for key in keys}) == 1
    router.close()
