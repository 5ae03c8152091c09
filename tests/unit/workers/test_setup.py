"""Which generator and retriever the settings give, and what a worker knows of its runs, its signals and its log."""

import logging
import re
import signal
import textwrap
import time
from pathlib import Path

import pytest

from ragbandit.router.config.section import RETRIEVERS
from ragbandit.router.config.sections import GENERATORS
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.base import Passage
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.retrievers.bm25 import build_index
from ragbandit.workers.processes.consumers import Signals
from ragbandit.workers.setup import retrievers
from ragbandit.workers.setup.generator_kinds import KINDS
from ragbandit.workers.setup.generators import (
    capabilities_of,
    check_worker_arms,
    concurrency_of,
    hints,
    threads_of_worker,
    worker_arms,
)
from ragbandit.workers.setup.loading import ArmLoader, check_generators
from ragbandit.workers.setup.retrievers import retriever_kind, search_once
from tests.support.additions import needs


class Trained:
    """An arm of a user that reads the tokens of a trained model."""

    needs = frozenset({"completion", "trained_tokens"})

    def __init__(self, *, name):
        self.name, self.params = name, {}

    async def answer(self, question, *, run):
        raise AssertionError("never reached")


TRAINED = {"class": f"{__name__}:Trained"}
OPENAI = {"name": "openai", "model": "gpt", "openai": {"base_url": "http://127.0.0.1:9/v1"}}


@pytest.mark.parametrize(("workers", "cores", "threads"), [(0, 8, None), (1, 8, None), (2, 8, 4), (3, 8, 2), (9, 8, 1)])
def test_workers_share_the_cores(workers, cores, threads):
    """The local models of several answer workers together use no more threads than there are cores, one at least."""
    chosen = Settings(workers={"answer": workers}).workers
    assert threads_of_worker(chosen, cores=cores) == threads
    assert threads_of_worker(chosen, cores=cores, models=2) == max(1, cores // (2 * max(1, workers)))


def test_a_bare_arm_check_loads_no_model():
    """What a generator can do is read from its class; an arm that needs more is refused before anything is loaded."""
    settings = Settings(generator={"name": "scripted"})
    check_worker_arms(settings)
    assert capabilities_of(settings.generator) == ScriptedGenerator.capabilities
    with pytest.raises(ConfigError, match=r"needs .*trained_tokens"):
        check_worker_arms(settings.model_copy(update={"arms": {"own": TRAINED}}))


def test_the_retriever_is_made_by_its_name(tmp_path):
    """retriever.name picks the maker: bm25 looks for its index; an unknown name lists the known ones."""
    settings = Settings(data_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="has no index"):
        retriever_kind(settings).open()
    other = settings.model_copy(update={"retriever": settings.retriever.model_copy(update={"name": "web"})})
    with pytest.raises(ConfigError, match=r"'web' is unknown \(known: bm25, dense"):
        retriever_kind(other).open()


@pytest.mark.parametrize(
    ("generator", "configured", "expected"),
    [
        ({"name": "scripted"}, None, 8),
        ({"name": "openai", "openai": {"concurrency": 5}}, None, 5),
        ({"name": "openai", "openai": {"concurrency": 5}}, 2, 2),
        pytest.param({"name": "local"}, None, 3, marks=needs("local_models")),
    ],
)
def test_questions_at_once_follow_the_generator(generator, configured, expected):
    """The number of parallel questions is the configured one, else the generator's number of parallel calls."""
    settings = Settings(generator=generator, workers={"concurrency": configured})
    made = ScriptedGenerator({"": ""})
    made.max_batch = 3
    assert concurrency_of(settings.generator, requested=settings.workers.concurrency, generator=made) == expected


def test_signals_are_counted():
    """The first signal is handled at once; a second one right after it is ignored; one a second later counts."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        signals = Signals()
        assert not signals.first
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
            assert (signals.first, signals.second) == (True, False)
        time.sleep(1.05)
        signal.raise_signal(signal.SIGTERM)
        assert signals.second
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_arms_that_do_not_retrieve_need_no_index(tmp_path):
    """With no_retrieval alone nothing is opened; with an arm that searches the missing index is named."""
    settings = Settings(data_dir=str(tmp_path), arms={"no_retrieval": {}}, generator={"name": "scripted"})
    searching = settings.model_copy(update={"arms": {"no_retrieval": {}, "single_step": {}}})
    (loaded,) = ArmLoader(settings).load(worker_arms(settings)).values()
    assert loaded.retriever.name == "none"
    with pytest.raises(ConfigError, match="index"):
        ArmLoader(searching).load(worker_arms(searching))


@pytest.fixture
def own_retriever(tmp_path, monkeypatch):
    """A module of a user with retrievers, good and bad."""
    (tmp_path / "my_search.py").write_text(
        "from ragbandit.strategies.retrievers.without_index import NoRetriever\n"
        "class Library(NoRetriever):\n"
        "    name = 'library'\n"
        "def library(): return Library()\n"
        "def nothing(): return 7\n"
        "def broken(): raise LookupError('no index')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_retriever_of_your_own(own_retriever):
    """retriever.name names a function that makes one; it has no index of ours to build, and says what it is."""
    chosen = Settings(retriever={"name": "my_search:library"})
    assert retriever_kind(chosen).open().name == "library"
    assert retriever_kind(chosen).info() == {"retriever": "my_search:library", "name": "library"}
    with pytest.raises(ConfigError, match="cannot build the index"):
        retriever_kind(chosen).build_index(list, lambda done: None)


def test_the_retriever_on_the_page_reranks(tmp_path, monkeypatch):
    """The reranker in docs/generators.md puts short texts first."""
    page = (Path(__file__).parents[3] / "docs" / "generators.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"\n(    from ragbandit.strategies.retrievers.bm25 import.*?)\n\n\S", page, flags=re.DOTALL)
    (tmp_path / "search_of_the_page.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    rows = [Passage(id=f"p{n}", title="", text="river " + "sea " * (3 - n)) for n in range(3)]
    build_index(rows, ".ragbandit/indexes/default")
    retriever = retriever_kind(Settings(retriever={"name": "search_of_the_page:shortest"})).open()
    assert retriever.name.endswith(":reranked:shortest:50")
    assert [hit.passage.id for hit in search_once(retriever, query="river", k=2)] == ["p2", "p1"]


@pytest.mark.parametrize("name", ["my_search:nothing", "my_search:broken", "my_search:gone", "nowhere:library"])
def test_a_retriever_that_cannot_be_made(own_retriever, name):
    """It is a ConfigError of the setting when it is opened."""
    with pytest.raises(ConfigError) as caught:
        retriever_kind(Settings(retriever={"name": name})).open()
    assert caught.value.field == "retriever.name"


def test_one_preset_for_every_arm_that_has_it():
    """arms_preset applies to arms without their own preset; an arm class without this preset is not changed."""
    arms = {
        "single_step": {"passages": 4},
        "multi_step": {"preset": "gpt"},
        "own": TRAINED,
        "mine": {"run_by": "caller"},
    }
    arms["web"] = {"class": "http", "url": "http://h/x"}
    made = worker_arms(Settings(arms=arms, arms_preset="chat"))
    assert {name: arm.params for name, arm in made.items()} == {
        "single_step": {"preset": "chat", "passages": 4},
        "multi_step": {"preset": "gpt"},
        "own": TRAINED,
        "web": {"class": "http", "url": "http://h/x"},
    }


def test_a_preset_that_no_arm_has_is_refused():
    """The error names the setting and the presets there are."""
    with pytest.raises(ConfigError, match="'chatt'") as caught:
        check_worker_arms(Settings(arms={"single_step": {}}, arms_preset="chatt"))
    assert caught.value.field == "arms_preset"
    assert "chat, flan, gpt, small" in caught.value.remedy


def test_short_answers_of_a_large_model_are_hinted_at(caplog):
    """With an OpenAI-compatible server and the defaults for small models the log says what to set, once a check."""
    with caplog.at_level(logging.WARNING):
        check_worker_arms(Settings(generator=OPENAI))
    (record,) = caplog.records
    assert "no_retrieval, single_step, multi_step" in record.getMessage()
    assert "arms_preset: chat" in record.getMessage()


@pytest.mark.parametrize(
    "settings",
    [
        {"generator": OPENAI, "arms_preset": "chat"},
        {"generator": OPENAI, "arms_preset": "small"},
        {"generator": OPENAI, "arms": {"single_step": {"max_tokens": 200}, "multi_step": {"preset": "gpt"}}},
        {"generator": OPENAI, "arms": {"mine": {"run_by": "caller"}}},
        {"generator": {"name": "scripted"}},
        {"generator": {**OPENAI, "openai": {"token_prices": {"gpt": [1.0, 2.0]}}}, "arms_preset": "chat"}
        | {"budget": {"dollars": 0.1}},
        {"generator": {"token_prices": {"input": 1.0, "output": 2.0}}, "budget": {"dollars": 0.1}},
    ],
)
def test_nothing_is_said_where_it_was_chosen(settings):
    """Whoever chose a preset, a length or prices gets no hint."""
    assert hints(Settings(**settings)) == ()


def test_each_generator_of_the_core_has_a_kind():
    """The names that the settings take for the core's generators are those of its kinds."""
    assert KINDS.keys() == set(GENERATORS)


def test_each_retriever_of_the_core_has_a_kind():
    """The names that the settings take for the core's retrievers are those of its kinds."""
    assert retrievers.KINDS.keys() == set(RETRIEVERS)


def test_a_default_whose_addition_is_missing_is_refused_where_it_is_needed(monkeypatch):
    """Without the default generator nothing can be loaded where arms need one; the remedy has the known names."""
    monkeypatch.setattr("ragbandit.workers.setup.generator_kinds.kinds", lambda: KINDS)
    for settings in (Settings(generator={"name": "scripted"}), Settings(arms={"mine": {"run_by": "caller"}})):
        check_worker_arms(settings)
        check_generators(settings, fetch=False)
    check_worker_arms(Settings())
    with pytest.raises(ConfigError, match="there is no generator 'local'") as caught:
        check_generators(Settings(), fetch=False)
    assert (caught.value.field, caught.value.remedy) == ("generator.name", "known: openai, scripted")
