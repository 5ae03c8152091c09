"""JSON Lines: one reader, which names the line, and files that are whole or not there."""

import gzip
import os
import stat

import pytest

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.files import atomic_file
from ragbandit.shared.json_lines import lines, locate_errors, new_lines, parse_line


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "packed-without-its-name.jsonl"])
def test_lines_have_their_numbers(tmp_path, name):
    """Blank lines are counted but skipped; a byte order mark is removed; gzip is recognised by name or content."""
    data, path = b'\xef\xbb\xbf{"a": 1}\n\n{"b": 2}\n', tmp_path / name
    path.write_bytes(data if name == "rows.jsonl" else gzip.compress(data))
    assert [(number, parse_line(raw)) for number, raw in lines(path)] == [(1, {"a": 1}), (3, {"b": 2})]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not UTF-8: its byte 1 is 0xff"),
        (b"[1]", "is a list"),
        (b'{"a": 1, "a": 2}', "stands twice"),
    ],
)
def test_a_bad_line_is_named(tmp_path, raw, said):
    """What is no JSON object is refused with the file and the line, and keeps its remedy."""
    with pytest.raises(InvalidInput, match=said) as caught, locate_errors(tmp_path / "f", line=7):
        parse_line(raw)
    assert caught.value.field == f"{tmp_path / 'f'}:7"
    assert caught.value.remedy


def test_an_error_leaves_no_file(tmp_path):
    """A block that fails leaves neither the new file nor a part of it, and an old file as it was."""
    old = tmp_path / "old.jsonl"
    old.write_bytes(b"old")

    def broken(path):
        with new_lines(path) as out:
            out.write(b"half")
            raise RuntimeError

    for path in (old, tmp_path / "new.jsonl"):
        with pytest.raises(RuntimeError):
            broken(path)
    assert [path.name for path in tmp_path.iterdir()] == ["old.jsonl"]
    assert old.read_bytes() == b"old"


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o644)])
def test_who_may_read_a_whole_file(tmp_path, private, mode):
    """A private file is readable only by its owner; other files have the default permissions of the process."""
    before = os.umask(0o022)
    try:
        with atomic_file(tmp_path / "file", durable=False, private=private) as beside:
            beside.write_bytes(b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
