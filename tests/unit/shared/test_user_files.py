"""Files that a user names, in a command or in the configuration: regular files, within a cap, with their marks."""

import json
import os
import threading
from pathlib import Path

import pytest

from ragbandit.router.config.loading import load
from ragbandit.router.offline.logs.tables import read_table
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.files import open_file, read_file, read_text
from ragbandit.strategies.prompting.prompts import load_templates
from ragbandit.strategies.retrievers.corpus import read_corpus
from tests.support.user_files import refusal

#: what reads a file -> its error's field (None for the path)
READERS = {
    "configuration": (load, "config"),
    "prompt": (
        lambda path: load_templates(["read_direct"], overrides={"read_direct": str(path)}),
        "templates.read_direct",
    ),
}
#: readers of data, which may come from a pipe
STREAMED = {"table": (read_table, None), "corpus": (lambda path: list(read_corpus(path)), None)}


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_is_refused_where_a_file_is_read_again(pipe, reader):
    """A pipe as a file of settings or prompts is refused at once, with its field and a remedy."""
    read, field = READERS[reader]
    error = refusal(read, pipe)
    assert "a pipe, not a file" in error.message
    assert (error.field, bool(error.remedy)) == (field or str(pipe), True)


@pytest.mark.parametrize("reader", READERS | STREAMED)
def test_a_device_is_refused(reader):
    """A device, which may have no end, is refused by every reader, with its field and a remedy."""
    read, field = (READERS | STREAMED)[reader]
    error = refusal(read, Path("/dev/null"))
    assert "a device, not a file" in error.message
    assert (error.field, bool(error.remedy)) == (field or "/dev/null", True)


def test_a_pipe_of_data_is_read_from_its_first_row(tmp_path, pipe):
    """A corpus that comes from a pipe has all its passages, although its form is looked at before it is read."""
    rows = [{"id": f"p{number}", "text": f"passage {number} " + "x" * 50} for number in range(2000)]
    writer = threading.Thread(target=lambda: pipe.write_text("\n".join(map(json.dumps, rows))), daemon=True)
    writer.start()
    assert [passage.id for passage in read_corpus(pipe)] == [row["id"] for row in rows]
    writer.join(20)


@pytest.mark.parametrize("reader", STREAMED)
def test_a_pipe_without_a_writer_is_refused(pipe, reader, monkeypatch):
    """A named pipe that no program opens for writing is refused after some seconds, with its path and a remedy."""
    monkeypatch.setattr("ragbandit.shared.files.PIPE_S", 0.1)
    error = refusal(STREAMED[reader][0], pipe)
    assert "no program has opened it for writing within 0.1 s" in error.message
    assert (error.field, bool(error.remedy)) == (str(pipe), True)


def test_a_writer_may_take_its_time(pipe, monkeypatch):
    """A pipe that a program has opened for writing is waited for, however late its data come."""
    monkeypatch.setattr("ragbandit.shared.files.PIPE_S", 0.0)
    descriptor = os.open(pipe, os.O_RDWR)  # does not wait for a reader

    def write():
        os.write(descriptor, b'{"id": "p1", "text": "a passage"}')
        os.close(descriptor)

    threading.Timer(0.1, write).start()
    assert [passage.id for passage in read_corpus(pipe)] == ["p1"]


def test_a_writer_without_data_is_an_empty_file(pipe):
    """A pipe whose writer ends without sending anything is refused at once as a file without rows."""
    threading.Thread(target=lambda: pipe.open("w").close(), daemon=True).start()
    assert "no rows" in refusal(read_table, pipe).message


def test_a_file_is_read_within_its_cap(tmp_path):
    """A file may have as many bytes as its cap and no more, whatever size the system reports."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * (1 << 20))
    assert len(read_file(file, most=1 << 20)) == 1 << 20
    with pytest.raises(OSError, match="it has more than 0 MiB"):
        read_file(file, most=(1 << 20) - 1)
    with pytest.raises(OSError, match="it has more than 0 MiB"):
        read_file(Path("/proc/self/status"), most=10)  # reports 0 bytes


def test_a_configuration_above_the_cap_is_refused(tmp_path):
    """A configuration file of 65 MiB is refused by its size before it is parsed."""
    file = tmp_path / "config.yaml"
    with file.open("wb") as stream:
        stream.truncate(65 << 20)
    with pytest.raises(ConfigError, match="it has more than 64 MiB"):
        load(file)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_marks_of_encodings(tmp_path, encoding):
    """Settings and prompts may be UTF-8, or have the byte order mark of UTF-8 or UTF-16."""
    path = tmp_path / "text"
    path.write_bytes("münchen".encode(encoding))
    settings = tmp_path / "config.yaml"
    settings.write_bytes("policy: {name: mba, label: müller}\n".encode(encoding))
    with pytest.raises(ConfigError, match=r"policy\.label"):  # the label was read: it may only have ASCII letters
        load(settings)
    assert read_text(path) == "münchen"


def test_a_folder_is_no_file(tmp_path):
    """A folder that is given as a file is refused with a remedy."""
    with pytest.raises(OSError, match="it is a folder, not a file"):
        open_file(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be read: it is a folder, not a file \(.*--config"):
        load(tmp_path)
