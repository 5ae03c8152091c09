"""Snapshots are written atomically and checked when they are loaded; a refusal contains a remedy."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from safetensors.numpy import save as save_tensors

from ragbandit.router.learning.snapshots import SnapshotFiles, pack
from ragbandit.router.policies.algorithms.fixed import Uniform
from ragbandit.router.policies.algorithms.mba import MbaRag
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import SnapshotError
from ragbandit.shared.files import Folder
from ragbandit.testing.policies import LABEL, made_updates, pmf_of, sha_of, taught
from tests.support.examples import steady

ENCODER = "0123456789abcdef" * 4


def taught_mba(count=20, **params):
    return taught(lambda: MbaRag(**params), made_updates(count))


def packed(policy=None, *, last_seq=20, encoder_hash=ENCODER):
    return pack(policy or taught_mba(), label=LABEL, last_seq=last_seq, encoder_hash=encoder_hash, now=12.5)


@pytest.fixture
def files(tmp_path):
    return SnapshotFiles(str(tmp_path / "snapshots"))


@pytest.fixture
def written(files):
    """(files, info) with one snapshot of a taught policy."""
    info, tensors, described = packed()
    files.write(info, tensors, described)
    return files, info


def refused(files, info, *, encoder_hash=ENCODER):
    with pytest.raises(SnapshotError) as caught:
        files.load(info, encoder_hash=encoder_hash)
    assert repr(info.version)[1:-1][:200] in caught.value.message
    assert caught.value.remedy, "the error has no remedy"
    return caught.value


@pytest.mark.parametrize(
    "name", ["../outside", "../../etc/x", "/outside", "a/b", "..", "", "a\\b", "a\0b", "a\n", "x" * 201]
)
def test_a_name_that_is_not_plain_becomes_no_path(written, tmp_path, name):
    """A snapshot whose name in the database leads elsewhere is neither read, written nor deleted."""
    files, info = written
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    error = refused(files, replace(info, version=name))
    assert "is not the name of a snapshot" in error.message
    with pytest.raises(SnapshotError):
        files.write(replace(info, version=name), b"", {})
    files.prune([name])
    assert (files.exists(name), files.exists(info.version), outside.read_text()) == (False, True, "{}")


def rewritten(files, info, **changes):
    """Change keys of the JSON file, None removing one."""
    path = Path(files.root, f"{info.version}.json")
    described = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in described.items() if value is not None}))


def forged(files, info, *, tensors=None, **changes):
    """Change the files and recompute their sha256; returns the row that the database of the author would have."""
    path = Path(files.root, f"{info.version}.json")
    described = json.loads(path.read_text()) | changes
    made_at = described.pop("made_at")
    described.pop("sha256")
    if tensors is not None:
        Path(files.root, f"{info.version}.safetensors").write_bytes(tensors)
    body = Path(files.root, f"{info.version}.safetensors").read_bytes()
    sha256 = hashlib.sha256(body + canonical(described).encode()).hexdigest()
    path.write_text(json.dumps(described | {"sha256": sha256, "made_at": made_at}))
    return replace(info, sha256=sha256)


@pytest.fixture(params=["folder", "memory"])
def any_files(request, tmp_path):
    """Snapshot files in a local folder, and under a URL of fsspec."""
    return SnapshotFiles(
        str(tmp_path / "snapshots") if request.param == "folder" else f"memory://{request.node.name}/deep"
    )


def test_round_trip(any_files):
    """A written snapshot loads as the same policy with the same identity; one that is missing or damaged is refused."""
    info, tensors, described = packed()
    refused(any_files, info)
    any_files.write(info, tensors[:-1] + b"\x07", described)
    assert "sha256" in refused(any_files, info).message
    any_files.write(info, tensors, described)
    policy, loaded = any_files.load(info, encoder_hash=ENCODER)
    assert loaded == info
    assert sha_of(policy) == sha_of(taught_mba())
    assert pmf_of(policy) == pmf_of(taught_mba())


def test_prune(any_files):
    """Pruning deletes the named snapshots' files, keeps the others, and minds no missing one."""
    old, new = packed(taught_mba(5), last_seq=5), packed()
    any_files.write(*old)
    any_files.write(*new)
    for _ in range(2):
        any_files.prune([old[0].version, "main-0-gone"])
    refused(any_files, old[0])
    assert any_files.load(new[0])[1] == new[0]


def test_fingerprint(any_files):
    """The fingerprint stays while nobody writes, changes when a file is written again, and ends with a file."""
    info, tensors, described = packed()
    assert any_files.fingerprint(info.version) is None
    any_files.write(info, tensors, described)
    before = any_files.fingerprint(info.version)
    assert before == any_files.fingerprint(info.version) is not None
    any_files.write(info, tensors + b"more", described)
    assert any_files.fingerprint(info.version) not in (before, None)
    any_files.prune([info.version])
    assert any_files.fingerprint(info.version) is None


@pytest.mark.parametrize(
    "other",
    [
        lambda: packed(taught_mba(21)),
        lambda: packed(taught_mba(ridge=9.0)),
        lambda: packed(Uniform()),
        lambda: packed(last_seq=21),
        lambda: packed(encoder_hash="f" * 64),
        lambda: pack(taught_mba(), label="other", last_seq=20, encoder_hash=ENCODER, now=12.5),
    ],
    ids=["updates", "params", "algorithm", "last_seq", "encoder", "label"],
)
def test_sha_covers_everything(other):
    """Updates, params, algorithm, last seq, encoder and label are all in the sha256."""
    assert other()[0].sha256 != packed()[0].sha256


@steady
@given(data=st.data())
def test_any_damaged_byte_is_refused(data, tmp_path_factory):
    """A tensor file with one byte changed, or cut anywhere, is refused."""
    files = SnapshotFiles(str(tmp_path_factory.mktemp("damaged")))
    info, tensors, described = packed()
    place = data.draw(st.integers(0, len(tensors) - 1))
    if data.draw(st.booleans()):
        spoilt = tensors[:place]
    else:
        spoilt = tensors[:place] + bytes([tensors[place] ^ data.draw(st.integers(1, 255))]) + tensors[place + 1 :]
    files.write(info, spoilt, described)
    assert "sha256" in refused(files, info).message


@pytest.mark.parametrize(
    "changes",
    [
        {"last_seq": 21},
        {"params": {"ridge": 9.0}},
        {"facts": {"updates": 21}},
        {"algorithm": "uniform"},
        {"policy": "other"},
        {"encoder_hash": "f" * 64},
        {"sha256": "0" * 64},
        {"sha256": None},
        {"facts": None},
        {"more": 1},
    ],
    ids=str,
)
def test_changed_facts_are_refused(written, changes):
    """A JSON file in which any fact was changed, removed or added is refused."""
    files, info = written
    rewritten(files, info, **changes)
    assert "damaged" in refused(files, info).message


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"algorithm": "from_the_future"}, "from_the_future"),
        ({"params": {"learning_rate": 0.1}}, "learning_rate"),
        ({"facts": {"updates": 20}}, "updates of each arm"),
        ({"tensors": b"no tensors"}, "cannot be used here"),
    ],
    ids=["algorithm", "params", "facts", "tensors"],
)
def test_what_another_version_wrote_is_refused(written, changes, word):
    """A policy, params, facts or tensors that this version does not know are refused, though the sha256 fits."""
    files, info = written
    with pytest.raises(SnapshotError, match=word):
        files.load(forged(files, info, **changes), encoder_hash=ENCODER)


def test_crash_between_the_files_leaves_no_snapshot(tmp_path, monkeypatch):
    """A process that dies after the tensors and before the JSON leaves no snapshot; writing again makes it whole."""
    put = Folder.put

    def dying(self, name, data):
        if name.endswith(".json"):
            raise KeyboardInterrupt
        put(self, name, data)

    info, tensors, described = packed()
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "put", dying)
        with pytest.raises(KeyboardInterrupt):
            SnapshotFiles(str(tmp_path)).write(info, tensors, described)
    files = SnapshotFiles(str(tmp_path))
    assert Path(tmp_path, f"{info.version}.safetensors").exists()
    refused(files, info)
    files.write(info, tensors, described)
    assert files.load(info, encoder_hash=ENCODER)[1] == info


def test_files_that_fit_each_other_are_not_enough(written):
    """Changed tensors with a recomputed sha256 are refused, since the database has another sha256."""
    files, info = written
    arrays = {name: array + ("newest" in name) for name, array in taught_mba().state()[0].items()}
    stranger = forged(files, info, tensors=save_tensors(arrays))
    error = refused(files, info)
    assert "the database has" in error.message
    assert "who wrote" in error.remedy
    assert files.load(stranger)[1].sha256 == stranger.sha256
    with pytest.raises(SnapshotError, match="its name has another one"):
        files.load(info.version)
