"""Kinds of retrievers: facts about a configured retriever before it is opened, and its wrappers."""

import asyncio
import subprocess
import sys
from dataclasses import replace

import pytest

from ragbandit.router.config.section import RETRIEVERS, Section
from ragbandit.router.config.settings import Settings
from ragbandit.shared.additions import offered_places
from ragbandit.workers.setup import retrievers as module
from ragbandit.workers.setup.retrievers import open_retriever, retriever_kind

NAMES = (*RETRIEVERS, *offered_places("retrievers"))


def test_making_kinds_loads_no_package_of_a_retriever():
    """A process that only asks for facts about retrievers loads no index, no model and no client for them."""
    program = f"""
import sys
from ragbandit.router.config.settings import Settings
from ragbandit.workers.setup.retrievers import retriever_kind
before = set(sys.modules)
for name in {NAMES}:
    retriever_kind(Settings(retriever={{"name": name}})).only_waits
print(sorted({{"bm25s", "torch", "elasticsearch", "httpx"}} & (set(sys.modules) - before)))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize("name", NAMES)
def test_facts_of_a_kind_need_no_server_and_no_index(name):
    """What `validate` and the HTTP service ask of a kind is answered where no index and no server are there."""
    kind = retriever_kind(Settings(retriever={"name": name}))
    kind.check()
    kind.check_passages("single_step", 5)
    assert (kind.prices, dict(kind.servers)) == ("", {})


def test_wrappers_stand_around_any_retriever(monkeypatch, tmp_path):
    """What sections of additions put around a retriever stands in their order; one can ask for it without."""
    (tmp_path / "my_place.py").write_text(
        "from ragbandit.strategies.retrievers.without_index import MemoryRetriever\n"
        "def memory(): return MemoryRetriever([])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def adding(word):
        def around(_, kind):
            return replace(kind, open=lambda: _renamed(kind.open(), word), prices=kind.prices + word)

        return type("Part", (Section,), {"around": around})

    def _renamed(retriever, word):
        retriever.name += word
        return retriever

    monkeypatch.setattr(module, "section_parts", lambda section: (adding(" a"), adding(" b")))
    settings = Settings(retriever={"name": "my_place:memory"})
    assert retriever_kind(settings).prices == " a b"
    for wrapped, name in ((True, "memory a b"), (False, "memory")):
        retriever = open_retriever(settings, "default", wrapped=wrapped)
        assert retriever.name == name
        asyncio.run(retriever.close())
