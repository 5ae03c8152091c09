"""No name leads out of a place, and only what was created in it is taken away."""

import os
import resource

import pytest

from ragbandit.router.retention.places import Place, copy_file, sha256_of


@pytest.fixture
def place(tmp_path):
    """A place with a file `folder/file`, beside a folder with a file `secret`, to which links in it lead."""
    (tmp_path / "place" / "folder").mkdir(parents=True)
    (tmp_path / "place" / "folder" / "file").write_text("inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("outside")
    (tmp_path / "place" / "link").symlink_to("../outside")
    (tmp_path / "place" / "folder" / "link").symlink_to("../../outside/secret")
    (tmp_path / "place" / "folder" / "dangling").symlink_to("../../outside/new")
    return Place(str(tmp_path / "place"))


@pytest.mark.parametrize("name", ["link/secret", "folder/link", "folder/dangling", "link/new", "../outside/secret", ""])
def test_nothing_outside_is_read_written_or_removed(place, tmp_path, name):
    """A link in any part of a name, and a name that is not plain, is an error that names the file."""
    with pytest.raises(OSError) as failure, place.reading(name):  # noqa: PT011 - whichever the system gives
        pass
    assert failure.value.filename == f"{place.root}/{name}"
    with pytest.raises(OSError):  # noqa: PT011
        place.put(name, b"overwritten")
    if name.startswith(("link", "..")) or not name:
        with pytest.raises(OSError):  # noqa: PT011
            place.remove(name)
    assert [(each.name, each.read_text()) for each in (tmp_path / "outside").iterdir()] == [("secret", "outside")]


def test_links_are_followed_where_the_operator_may_have_set_them(place):
    """A store in use may have folders on other disks."""
    assert Place(place.root, follow_links=True).get("link/secret", most=100) == b"outside"


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_links_are_not_followed_under_a_url_of_this_machine(place, scheme):
    """file:// and local:// are read as the folders that they are."""
    url = Place(f"{scheme}://{place.root}")
    assert url.get("folder/file", most=100) == b"inside"
    with pytest.raises(OSError, match="link"):
        url.get("link/secret", most=100)


def test_a_pipe_is_no_file(tmp_path):
    """A pipe is refused at once, not waited for."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular"):
        sha256_of(Place(str(tmp_path)), "pipe")


@pytest.mark.parametrize("root", ["{}", "memory://places{}"])
def test_only_what_was_created_is_taken_away(tmp_path, root):
    """A file that was there is neither replaced nor removed; what was created is removed, half-written files too."""
    Place(root.format(tmp_path)).put("a/theirs", b"theirs")
    place = Place(root.format(tmp_path))
    place.put("a/mine", b"mine")
    place.put("b/c/mine", b"mine")
    with pytest.raises(RuntimeError), place.writing("b/half"):
        raise RuntimeError
    with pytest.raises(FileExistsError):
        place.put("a/theirs", b"mine")
    place.remove_created()
    assert place.names() == ["a/theirs"]
    assert place.get("a/theirs", most=100) == b"theirs"
    if not place.remote:
        assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_root_that_was_created_is_taken_away(tmp_path):
    """The folder itself goes too, if it was not there."""
    place = Place(str(tmp_path / "new"))
    place.put("a/b", b"mine")
    place.remove_created()
    assert list(tmp_path.iterdir()) == []


def test_a_file_larger_than_asked_is_not_read_whole(place):
    """A cap on what is read into memory is held."""
    assert place.get("folder/file", most=6) == b"inside"
    with pytest.raises(OSError, match="large"):
        place.get("folder/file", most=5)


def test_an_error_of_writing_names_the_file(tmp_path):
    """What fails after the file was opened, as on a full disk, says which file it was."""
    (tmp_path / "source").write_bytes(bytes(100_000))
    place, (soft, hard) = Place(str(tmp_path)), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(OSError, match="large") as failure:
            copy_file(place, "source", to=place, target="target")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert failure.value.filename == str(tmp_path / "target")
