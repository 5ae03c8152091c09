"""The questions of `learning.golden`."""

from pathlib import Path

from ragbandit.additions.evaluation.labelled_questions import LabelledQuestion, first_rows, read_questions
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.files import open_file


def read_golden(path: str) -> list[LabelledQuestion]:
    """The distinct questions of the file `learning.golden`. Raises ConfigError if the file cannot be read or used."""
    file = Path(path)
    try:
        open_file(file).close()  # refuses a pipe, which could be read only once
        return first_rows(read_questions(file, family="ours"))
    except OSError as error:
        message, remedy = f"{file} cannot be read: {error.strerror}", "give a file that this user can read"
        raise ConfigError(message, field="learning.golden", remedy=remedy) from error
    except InvalidInput as error:
        message = f"{error.field}: {error.message}"
        raise ConfigError(message, field="learning.golden", remedy=error.remedy) from error
