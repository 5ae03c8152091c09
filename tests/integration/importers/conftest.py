"""Fixtures of importers: a twin of each system, and a world whose decisions it judges."""

import threading
from types import SimpleNamespace

import pytest
from sqlalchemy import select

from ragbandit.router.importers.importing import Importer
from ragbandit.router.importers.registry import make_source
from ragbandit.router.serving.checks.fields import new_id
from ragbandit.router.storage.sql.tables import feedback
from ragbandit.shared.types import Query
from tests.support.servers.feedback_servers import LangfuseTwin, LangSmithTwin, OpenWebUiTwin, PhoenixTwin

TWINS = {"langfuse": LangfuseTwin, "langsmith": LangSmithTwin, "phoenix": PhoenixTwin, "openwebui": OpenWebUiTwin}
#: what the settings say of each, beside its address
SECTIONS = {
    "langfuse": {"names": {"user-feedback": {"kind": "rating", "source": "human"}, "accuracy": "rating"}},
    "langsmith": {"names": {"stars": "rating"}},
    "phoenix": {"names": {"helpful": "rating"}, "project": "my project"},
    "openwebui": {},
}


class Bridge(SimpleNamespace):
    """A twin, a world, and an importer between them."""

    def decision(self, **links: str):
        query = Query(text="who?", request={"links": links} if links else {}, tenant=self.tenant)
        return self.world.router.submit(query).result(30)

    def judge(self, decision, judgement: str, /, *, value=1.0, **more):
        """A judgement there of a decision here, on a scale from 0 to 1."""
        at = more.pop("at", self.world.now)
        match self.name:
            case "langfuse":
                return self.twin.add(judgement, at=at, value=value, dataType="NUMERIC", trace=decision.id, **more)
            case "langsmith":
                return self.twin.add(judgement, at=at, score=value, run=decision.id, **more)
            case "phoenix":
                return self.twin.add(judgement, at=at, score=value, span=f"span-{decision.id}", **more)
            case _:
                return self.twin.add(
                    judgement, at=at, rating=1 if value == 1.0 else -1, message=f"m-{decision.id}", **more
                )

    def judged(self, judgement: str = "j1", /, **more):
        """A decision here and a judgement of it there."""
        key = new_id()
        links = {
            "phoenix": {"span": f"span-{key}"},
            "openwebui": {"openwebui_message": f"m-{key}"},
        }.get(self.name, {})
        query = Query(text="who?", id=key, tenant=self.tenant, request={"links": links} if links else {})
        decision = self.world.router.submit(query).result(30)
        self.judge(decision, judgement, **more)
        return decision

    def importer(self) -> Importer:
        world, ending = self.world, threading.Event()
        source = make_source(self.name, settings=world.settings.importers, database=world.database, ending=ending)
        self.opened.append(source)
        return Importer(
            source,
            store=world.store,
            settings=world.settings,
            clock=world.clock,
            ending=ending,
            on_new=lambda: self.bells.append(world.now),
        )

    def run(self, **more):
        self.world.now += 1  # a walk ends before the moment at which it begins
        return self.importer().run(**more)

    def totals(self, **more) -> dict[str, int]:
        """What became of the judgements of one import."""
        counts: dict[str, int] = {}
        for each in self.run(**more).by_name.values():
            for result, number in each.items():
                counts[result] = counts.get(result, 0) + number
        return counts

    def rows(self):
        with self.world.database.read() as connection:
            return list(connection.execute(select(feedback).order_by(feedback.c.received_at, feedback.c.id)).mappings())


@pytest.fixture
def make_bridge(make_world, monkeypatch):
    """A factory: name of the importer, more of its section, more settings."""
    monkeypatch.setattr("ragbandit.router.importers.http_pages.LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr("ragbandit.router.importers.langsmith._MOST_ASKED", 3)
    made = []

    def make(name: str, *, section=None, tenant: str = "default", **given) -> Bridge:
        twin = TWINS[name]()
        for variable, value in twin.environment.items():
            monkeypatch.setenv(variable, value)
        url = {"url": twin.url, "timeout_s": 5.0}
        given["importers"] = {name: SECTIONS[name] | url | (section or {})}
        world = make_world(**given)
        made.append(Bridge(name=name, twin=twin, world=world, tenant=tenant, bells=[], opened=[]))
        return made[-1]

    yield make
    for bridge in made:
        for source in bridge.opened:
            source.close()
        bridge.twin.__exit__()


@pytest.fixture(params=sorted(TWINS))
def bridge(make_bridge, request):
    """Each of the importers, on SQLite."""
    return make_bridge(request.param)
