"""Snapshots: a policy's state as safetensors and JSON, written atomically and checked when it is loaded.

A snapshot is a cache of the ledger: the learner can make the same bytes again. Its sha256 covers tensors and facts, so
two policies with the same sha256 are equal.
"""

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
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

FORMAT = 1
_DESCRIBED: Final = ("policy", "algorithm", "params", "last_seq", "encoder_hash")
_REMAKE = "delete the snapshots folder: the learner makes it again from the ledger"


def pack(
    policy: Policy, *, label: PolicyLabel, last_seq: int, encoder_hash: str, now: float
) -> tuple[SnapshotInfo, bytes, dict[str, Any]]:
    """Make a snapshot. Returns (its row for the database, the tensor file, the content of the JSON file)."""
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


def _info(described: Mapping[str, Any], **fields: Any) -> SnapshotInfo:
    return SnapshotInfo(**{name: described[name] for name in _DESCRIBED}, **fields)


def policy_sha256(policy: Policy, *, label: PolicyLabel, last_seq: int, encoder_hash: str) -> str:
    return pack(policy, label=label, last_seq=last_seq, encoder_hash=encoder_hash, now=0.0)[0].sha256


def _sha256(tensors: bytes, described: Mapping[str, Any]) -> str:
    return hashlib.sha256(tensors + canonical(dict(described)).encode()).hexdigest()


class SnapshotFiles:
    """The folder of the snapshots: a local folder or a URL that fsspec supports (s3://, gs://, memory://)."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._folder = Folder(root, field="snapshots")

    def write(self, info: SnapshotInfo, tensors: bytes, described: Mapping[str, Any]) -> None:
        """Write the tensor file, then the JSON file, which makes the snapshot valid. Raises SnapshotError."""
        text = json.dumps(dict(described) | {"sha256": info.sha256, "made_at": info.made_at}, indent=1)
        try:
            self._folder.put(f"{info.version}.safetensors", tensors)
            self._folder.put(f"{info.version}.json", text.encode())
        except OSError as error:
            raise SnapshotError(f"{self.root} cannot be written: {error}", field="snapshots") from error

    def load(self, known: SnapshotInfo | str, *, encoder_hash: str | None = None) -> tuple[Policy, SnapshotInfo]:
        """Load a policy after checking format, sha256, encoder, shapes and finite numbers. Raises SnapshotError.

        known: the snapshot's row in the database, whose sha256 the files must have, because others may write into the
            folder. `ragbandit replay`, which makes no decisions, gives the version's name, with 12 digits of the sha256
        encoder_hash: the required encoder; None accepts any encoder
        """
        version, sha256 = (known, None) if isinstance(known, str) else (known.version, known.sha256)
        tensors, described = self._read(version)
        claimed, made_at = described.pop("sha256", None), described.pop("made_at", 0.0)
        if described.get("format") != FORMAT:
            message = f"{version} has format {described.get('format')!r}, this version reads {FORMAT}"
            raise SnapshotError(message, remedy=_REMAKE)
        actual = _sha256(tensors, described)
        if actual != claimed:
            raise SnapshotError(f"{version} is damaged: its sha256 does not match", remedy="delete its two files")
        is_genuine = actual == sha256 if sha256 else version.endswith(actual[:12])
        if not is_genuine:
            expected = f"the database has {sha256[:12]}" if sha256 else "its name has another one"
            raise SnapshotError(
                f"{version} is not the snapshot that the learner made: its files have the sha256 {actual[:12]}, "
                f"{expected}",
                remedy="find out who wrote to the snapshots folder; the learner makes it again from the ledger",
            )
        if encoder_hash is not None and described["encoder_hash"] != encoder_hash:
            message = f"{version} was made with encoder {described['encoder_hash'][:12]}, not {encoder_hash[:12]}"
            raise SnapshotError(message, field="encoder", remedy=OTHER_ENCODER)
        try:
            untrained = make_policy(described["algorithm"], params=described["params"])
            policy = restored(untrained, dict(load_tensors(tensors)), described["facts"])
        except (ConfigError, SafetensorError) as error:  # the sha256 is right, so another release wrote it
            raise SnapshotError(f"{version} cannot be used here: {error}", remedy=_REMAKE) from error
        return policy, _info(described, version=version, sha256=actual, made_at=made_at)

    def exists(self, version: str) -> bool:
        return all(self._folder.exists(name) for name in _names(version))

    def fingerprint(self, version: str) -> str | None:
        """A text that changes if the files are written again; None if a file is missing. Does not read the files."""
        try:
            return " ".join(self._folder.fingerprint(name) for name in _names(version))
        except OSError:
            return None

    def prune(self, versions: list[str]) -> None:
        for version in versions:
            for name in _names(version):
                self._folder.remove(name)

    def _read(self, version: str) -> tuple[bytes, dict[str, Any]]:
        try:
            tensors = self._folder.get(f"{version}.safetensors")
            described = json.loads(self._folder.get(f"{version}.json"))
        except (OSError, ValueError) as error:
            raise SnapshotError(f"{version} cannot be read from {self.root}: {error}", remedy=_REMAKE) from error
        if not isinstance(described, dict):
            raise SnapshotError(f"{version}.json is not a JSON object", remedy=_REMAKE)
        return tensors, described


def _names(version: str) -> tuple[str, str]:
    return f"{version}.json", f"{version}.safetensors"


log = logging.getLogger("ragbandit.learner")

#: pause after a snapshot, in multiples of the time that writing it took, so that other work gets the machine
_PAUSE: Final = 4.0
_PAUSE_IN_BACKLOG: Final = 25.0
_LONGEST_S: Final = 20.0
#: old snapshot rows are pruned once every 100 snapshots
FORGET_EVERY = 100


class Publisher:
    def __init__(
        self,
        ledger: Ledger,
        *,
        files: SnapshotFiles,
        settings: Settings,
        announce: Callable[[SnapshotInfo], None],
        clock: Callable[[], float],
    ) -> None:
        self.ledger, self.files = ledger, files
        self.settings = settings
        self.announce, self.clock = announce, clock
        self._written_at = -math.inf
        self._took_s = 0.0
        self._frontier_due = -math.inf
        self._count = 0
        self._is_undiagnosed = False
        #: (version, last update, fingerprint of the files) of the newest snapshot that was written or checked here
        self._newest: tuple[str, int, str | None] = ("", -1, None)

    def _remaining_s(self, pause: float) -> float:
        """Seconds until the next snapshot may be written. pause: multiple of the time that the last snapshot took."""
        interval = max(self.settings.learning.snapshot_interval_s, min(pause * self._took_s, _LONGEST_S))
        return self._written_at + interval - time.monotonic()

    def wait(self) -> None:
        """Wait until the next snapshot may be written, so that several notifications lead to one call of `drain`."""
        time.sleep(max(0.0, self._remaining_s(_PAUSE)))

    def publish(
        self, policy: Policy, *, last_seq: int, encoder_hash: str, force: bool, is_behind: bool = False
    ) -> None:
        """Write a snapshot and notify the routers, if there are new updates and the pause is over.

        force: ignore the pause. is_behind: a backlog is being learned, which makes the pause longer.
        """
        now, began = self.clock(), time.monotonic()
        if not force and self._remaining_s(_PAUSE_IN_BACKLOG if is_behind else _PAUSE) > 0.0:
            return
        version, written_seq, fingerprint = self._newest
        if written_seq == last_seq and fingerprint is not None and self.files.fingerprint(version) == fingerprint:
            return
        info, tensors, described = pack(
            policy, label=self.ledger.label, last_seq=last_seq, encoder_hash=encoder_hash, now=now
        )
        limit = self.settings.learning.snapshots_kept + 1
        maker: dict[str, Any] = {"algorithm": policy.algorithm, "params": policy.params, "encoder_hash": encoder_hash}
        stored = self.ledger.latest_snapshots(limit=limit, **maker)
        if not (stored and stored[0].version == info.version and self._is_whole(stored[0])):
            self.ledger.database.check_file()  # raises if the data folder was moved: writing would create a new one
            self.files.write(info, tensors, described)
            self.ledger.add_snapshot(info)
            self._written_at = time.monotonic()
            self._took_s = self._written_at - began
            self._prune_files(info, older=[old for old in stored if old.version != info.version], maker=maker)
            self._forget_rows(info)
            self.announce(info)
            self._is_undiagnosed = True
        self._newest = info.version, last_seq, self.files.fingerprint(info.version)

    def diagnose(self, policy: Policy, *, encoder_hash: str) -> None:
        """Store the diagnosis of a new snapshot and, at most every EVERY_S seconds, the frontier. Else do nothing."""
        if not self._is_undiagnosed:
            return
        settings, self._is_undiagnosed = self.settings, False
        texts = {"diagnosis": diagnose(self.ledger, policy, settings=settings, encoder_hash=encoder_hash)}
        if time.monotonic() >= self._frontier_due:
            self._frontier_due = time.monotonic() + EVERY_S
            texts["frontier"] = frontier_text(self.ledger, policy, settings=settings, encoder_hash=encoder_hash)
        self.ledger.note(**texts)

    def _is_whole(self, info: SnapshotInfo) -> bool:
        """Whether the snapshot's files have the right content. Reads the files, which takes time."""
        try:
            self.files.load(info, encoder_hash=info.encoder_hash)
        except SnapshotError as error:
            details = {"action": "snapshot_refused", "reason": str(error)}
            log.warning("the newest snapshot is written again", extra=details)
            return False
        return True

    def _prune_files(self, info: SnapshotInfo, *, older: Sequence[SnapshotInfo], maker: Mapping[str, Any]) -> None:
        old = [item for item in older[self.settings.learning.snapshots_kept - 1 :] if not is_kept(item.last_seq)]
        if is_kept(info.last_seq):
            old += self.ledger.latest_snapshots(limit=KEPT_MOST + 1, kept=True, **maker)[KEPT_MOST:]
        self.files.prune([item.version for item in old])

    def _forget_rows(self, newest: SnapshotInfo) -> None:
        self._count += 1
        if self._count % FORGET_EVERY != 1:
            return
        # `_prune_files` has deleted the files of this policy, but not the files of earlier policies.
        former = [info for info in self.ledger.prune_snapshots() if _maker(info) != _maker(newest)]
        self.files.prune([info.version for info in former])


def _maker(info: SnapshotInfo) -> tuple[object, ...]:
    return info.algorithm, dict(info.params), info.encoder_hash


def sha256_after(policy: Policy, *, info: SnapshotInfo) -> str:
    """sha256 of a snapshot of this policy with the label, last update and encoder of `info`."""
    return policy_sha256(policy, label=info.policy, last_seq=info.last_seq, encoder_hash=info.encoder_hash)


def difference(policy: Policy, *, files: SnapshotFiles, info: SnapshotInfo) -> float | None:
    """Largest relative difference between a relearned policy and a snapshot; None if the files were deleted."""
    if sha256_after(policy, info=info) == info.sha256:
        return 0.0
    if not files.exists(info.version):
        return None
    stored, _ = files.load(info)
    return _largest_difference(policy.state(), stored.state())


def _largest_difference(a: Any, b: Any) -> float:
    """Largest relative difference between two policy states; infinity if names, shapes, types or other values differ.

    Arrays are compared row by row, so that large rows do not hide small ones: the Euclidean length of the difference is
    divided by the length of the longer row. An array with one axis is one row. The difference of two floats is divided
    by the larger absolute value, or by 1 if both are smaller.
    """
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return _array_difference(a, b)
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        return max((_largest_difference(a[key], b[key]) for key in a), default=0.0)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return max(map(_largest_difference, a, b), default=0.0)
    if isinstance(a, float) and isinstance(b, float) and a != b:
        return abs(a - b) / max(1.0, abs(a), abs(b))
    return 0.0 if a == b else math.inf


def _array_difference(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    if a.shape != b.shape or a.dtype != b.dtype or not np.issubdtype(a.dtype, np.floating):
        return 0.0 if a.dtype == b.dtype and np.array_equal(a, b) else math.inf
    if not a.size:
        return 0.0
    rows = len(a) if a.ndim > 1 else 1
    first, second = (array.astype(np.float64).reshape(rows, -1) for array in (a, b))
    length = np.maximum(np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1))
    worst = float((np.linalg.norm(first - second, axis=1) / np.where(length > 0.0, length, 1.0)).max(initial=0.0))
    return worst if math.isfinite(worst) else math.inf


def needs_rebuild(ledger: Ledger, *, files: SnapshotFiles, policy: Policy) -> bool:
    """Whether the ledger has updates, but none of the policy's newest snapshots has both its files."""
    newest = ledger.latest_snapshots(
        limit=TRIES, algorithm=policy.algorithm, params=policy.params, encoder_hash=ledger.encoder_hash()
    )
    return ledger.last_seq() > 0 and not any(files.exists(info.version) for info in newest)


def find_interim(
    ledger: Ledger, *, files: SnapshotFiles, settings: Settings, encoder_hash: str
) -> tuple[Policy, SnapshotInfo]:
    """Find a policy that decides until the configured policy is learned. Returns (policy, its stored snapshot).

    It is the newest usable policy of the ledger or, if there is none, a policy that always plays the incumbent (without
    an incumbent, the fallback arm).
    """
    incumbent = settings.policy.incumbent
    for info in ledger.snapshots_to_try():
        keeps_promise = incumbent in (None, info.params.get("incumbent"))
        if keeps_promise and info.last_seq > 0 and info.encoder_hash in ("", encoder_hash):
            try:
                return files.load(info, encoder_hash=info.encoder_hash)[0], info
            except SnapshotError:
                continue
    preferred = settings.policy.fallback if incumbent is None else incumbent
    arm = fallback_arm(preferred, arms=[ArmName(name) for name in settings.arms])
    fixed = protected("fixed", params={"arm": arm}, settings=settings.policy)
    info, tensors, described = pack(fixed, label=ledger.label, last_seq=0, encoder_hash="", now=time.time())
    files.write(info, tensors, described)
    ledger.add_snapshot(info)
    return fixed, info
