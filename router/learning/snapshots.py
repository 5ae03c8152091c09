"""Snapshots: a policy's state as safetensors and JSON, written atomically, checked when loaded. Never pickle.

A snapshot is a cache of the ledger: lose it and the learner makes the same bytes again. Its sha256 covers the
tensors and the facts, so that two policies with one sha256 are the same policy.
"""

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors, save as save_tensors

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.monitoring.diagnosis import EVERY_S, diagnose, frontier_text
from ragbandit.router.policies import make_policy, protected
from ragbandit.router.policies.base import Policy, restored
from ragbandit.router.policies.draw import fallback_arm
from ragbandit.router.storage.ledgers.inheritance import OTHER_ENCODER
from ragbandit.router.storage.ledgers.ledger import KEPT_MOST, TRIES, Ledger, is_kept
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import ConfigError, SnapshotError
from ragbandit.shared.files import Folder
from ragbandit.shared.types import ArmName, PolicyLabel, SnapshotInfo

#: version of the JSON file; a file with another one is refused
FORMAT = 1
#: facts of a snapshot that the database has too
_DESCRIBED: Final = ("policy", "algorithm", "params", "last_seq", "encoder_hash")
_REMAKE = "delete the snapshots folder: the learner makes it again from the ledger"


def pack(
    policy: Policy, *, label: PolicyLabel, last_seq: int, encoder_hash: str, now: float
) -> tuple[SnapshotInfo, bytes, dict[str, Any]]:
    """The snapshot's identity, its tensor bytes and its facts."""
    arrays, facts = policy.state()
    tensors = save_tensors({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    described: dict[str, Any] = {
        "format": FORMAT,
        "policy": label,
        "algorithm": policy.algorithm,
        "params": dict(policy.params),
        "last_seq": last_seq,
        "encoder_hash": encoder_hash,
        "facts": facts,
    }
    sha256 = _sha256(tensors, described)
    return _info(described, version=f"{label}-{last_seq}-{sha256[:12]}", sha256=sha256, made_at=now), tensors, described


def _info(described: Mapping[str, Any], **more: Any) -> SnapshotInfo:
    """What the database knows of a snapshot; more: its version, sha256 and time, which its facts do not have."""
    return SnapshotInfo(**{name: described[name] for name in _DESCRIBED}, **more)


def policy_sha256(policy: Policy, *, label: PolicyLabel, last_seq: int, encoder_hash: str) -> str:
    """The sha256 that identifies a policy after `last_seq` updates."""
    return pack(policy, label=label, last_seq=last_seq, encoder_hash=encoder_hash, now=0.0)[0].sha256


def _sha256(tensors: bytes, described: Mapping[str, Any]) -> str:
    return hashlib.sha256(tensors + canonical(dict(described)).encode()).hexdigest()


class SnapshotFiles:
    """Folder of the snapshots: a local folder, or any URL that fsspec knows (s3://, gs://, memory://)."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._folder = Folder(root, field="snapshots")

    def write(self, info: SnapshotInfo, tensors: bytes, described: Mapping[str, Any]) -> None:
        """Both files, the JSON last: a snapshot without it does not exist. Raises SnapshotError."""
        facts = json.dumps(dict(described) | {"sha256": info.sha256, "made_at": info.made_at}, indent=1).encode()
        try:
            self._folder.put(f"{info.version}.safetensors", tensors)
            self._folder.put(f"{info.version}.json", facts)
        except OSError as error:
            raise SnapshotError(f"{self.root} cannot be written: {error}", field="snapshots") from error

    def load(self, known: SnapshotInfo | str, *, encoder_hash: str | None = None) -> tuple[Policy, SnapshotInfo]:
        """The policy of a snapshot, after all checks: format, sha256, encoder (None: any), shapes, finite numbers.

        known: as the database knows it. Files that carry another sha256 than the database has are refused, however well
        they fit each other: everyone who can write to the folder could make them. Or the version alone, without a
        database: its name ends as the sha256 begins. Only `ragbandit replay` may use that: nothing decides by it.
        Raises SnapshotError saying what is wrong.
        """
        version, sha256 = (known, None) if isinstance(known, str) else (known.version, known.sha256)
        tensors, described = self._read(version)
        claimed, made_at = described.pop("sha256", None), described.pop("made_at", 0.0)
        if described.get("format") != FORMAT:
            raise SnapshotError(
                f"{version} has format {described.get('format')!r}, this version reads {FORMAT}",
                remedy=_REMAKE,
            )
        if (actual := _sha256(tensors, described)) != claimed:
            raise SnapshotError(f"{version} is damaged: its sha256 does not match", remedy="delete its two files")
        if actual != sha256 if sha256 else not version.endswith(actual[:12]):
            raise SnapshotError(
                f"{version} is not the snapshot that the learner made: its files have the sha256 {actual[:12]}, "
                f"{f'the database has {sha256[:12]}' if sha256 else 'its name says another'}",
                remedy="find out who wrote to the snapshots folder; the learner makes it again from the ledger",
            )
        if encoder_hash is not None and described["encoder_hash"] != encoder_hash:
            raise SnapshotError(
                f"{version} was made with encoder {described['encoder_hash'][:12]}, not {encoder_hash[:12]}",
                field="encoder",
                remedy=OTHER_ENCODER,
            )
        try:
            fresh = make_policy(described["algorithm"], params=described["params"])
            policy = restored(fresh, dict(load_tensors(tensors)), described["facts"])
        except (ConfigError, SafetensorError) as error:  # the sha256 fits: another version of ours wrote it
            raise SnapshotError(f"{version} cannot be used here: {error}", remedy=_REMAKE) from error
        return policy, _info(described, version=version, sha256=actual, made_at=made_at)

    def exists(self, version: str) -> bool:
        """True if both files are there; `load` checks their content."""
        return all(self._folder.exists(name) for name in _names(version))

    def fingerprint(self, version: str) -> str | None:
        """A text that changes when a process writes the files again; None if one is missing. Reads no content."""
        try:
            return " ".join(self._folder.fingerprint(name) for name in _names(version))
        except OSError:
            return None

    def prune(self, versions: list[str]) -> None:
        """Delete these snapshots' files; missing ones are fine."""
        for version in versions:
            for name in _names(version):
                self._folder.remove(name)

    def _read(self, version: str) -> tuple[bytes, dict[str, Any]]:
        try:
            tensors, facts = self._folder.get(f"{version}.safetensors"), self._folder.get(f"{version}.json")
            described = json.loads(facts)
        except (OSError, ValueError) as error:
            raise SnapshotError(f"{version} cannot be read from {self.root}: {error}", remedy=_REMAKE) from error
        if not isinstance(described, dict):
            raise SnapshotError(f"{version}.json is not a JSON object", remedy=_REMAKE)
        return tensors, described


def _names(version: str) -> tuple[str, str]:
    return f"{version}.json", f"{version}.safetensors"


log = logging.getLogger("ragbandit.learner")

#: A snapshot that takes long (a fine-tuned model has hundreds of megabytes) is followed by this many times as long
#: without one, _LONGEST_S at most, so that learning and serving get most of the machine.
_SHARE: Final = 4.0
#: the same while a backlog is learned
_SHARE_OF_BACKLOG: Final = 25.0
_LONGEST_S: Final = 20.0
#: snapshots from one pruning of old rows to the next
FORGET_EVERY = 100


class Publisher:
    """Writes the snapshots of one label's learner."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        files: SnapshotFiles,
        settings: Settings,
        announce: Callable[[SnapshotInfo], None],
        clock: Callable[[], float],
    ) -> None:
        self.ledger, self.files, self.settings = ledger, files, settings
        self.announce, self.clock = announce, clock
        #: time of the last snapshot, monotonic seconds, and how long its writing took
        self._at, self._took_s = -math.inf, 0.0
        #: when the frontier is computed again, monotonic seconds
        self._frontier_due = -math.inf
        #: snapshots written here
        self._count = 0
        #: the newest snapshot has no diagnosis yet
        self._is_undiagnosed = False
        #: the newest that was written or found whole here: its version, last update, and its files as they were then
        self._newest: tuple[str, int, str | None] = ("", -1, None)

    def _left_s(self, share: float) -> float:
        """Seconds until the next snapshot may be written."""
        interval = max(self.settings.learning.snapshot_interval_s, min(share * self._took_s, _LONGEST_S))
        return self._at + interval - time.monotonic()

    def wait(self) -> None:
        """Wait until the interval is over: drains that follow each other closely become one."""
        time.sleep(max(0.0, self._left_s(_SHARE)))

    def publish(
        self, policy: Policy, *, last_seq: int, encoder_hash: str, force: bool, is_behind: bool = False
    ) -> None:
        """Write a snapshot and notify the routers, if there are new updates and (unless forced) the interval is over.

        is_behind: a backlog is learned; snapshots are then written less often.
        """
        now, began = self.clock(), time.monotonic()
        if not force and self._left_s(_SHARE_OF_BACKLOG if is_behind else _SHARE) > 0.0:
            return
        version, written_seq, fingerprint = self._newest
        if written_seq == last_seq and fingerprint is not None and self.files.fingerprint(version) == fingerprint:
            return
        info, tensors, described = pack(
            policy, label=self.ledger.label, last_seq=last_seq, encoder_hash=encoder_hash, now=now
        )
        most = self.settings.learning.snapshots_kept
        of: dict[str, Any] = {"algorithm": policy.algorithm, "params": policy.params, "encoder_hash": encoder_hash}
        known = self.ledger.latest_snapshots(limit=most + 1, **of)
        if not (known and known[0].version == info.version and self._is_whole(known[0])):
            self.ledger.database.check_file()  # a folder that was moved away is not made again for a snapshot
            self.files.write(info, tensors, described)
            self.ledger.add_snapshot(info)
            self._at = time.monotonic()
            self._took_s = self._at - began
            self._prune_files(info, known=[one for one in known if one.version != info.version], of=of)
            self._forget_rows(info)
            self.announce(info)
            self._is_undiagnosed = True
        self._newest = info.version, last_seq, self.files.fingerprint(info.version)

    def diagnose(self, policy: Policy, *, encoder_hash: str) -> None:
        """Store how far the policy of the newest snapshot has learned, once; at intervals its frontier too."""
        if not self._is_undiagnosed:
            return
        settings, self._is_undiagnosed = self.settings, False
        texts = {"diagnosis": diagnose(self.ledger, policy, settings=settings, encoder_hash=encoder_hash)}
        if time.monotonic() >= self._frontier_due:
            self._frontier_due = time.monotonic() + EVERY_S
            texts["frontier"] = frontier_text(self.ledger, policy, settings=settings, encoder_hash=encoder_hash)
        self.ledger.note(**texts)

    def _is_whole(self, info: SnapshotInfo) -> bool:
        """True if the snapshot's files are there and the learner's own; reading them takes time."""
        try:
            self.files.load(info, encoder_hash=info.encoder_hash)
        except SnapshotError as error:
            log.warning(
                "the newest snapshot is written again", extra={"action": "snapshot_refused", "reason": str(error)}
            )
            return False
        return True

    def _prune_files(self, info: SnapshotInfo, *, known: Sequence[SnapshotInfo], of: Mapping[str, Any]) -> None:
        """Delete files of older snapshots, except the newest of those that are kept longer. known: older snapshots."""
        old = [one for one in known[self.settings.learning.snapshots_kept - 1 :] if not is_kept(one.last_seq)]
        if is_kept(info.last_seq):
            old += self.ledger.latest_snapshots(limit=KEPT_MOST + 1, kept=True, **of)[KEPT_MOST:]
        self.files.prune([one.version for one in old])

    def _forget_rows(self, ours: SnapshotInfo) -> None:
        """Prune the rows of old snapshots, at the first snapshot made here and at every FORGET_EVERY-th after it."""
        self._count += 1
        if self._count % FORGET_EVERY != 1:
            return
        gone = self.ledger.prune_snapshots()
        # `_prune_files` has deleted the files of this policy; files of a former policy stayed when it was replaced.
        others = [one for one in gone if _maker(one) != _maker(ours)]
        self.files.prune([one.version for one in others])


def _maker(info: SnapshotInfo) -> tuple[object, ...]:
    return info.algorithm, dict(info.params), info.encoder_hash


def needs_rebuild(ledger: Ledger, *, files: SnapshotFiles, policy: Policy) -> bool:
    """Whether the ledger has updates, and none of the policy's newest snapshots is there. Contents are not checked."""
    newest = ledger.latest_snapshots(
        limit=TRIES, algorithm=policy.algorithm, params=policy.params, encoder_hash=ledger.encoder_hash()
    )
    return ledger.last_seq() > 0 and not any(files.exists(info.version) for info in newest)


def find_interim(
    ledger: Ledger, *, files: SnapshotFiles, settings: Settings, encoder_hash: str
) -> tuple[Policy, SnapshotInfo]:
    """What decides until the learner has learned the policy again, and its snapshot, which the database knows.

    Raises StoreError, and SnapshotError if files cannot be written.
    """
    incumbent = settings.policy.incumbent
    for info in ledger.snapshots_to_try():
        keeps_promise = incumbent in (None, info.params.get("incumbent"))
        if keeps_promise and info.last_seq > 0 and info.encoder_hash in ("", encoder_hash):
            try:
                return files.load(info, encoder_hash=info.encoder_hash)[0], info
            except SnapshotError:
                continue
    wanted = settings.policy.fallback if incumbent is None else incumbent
    arm = fallback_arm(wanted, arms=[ArmName(name) for name in settings.arms])
    fixed = protected("fixed", params={"arm": arm}, settings=settings.policy)
    info, tensors, described = pack(fixed, label=ledger.label, last_seq=0, encoder_hash="", now=time.time())
    files.write(info, tensors, described)
    ledger.add_snapshot(info)
    return fixed, info
