"""Files of answers that a user names are regular files."""

from pathlib import Path

import pytest

from ragbandit.additions.evaluation.kept_answers import AnswerFile
from ragbandit.shared.errors import InvalidInput
from tests.support.user_files import refusal


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_device_of_answers_is_refused(pipe, kind):
    """A pipe or a device as a file of answers is refused at once, with its path and a remedy."""
    path = {"pipe": pipe, "device": Path("/dev/null")}[kind]
    error = refusal(lambda file: AnswerFile(file, resume=True), path)
    assert f"a {kind}, not a file" in error.message
    assert (error.field, bool(error.remedy)) == (str(path), True)


def test_a_folder_is_no_file_of_answers(tmp_path):
    """A folder as a file of answers is refused, with the option that takes a file."""
    with pytest.raises(InvalidInput, match=r"\(.*--answers"):
        AnswerFile(tmp_path, resume=True)
