"""The audit log of a service: the settings that it ran with, and the policies that it registered."""

import pytest

from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import CONFIG_USED, record_config
from ragbandit.router.storage.access.audit_log import entries
from tests.conftest import on_sqlite


def found(database, action):
    return [entry for entry in entries(database) if entry.action == action]


@on_sqlite
def test_settings_are_recorded_when_they_change(database, settings):
    """The first start and each one with other settings add an entry with what is not the default."""
    first = settings(server={"port": 8101})
    record_config(database, first)
    record_config(database, first)
    record_config(database, settings(server={"port": 8102}), actor="cli:ann@host")
    one, two = found(database, CONFIG_USED)
    assert one.actor.startswith("process:serve@")
    assert (one.facts["settings"]["server.port"], two.facts["settings"]["server.port"]) == (8101, 8102)
    assert "server.host" not in one.facts["settings"]
    assert one.facts["settings"]["encoder.model"] == "hashing"
    assert (two.actor, two.target) == ("cli:ann@host", one.target)


@pytest.mark.parametrize("other", [{"policy": {"name": "linucb"}}, {"policy": {"params": {"ridge": 2.0}}}])
def test_policies_are_recorded_when_they_change(settings, other):
    """A new ledger, and one that is learned in another way from now on, are one entry each; a restart is none."""
    given = {}
    for given in ({}, {}, other):
        with Router.open(settings(**given), jobs=MemoryJobs()) as router:
            actions = [(entry.action, entry.target) for entry in entries(router.database)]
    assert actions == [("ledger.register", "ledger:main"), ("ledger.change", "ledger:main")]
