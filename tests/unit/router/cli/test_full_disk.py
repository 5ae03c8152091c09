"""A command on a full disk ends with one line that names the disk."""

import errno
import fcntl
import os

import pytest
import typer

from ragbandit.router.cli.console import exit_on_error
from ragbandit.router.serving.setup.requirements import lock_file


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded", "corpus.jsonl"),
        OSError("8192 requested and 4064 written"),
    ],
    ids=["no file named", "quota", "numpy"],
)
def test_a_full_disk_is_one_line(error, capsys):
    """Also where the error of the system names no file, and where numpy gives no number."""
    with pytest.raises(typer.Exit) as ended, exit_on_error():
        raise error
    assert ended.value.exit_code == 2
    assert "make room on this disk" in " ".join(capsys.readouterr().err.split())


def test_a_lock_holds_on_a_full_disk(tmp_path, monkeypatch):
    """The lock of a folder is acquired even if the identity of the process cannot be written to it."""

    def full(_descriptor, _data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with lock_file(tmp_path / "service.lock", process="ragbandit serve", at="here", field="data_dir"):
        monkeypatch.undo()
        with (tmp_path / "service.lock").open("rb") as other, pytest.raises(OSError, match="unavailable"):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
