"""A manifest is read from whoever wrote it: only names of files that a backup has are taken from it."""

import hashlib
import json

import pytest

from ragbandit.router.retention.manifest import DATABASE_FILE, FORMAT, MANIFEST_FILE, read_manifest
from ragbandit.router.retention.places import Place
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import InvalidInput, StoreError

SHA256 = "0" * 64


@pytest.fixture
def forge(tmp_path):
    """Writes a manifest of these names, changed as told, with a true sha256 of its own; the folder that holds it."""

    def write(*names, **changes):
        described = {
            "format": FORMAT,
            "taken_at": 0.0,
            "version": "0.0.0",
            "revision": "0001",
            "database": "sqlite",
            "rows": {},
            "files": [{"name": name, "bytes": 0, "sha256": SHA256} for name in (DATABASE_FILE, *names)],
            "left_out": [],
        } | changes
        seal = hashlib.sha256(canonical(json.loads(json.dumps(described))).encode(errors="replace")).hexdigest()
        (tmp_path / MANIFEST_FILE).write_text(json.dumps(described | {"sha256": seal}))
        return Place(str(tmp_path))

    return write


@pytest.mark.parametrize(
    "name",
    [
        "snapshots//etc/cron.d/evil",
        "/etc/cron.d/evil",
        "snapshots/../../evil",
        "snapshots/a/../../evil",
        "snapshots/./a",
        "snapshots/a/",
        "snapshots",
        "snapshots/",
        "../snapshots/a",
        "",
        "etc/passwd",
        "Snapshots/a",
        MANIFEST_FILE,
        "ragbandit.db",
        "snapshots/a\\..\\b",
        "indexes/C:evil",
        "indexes/C:/evil",
        "snapshots/a\0b",
        "snapshots/a\nb",
        "snapshots/a\x1b[2J",
        "snapshots/\x9b2J",
        DATABASE_FILE,
        f"{DATABASE_FILE}/a",
    ],
)
def test_a_name_that_no_backup_has_is_refused(forge, name):
    """A manifest with a name that is not plain, is not below a known folder, or stands twice is refused whole."""
    with pytest.raises(InvalidInput, match="names files that no backup has") as refused:
        read_manifest(forge("snapshots/fine.json", name))
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize("names", [("indexes/a", "indexes/a/b"), ("indexes/a/b/c", "indexes/a"), ("archive/a",) * 2])
def test_a_file_is_no_folder_and_stands_once(forge, names):
    """Two names of which one is the other, or a folder of the other, are refused."""
    with pytest.raises(InvalidInput, match=f"'{names[-1]}'|'{names[0]}'"):
        read_manifest(forge(*names))


def test_names_of_backups_are_taken(forge):
    """Plain names below the known folders pass, in any language and depth, and so does the configuration."""
    names = ["config.json", "snapshots/main-1-a.json", "archive/segment-000001/x.parquet", "indexes/über uns/a..b/.c"]
    assert [file.name for file in read_manifest(forge(*names)).files] == [DATABASE_FILE, *names]


@pytest.mark.parametrize(
    "changes",
    [
        {"files": []},
        {"files": [1]},
        {"files": [{"name": DATABASE_FILE, "bytes": -1, "sha256": SHA256}]},
        {"files": [{"name": DATABASE_FILE, "bytes": 0, "sha256": "0"}]},
        {"files": [{"name": DATABASE_FILE}]},
        {"files": None},
        {"rows": {"decisions": "many"}},
        {"taken_at": 1e300},
        {"revision": "head"},
        {"version": "\ud800"},
    ],
)
def test_a_manifest_of_another_form_is_damaged(forge, changes):
    """Values of other types and ranges, and a manifest without the database, are named as damage of the manifest."""
    with pytest.raises(StoreError, match="is damaged"):
        read_manifest(forge(**changes))


def test_a_manifest_that_is_nested_without_end_is_damaged(tmp_path):
    """JSON that is deeper than Python's stack is refused like any other damage."""
    (tmp_path / MANIFEST_FILE).write_text("[" * 100_000)
    with pytest.raises(StoreError, match="is damaged"):
        read_manifest(Place(str(tmp_path)))


def test_another_manifest_than_the_expected_one_is_not_parsed(forge, tmp_path):
    """The sha256 of the file is compared before anything in it is looked at, in capitals as well."""
    place = forge()
    actual = hashlib.sha256((tmp_path / MANIFEST_FILE).read_bytes()).hexdigest()
    assert read_manifest(place, expect=actual.upper()).revision == "0001"
    (tmp_path / MANIFEST_FILE).write_text("no JSON")
    with pytest.raises(InvalidInput, match="not the expected one"):
        read_manifest(place, expect=actual)


def test_a_manifest_that_is_a_link_is_refused(forge, tmp_path):
    """A link is told from a missing manifest."""
    place = forge()
    (tmp_path / MANIFEST_FILE).rename(tmp_path / "elsewhere")
    (tmp_path / MANIFEST_FILE).symlink_to("elsewhere")
    with pytest.raises(StoreError, match="link"):
        read_manifest(place)
