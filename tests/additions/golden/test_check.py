"""The check of the setting `learning.golden`."""

import os

import pytest

from ragbandit.additions.golden.settings import GoldenSection
from ragbandit.testing.settings_checks import check_settings_check

#: contents of files that no questions can be read from
CONTENTS = {
    "binary": b"\xff\xfe\x00\x01" * 50,
    "empty": b"",
    "without answers": b'{"question": "Who?"}\n',
    "deep": b"[" * 10_000,
    "parquet": b"PAR1 PAR1",
    "packed": b"\x1f\x8b\x08 and no more",
}


def of_golden(settings):
    return GoldenSection.findings(settings.learning)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe")
    (folder / "fine").write_text('{"question": "Who?", "answers": ["Stoker"]}\n')
    return folder


@pytest.mark.parametrize("name", [*CONTENTS, "pipe", "", "missing", "a\0b", "x" * 5000])
def test_files_that_cannot_be_used_are_refused(folder, name):
    """Whatever `learning.golden` names, the error has the key and a remedy, and nothing else is raised."""
    fine = [{"learning": {"golden": str(folder / "fine")}}]
    check_settings_check(of_golden, refused=[{"learning": {"golden": str(folder / name)}}], fine=fine)
