"""Leases in both databases: a holder that has ended on this host keeps nobody waiting."""

import subprocess
import sys
from dataclasses import replace

import pytest

from ragbandit.router.storage.sql.leases import Lease, lease_holder
from ragbandit.shared.processes.this_process import this_process

CODE = "from ragbandit.router.storage.sql.leases import lease_holder; print(lease_holder('test'), flush=True); input()"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells of processes in /proc")


@pytest.fixture
def lease(database):
    return Lease(database=database, name="test")


@linux
def test_a_killed_holder_is_forgotten(lease):
    """A lease whose holder was killed on this host is taken at once; while the holder lives it is not."""
    command = [sys.executable, "-c", CODE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        theirs = process.stdout.readline().strip()
        assert lease.acquire(holder=theirs, lease_s=3600)
        assert not lease.acquire(holder=lease_holder("test"), lease_s=3600)
        process.kill()
        process.wait(10)
        ours = lease_holder("test")
        assert lease.acquire(holder=ours, lease_s=3600)
        assert lease.last_holder().holder == ours


def test_a_holder_elsewhere_keeps_its_lease(lease):
    """It is unknown whether a process of another host, or one with an invalid name, is alive."""
    elsewhere = replace(this_process(), pid_space="elsewhere", started="1")
    for holder in (f"{elsewhere.key}/test", "host-7-1234-abcd"):
        assert lease.acquire(holder=holder, lease_s=3600)
        assert not lease.acquire(holder=lease_holder("test"), lease_s=3600)
        assert 3500 < lease.last_holder().left_s <= 3600
        lease.release(holder=holder)
    assert lease.last_holder() is None


@pytest.mark.parametrize("theirs_s", [20, 86400])
def test_a_longer_lease_of_a_running_holder_is_respected(lease, theirs_s):
    """A running process keeps its lease, also if the one who asks would hold it for a shorter time."""
    holder = lease_holder("learn")
    assert lease.acquire(holder=holder, lease_s=theirs_s)
    assert not lease.acquire(holder=lease_holder("retire"), lease_s=10)
    assert lease.last_holder().holder == holder
    assert lease.acquire(holder=holder, lease_s=1)
    assert lease.last_holder().left_s <= 1


def test_a_clock_that_was_ahead(lease):
    """On SQLite a lease that ends later than one taken now is free, unless its holder is seen to run."""
    elsewhere = replace(this_process(), pid_space="elsewhere", started="1")
    assert lease.acquire(holder=f"{elsewhere.key}/learn", lease_s=3600)
    assert lease.acquire(holder=lease_holder("learn"), lease_s=10) == lease.database.is_sqlite
