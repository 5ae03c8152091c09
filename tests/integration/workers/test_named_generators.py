"""Arms on generators and retrievers of their own: two real servers, two indexes, and a server that is away or slow."""

import time
from pathlib import Path

import pytest
import yaml

from ragbandit.router.serving.health.outcome_poller import OutcomePoller
from ragbandit.router.serving.router import Router
from ragbandit.shared.types import Query
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers.bm25 import build_index
from ragbandit.testing.openai_server import ScriptedServer
from tests.support import command

PRICES = {"small": (100.0, 400.0), "large": (1000.0, 8000.0)}
ARMS = {
    "quick": {"class": "no_retrieval", "generator": "small"},
    "wiki": {"class": "single_step", "generator": "large", "retriever": "wiki", "passages": 1},
    "news": {"class": "single_step", "generator": "large", "retriever": "news", "passages": 1},
}


@pytest.fixture
def service(tmp_path, settings, redis_server, redis_client):
    """A function: a router whose workers have these servers and two indexes; and one that has a worker answer."""
    routers = []

    def start(servers):
        generators = {
            name: {
                "name": "openai",
                "model": f"model-{name}",
                "token_prices": dict(zip(("input", "output"), PRICES[name], strict=True)),
                "openai": {"base_url": url, "retries": 0},
            }
            for name, url in servers.items()
        }
        configuration = settings(
            arms=ARMS,
            policy={"name": "uniform", "fallback": "quick"},
            generators=generators,
            retrievers={"wiki": {"index": "wiki"}, "news": {"index": "news"}},
            redis_url=redis_server,
            health={"failures": 3},
        )
        for name in ("wiki", "news"):
            passage = Passage(id=f"{name}-1", title="Dracula", text=f"The {name} knows who wrote Dracula.")
            build_index([passage], Path(configuration.data_dir) / "indexes" / name)
        file = tmp_path / "config.yaml"
        file.write_text(yaml.safe_dump(configuration.model_dump(exclude_none=True)))
        router = Router.open(configuration)
        routers.append(router)

        def answered(arm, times=1):
            queries = [Query(text=f"Who wrote Dracula, part {n}?", arms=(arm,)) for n in range(times)]
            ids = [router.submit(each, run_by="worker").result(20).id for each in queries]
            command.run("worker", "--queue", "answer", "--burst", "--config", str(file), code=0)
            outcomes = router.store.outcomes_by_id(ids)
            return [outcomes[key] for key in ids]

        return router, answered

    yield start
    for router in routers:
        router.close()
        router.process.jobs.client.close()


def test_arms_route_between_models_and_between_indexes(service):
    """Each arm asks its own server, searches its own index, and costs what its own model does; the facts are kept."""
    with ScriptedServer({"": "It was Bram."}) as small, ScriptedServer({"": "It was Bram Stoker."}) as large:
        _, answered = service({"small": small.url, "large": large.url})
        quick, wiki, news = (answered(arm)[0] for arm in ARMS)
        assert {each.body["model"] for each in small.requests} == {"model-small"}
        assert {each.body["model"] for each in large.requests} == {"model-large"}
        assert (len(small.requests), len(large.requests)) == (1, 2)
    assert (quick.answer, wiki.answer) == ("It was Bram", "It was Bram Stoker")
    assert [[source.id for source in each.sources] for each in (quick, wiki, news)] == [[], ["wiki-1"], ["news-1"]]
    for outcome, name in ((quick, "small"), (wiki, "large"), (news, "large")):
        per_read, per_written = PRICES[name]
        cost = outcome.cost
        assert cost.dollars == pytest.approx(
            (cost.prompt_tokens * per_read + cost.completion_tokens * per_written) / 1e6
        )
        assert cost.dollars > 0
        assert outcome.made_by["generator"] == f"model-{name}"
        assert outcome.made_by["params"]["generator"] == name
    assert "retriever" not in quick.made_by["params"]
    assert [each.made_by["params"]["retriever"] for each in (wiki, news)] == ["wiki", "news"]
    assert wiki.made_by["retriever"] != news.made_by["retriever"]


def test_a_server_that_is_down_leaves_the_others_arms(service):
    """The worker starts although one server is away; only its arms fail, and only those are left out."""
    with ScriptedServer({"": "gone"}) as gone:
        url = gone.url
    with ScriptedServer({"": "It was Bram."}) as small:
        router, answered = service({"small": small.url, "large": url})
        failed = answered("wiki", times=3)
        fine = answered("quick", times=3)
    assert {each.status for each in failed} == {"failed"}
    assert "correct generators.large.openai.base_url" in failed[0].error
    assert {each.status for each in fine} == {"answered"}
    poller = OutcomePoller(router.database, settings=router.settings.health, seconds=120.0)
    states = {health.arm: health.state for health in poller.read(list(ARMS), now=time.time())}
    assert states == {"quick": "closed", "wiki": "open", "news": "closed"}
