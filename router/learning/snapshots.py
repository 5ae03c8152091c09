"""Snapshots: a policy's state as safetensors and JSON, written atomically, checked when loaded. Never pickle.

A snapshot is a cache of the ledger: lose it and the learner makes the same bytes again. Its sha256 covers the
tensors and the facts, so that two policies with one sha256 are the same policy.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy, restored
from ragbandit.router.storage.ledgers.registration import OTHER_ENCODER
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import ConfigError, SnapshotError
from ragbandit.shared.files import Folder
from ragbandit.shared.types import PolicyLabel, SnapshotInfo

#: of the JSON file; another number is refused
FORMAT = 1
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
    info = SnapshotInfo(
        version=f"{label}-{last_seq}-{sha256[:12]}",
        policy=label,
        algorithm=policy.algorithm,
        params=dict(policy.params),
        last_seq=last_seq,
        sha256=sha256,
        encoder_hash=encoder_hash,
        made_at=now,
    )
    return info, tensors, described


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

    def load(self, known: SnapshotInfo, *, encoder_hash: str | None = None) -> tuple[Policy, SnapshotInfo]:
        """The policy of a snapshot that the database knows, after all checks: those of `load_named`, and its sha256.

        Files that carry another sha256 than the database has are refused, however well they fit each other: whoever
        can write to the folder could make them. Raises SnapshotError saying what is wrong.
        """
        return self._load(known.version, sha256=known.sha256, encoder_hash=encoder_hash)

    def load_named(self, version: str) -> tuple[Policy, SnapshotInfo]:
        """The policy of a snapshot of which no database is at hand: format, sha256, shapes, finite numbers.

        The sha256 must begin as the version's name ends. Only `ragbandit replay` may use it: nothing decides by it.
        Raises SnapshotError saying what is wrong.
        """
        return self._load(version, sha256=None, encoder_hash=None)

    def _load(self, version: str, *, sha256: str | None, encoder_hash: str | None) -> tuple[Policy, SnapshotInfo]:
        """sha256 None: unknown, the version's name has its beginning. encoder_hash None skips the encoder check."""
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
        info = SnapshotInfo(
            version=version,
            policy=described["policy"],
            algorithm=described["algorithm"],
            params=described["params"],
            last_seq=described["last_seq"],
            sha256=actual,
            encoder_hash=described["encoder_hash"],
            made_at=made_at,
        )
        return policy, info

    def exists(self, version: str) -> bool:
        """True if both files are there; `load` checks their content."""
        return all(self._folder.exists(name) for name in _names(version))

    def fingerprint(self, version: str) -> str | None:
        """Another text after the files were written again, by whomever; None if one is missing. Reads no content."""
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
