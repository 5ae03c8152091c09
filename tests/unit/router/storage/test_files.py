"""Files and folders that are whole or not there, and the arrays that are kept."""

import os

import numpy as np
import pytest

from ragbandit.shared.caches import cached_arrays
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.files import Folder, atomic_folder, check_root, private_socket, replace_folder, write_file
from tests.support.waiting import at_once


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_put_that_breaks_leaves_the_old_file(tmp_path, monkeypatch, error):
    """Where the write breaks off, the old content stays and nothing else is left."""
    file = tmp_path / "file"
    write_file(file, b"old", durable=False)

    def broken(handle):
        raise error

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(type(error)):
        write_file(file, b"new", durable=True)
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_folder_appears_when_it_is_whole(tmp_path):
    """The target is not there inside the block and has everything after it; an empty one may have been there."""
    for target in (tmp_path / "one" / "new", tmp_path / "two" / "empty"):
        if target.name == "empty":
            target.mkdir(parents=True)
        with atomic_folder(target) as work:
            (work / "file").write_text("text")
            assert not (target / "file").exists()
        assert (target / "file").read_text() == "text"
        assert list(target.parent.iterdir()) == [target]


def test_folder_in_use_stays(tmp_path):
    """A target with something in it is an OSError and stays as it is."""
    target = tmp_path / "used"
    target.mkdir()
    (target / "old").write_text("old")
    with pytest.raises(OSError, match="used"), atomic_folder(target) as work:
        (work / "new").write_text("new")
    assert [path.name for path in target.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [target]


class Counting:
    """Builds arrays that contain the number of builds so far."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return {"count": np.array([self.calls]), "one": np.array(2.5, dtype=np.float32), "none": np.zeros((0, 3))}


def same(found, *, count):
    """Whether these are the arrays of the build with that number, types and shapes too."""
    wanted = {"count": ("int64", (1,), [count]), "one": ("float32", (), 2.5), "none": ("float64", (0, 3), [])}
    return {name: (array.dtype.name, array.shape, array.tolist()) for name, array in found.items()} == wanted


def test_what_is_kept_is_made_once(tmp_path):
    """The second call reads the file, of the same types and shapes; another kind or key is made on its own."""
    build = Counting()
    for _ in range(3):
        assert same(cached_arrays("things", "a" * 64, build=build, cache=tmp_path), count=1)
    assert build.calls == 1
    assert same(cached_arrays("things", "b" * 64, build=build, cache=tmp_path), count=2)
    assert same(cached_arrays("others", "a" * 64, build=build, cache=tmp_path), count=3)
    assert same(cached_arrays("things", "a" * 64, build=build, cache=tmp_path), count=1)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == [
        f"{name}.safetensors" for name in (f"others/{'a' * 32}", f"things/{'a' * 32}", f"things/{'b' * 32}")
    ]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:20],
        lambda content: b"\xff" * len(content),
        lambda content: b"x" + content[1:],
    ],
    ids=["empty", "short", "header", "noise", "length"],
)
def test_damaged_file_is_made_again(tmp_path, damage):
    """A damaged safetensors file is replaced by a new one, which is read next time."""
    build = Counting()
    cached_arrays("things", "a" * 64, build=build, cache=tmp_path)
    file = next(tmp_path.rglob("*.safetensors"))
    file.write_bytes(damage(file.read_bytes()))
    assert same(cached_arrays("things", "a" * 64, build=build, cache=tmp_path), count=2)
    assert same(cached_arrays("things", "a" * 64, build=build, cache=tmp_path), count=2)
    assert build.calls == 2
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_many_at_once_keep_one_whole_file(tmp_path):
    """Several that start together each get the arrays, and one whole file is left."""
    found, build = [], Counting()
    at_once(*[lambda: found.append(cached_arrays("things", "a" * 64, build=build, cache=tmp_path))] * 8)
    assert len(found) == 8
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    calls = build.calls
    last = cached_arrays("things", "a" * 64, build=build, cache=tmp_path)
    assert (len(files), build.calls, last["one"].tolist()) == (1, calls, 2.5)


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_takes_the_place_of_another(tmp_path, there):
    """The new folder stands where the old one was, and nothing else is left, also of a process that was killed."""
    new, target = tmp_path / "new", tmp_path / "index"
    new.mkdir()
    (tmp_path / f".index.old-{os.getpid()}" / "rest").mkdir(parents=True)
    (new / "file").write_text("new")
    if there:
        target.mkdir()
        (target / "old").write_text("old")
    replace_folder(target, source=new)
    assert [path.name for path in target.iterdir()] == ["file"]
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_a_url_that_cannot_be_used_is_refused(monkeypatch):
    """Where the file system is unknown, or its package is missing, the error names the setting and what to install."""
    from fsspec.registry import known_implementations

    monkeypatch.setitem(known_implementations, "nowhere", {"class": "no_such_package.System", "err": "install it"})
    for url, said in (("nowhere://bucket/x", "pip install no_such_package"), ("strange://bucket/x", "fsspec knows")):
        with pytest.raises(ConfigError) as looked:
            check_root(url, field="snapshots")
        with pytest.raises(ConfigError) as read:
            Folder(url, field="snapshots").get("a")
        for refused in (looked.value, read.value):
            assert refused.field == "snapshots"
            assert said in (refused.remedy or "")
    for fine in ("/a/folder", "memory://folder", "file:///a"):
        check_root(fine, field="snapshots")


@pytest.mark.parametrize("size", [20, 90])
def test_the_path_of_a_socket_fits_its_limit(monkeypatch, size):
    """With a long TMPDIR the socket of a server is in /tmp, since its path may have 107 bytes."""
    monkeypatch.setattr("tempfile.tempdir", "/" + "t" * size)
    path = private_socket("data")
    assert len(str(path)) <= 107
    assert str(path.parent) == ("/tmp" if size > 80 else f"/{'t' * size}")


def test_a_user_who_can_write_no_temporary_files_is_told_where_to(monkeypatch):
    """A root file system that is read-only, with nothing at /tmp, is an error of TMPDIR, and not a traceback."""
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/proc"])
    with pytest.raises(ConfigError, match="no folder of temporary files") as caught:
        private_socket("data")
    assert (caught.value.field, "/tmp" in str(caught.value.remedy)) == ("TMPDIR", True)
