"""Snapshots: a policy's state as safetensors and JSON, written atomically and checked when it is loaded.

A snapshot is a cache of the ledger: the learner can make the same bytes again. Its sha256 covers tensors and facts, so
two policies with the same sha256 are equal.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors, save as save_tensors

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy, copy_policy, restore_policy
from ragbandit.router.storage.ledgers.inheritance import OTHER_ENCODER
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import ConfigError, SnapshotError
from ragbandit.shared.files import Folder
from ragbandit.shared.types import PolicyLabel, SnapshotInfo

FORMAT = 1
_DESCRIBED: Final = ("policy", "algorithm", "params", "last_seq", "encoder_hash")
#: valid names of snapshots. A name becomes part of a path, and comes from the database, which others may have written
_NAME: Final = re.compile(r"\w[\w.-]{0,199}", re.ASCII)
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


def snapshot_sha256(policy: Policy, *, info: SnapshotInfo) -> str:
    """sha256 of a snapshot of this policy with the label, last update and encoder of `info`."""
    same = pack(policy, label=info.policy, last_seq=info.last_seq, encoder_hash=info.encoder_hash, now=0.0)
    return same[0].sha256


def _sha256(tensors: bytes, described: Mapping[str, Any]) -> str:
    return hashlib.sha256(tensors + canonical(dict(described)).encode()).hexdigest()


class SnapshotFiles:
    """The folder of the snapshots: a local folder or a URL that fsspec supports (s3://, gs://, memory://)."""

    def __init__(self, root: str, *, hands_over: bool = False) -> None:
        """hands_over: whether `load` may return a copy of the last written policy instead of reading its file, for a
        process that learns and serves.
        """
        self.root = root
        self._folder = Folder(root, field="snapshots")
        self._hands_over = hands_over
        #: the snapshot that was written last, with a copy of its policy, until it is loaded
        self._newest: tuple[SnapshotInfo, Policy] | None = None

    def write(
        self, info: SnapshotInfo, tensors: bytes, described: Mapping[str, Any], *, policy: Policy | None = None
    ) -> None:
        """Write the tensor file, then the JSON file, which makes the snapshot valid. Raises SnapshotError.

        policy: the policy that was packed, to be handed over
        """
        text = json.dumps(dict(described) | {"sha256": info.sha256, "made_at": info.made_at})
        json_name, tensor_name = _names(info.version)
        try:
            self._folder.put(tensor_name, tensors)
            self._folder.put(json_name, text.encode())
        except OSError as error:
            raise SnapshotError(f"{self.root} cannot be written: {error}", field="snapshots") from error
        copy = copy_policy(policy) if policy is not None and self._hands_over else None
        self._newest = None if copy is None else (info, copy)

    def load(self, known: SnapshotInfo | str, *, encoder_hash: str | None = None) -> tuple[Policy, SnapshotInfo]:
        """Load a policy after checking format, sha256, encoder, shapes and finite numbers. Raises SnapshotError.

        known: the snapshot's row in the database, whose sha256 the files must have, because others may write into the
            folder. `ragbandit replay`, which makes no decisions, gives the version's name, with 12 digits of the sha256
        encoder_hash: the required encoder; None accepts any encoder
        """
        newest, self._newest = self._newest, None
        if newest is not None and isinstance(known, SnapshotInfo) and newest[0].sha256 == known.sha256:
            return newest[1], newest[0]
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
            policy = restore_policy(untrained, dict(load_tensors(tensors)), described["facts"])
        except (ConfigError, SafetensorError) as error:  # the sha256 is right, so another release wrote this file
            raise SnapshotError(f"{version} cannot be used here: {error}", remedy=_REMAKE) from error
        return policy, _info(described, version=version, sha256=actual, made_at=made_at)

    def exists(self, version: str) -> bool:
        """Whether both files exist; False for a name that `load` refuses."""
        return _is_plain(version) and all(self._folder.exists(name) for name in _names(version))

    def fingerprint(self, version: str) -> str | None:
        """A text that changes if the files are written again; None if a file is missing. Does not read the files.

        Raises SnapshotError for a name that is not plain.
        """
        try:
            return " ".join(self._folder.fingerprint(name) for name in _names(version))
        except OSError:
            return None

    def prune(self, versions: list[str]) -> None:
        for version in filter(_is_plain, versions):  # no file was written under another name
            for name in _names(version):
                self._folder.remove(name)

    def _read(self, version: str) -> tuple[bytes, dict[str, Any]]:
        json_name, tensor_name = _names(version)
        try:
            tensors, described = self._folder.get(tensor_name), json.loads(self._folder.get(json_name))
        except (OSError, ValueError) as error:
            raise SnapshotError(f"{version} cannot be read from {self.root}: {error}", remedy=_REMAKE) from error
        if not isinstance(described, dict):
            raise SnapshotError(f"{version}.json is not a JSON object", remedy=_REMAKE)
        return tensors, described


def _is_plain(version: str) -> bool:
    return _NAME.fullmatch(version) is not None


def _names(version: str) -> tuple[str, str]:
    """Returns (name of the JSON file, name of the tensor file). Raises SnapshotError for a name that is not plain."""
    if not _is_plain(version):
        message = f"{version[:200]!r} is not the name of a snapshot, so no file of that name is used"
        remedy = "find out who wrote to the database; the learner makes a new snapshot from the ledger"
        raise SnapshotError(message, remedy=remedy)
    return f"{version}.json", f"{version}.safetensors"
