"""Run leases: which process runs which decision, in Redis, so that what a dead process ran is queued again in seconds.

One hash names for each decision that is being run the process that runs it. A process renews a key of its own while it
lives. On the host of a process its kernel says whether it lives, at once and whatever the load; from other hosts it is
taken for dead when its key was gone in two looks in a row, PROCESS_S + 2 * LOOK_S at most after its end.
"""

from collections.abc import Collection
from itertools import islice
from typing import Any, Final

import redis

from ragbandit.router.jobs.foreign_data import ForeignData, OwnKeys
from ragbandit.router.jobs.records import RUNS_KEY
from ragbandit.router.process_identity import ProcessIdentity, this_process
from ragbandit.router.types import DecisionId

__all__ = ["LOOK_S", "PROCESS_S", "RunLeases"]

#: a process that has not renewed its key for that long may be dead, seconds
PROCESS_S: Final = 3
#: how often a process renews its key and looks for dead ones, seconds
LOOK_S: Final = 1.0
#: leases that one look reads at most
MAX_RUNS: Final = 10_000
#: KEYS: leases. ARGV: key of a process, ids
_DROP: Final = """
for place = 2, #ARGV do
    if redis.call('HGET', KEYS[1], ARGV[place]) == ARGV[1] then
        redis.call('HDEL', KEYS[1], ARGV[place])
    end
end
"""


class RunLeases:
    """The leases of one process. Every method raises RedisError if Redis cannot be reached."""

    def __init__(self, client: "redis.Redis", *, foreign: ForeignData, process: ProcessIdentity | None = None) -> None:
        self._client = client
        self._foreign = foreign
        self._own = OwnKeys(client, {RUNS_KEY: "hash"}, foreign=foreign)
        self.process = process or this_process()
        #: suspects of the last look: they are lost if the next one suspects them too
        self._suspects: set[tuple[str, str]] = set()

    def renew(self, ids: Collection[DecisionId]) -> None:
        """This process lives and runs these."""

        def work() -> None:
            with self._client.pipeline(transaction=False) as pipeline:
                pipeline.set(_alive_key(self.process.key), 1, ex=PROCESS_S)
                if ids:
                    pipeline.hset(RUNS_KEY, mapping=dict.fromkeys(ids, self.process.key))
                pipeline.execute()

        self._own.attempt(work)

    def drop(self, ids: Collection[DecisionId]) -> None:
        """This process does not run these. Leases of others stay."""
        if ids:
            self._own.attempt(lambda: self._client.eval(_DROP, 1, RUNS_KEY, self.process.key, *ids))

    def runs_elsewhere(self, decision_id: DecisionId) -> bool:
        """True if a process other than this one holds the lease and may live."""
        raw: Any = self._own.attempt(lambda: self._client.hget(RUNS_KEY, decision_id))
        key = "" if raw is None else raw.decode(errors="replace")
        if key in ("", self.process.key):
            return False
        alive = _is_alive(key)
        return bool(self._client.exists(_alive_key(key))) if alive is None else alive

    def lost(self, *, held: Collection[DecisionId]) -> dict[DecisionId, str]:
        """Decisions whose process is dead -> the key in their lease. held: what this process has in hand."""
        fields = self._own.attempt(lambda: dict(islice(self._client.hscan_iter(RUNS_KEY, count=1000), MAX_RUNS)))
        strange = {name for name, key in fields.items() if not (_is_text(name) and _is_text(key))}
        if strange:
            self._client.hdel(RUNS_KEY, *strange)
            self._foreign.add("claims", f"{len(strange)} leases are not UTF-8")
        leases = {name.decode(): key.decode() for name, key in fields.items() if name not in strange}
        alive = {key: _is_alive(key) for key in set(leases.values())}
        silent = self._without_key([key for key, known in alive.items() if known is None])
        suspects = {
            (name, key)
            for name, key in leases.items()
            if key in silent or (key == self.process.key and name not in held)
        }
        again, self._suspects = suspects & self._suspects, suspects
        return {DecisionId(name): key for name, key in leases.items() if alive[key] is False or (name, key) in again}

    def _without_key(self, keys: list[str]) -> set[str]:
        if not keys:
            return set()
        with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.exists(_alive_key(key))
            return {key for key, there in zip(keys, pipeline.execute(), strict=True) if not there}


def _is_alive(process_key: str) -> bool | None:
    """As `ProcessIdentity.is_alive`; None also for a key that names no process."""
    process = ProcessIdentity.from_key(process_key)
    return None if process is None else process.is_alive()


def _alive_key(process_key: str) -> str:
    return f"ragbandit:alive:{process_key}"


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
