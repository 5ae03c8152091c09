"""data_dir: it belongs to its owner alone, and one that cannot be used is said by its name, without a traceback."""

import os
from pathlib import Path

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.serving.setup.requirements import prepare_data_dir
from ragbandit.shared.json_lines import new_lines
from tests.support import command

ROOT = Path(__file__).parents[3]
#: root without the right to pass over modes
AS_A_USER = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search,-fowner,-chown", "--inh-caps", "-all"]


def configured(folder: Path) -> Path:
    """A configuration whose data_dir is "data" in this folder."""
    file = folder / "config.yaml"
    arms = "arms: {a: {run_by: caller}}"
    file.write_text(f"data_dir: {folder / 'data'}\nencoder: {{model: hashing}}\n{arms}\nserver: {{port: 18473}}\n")
    return file


def modes(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): oct(path.stat().st_mode & 0o777) for path in folder.rglob("*")}


@pytest.mark.parametrize("verb", ["up", "serve", "status", "verify", "migrate"])
def test_a_file_where_the_folder_belongs(tmp_path, verb):
    """If data_dir is a file, the command names the setting and ends with exit code 2."""
    (tmp_path / "data").touch()
    done = command.run(verb, "--config", str(configured(tmp_path)))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"CONFIG_INVALID data_dir: {tmp_path / 'data'} is a file, not a folder")
    assert done.stderr.count("\n") == 1


def test_new_files_are_private(tmp_path):
    """data_dir is made with mode 0700; the database and its files, logs and exports with 0600, for any umask."""
    before = os.umask(0)
    try:
        settings = Settings(data_dir=str(tmp_path / "deep" / "data"))
        prepare_data_dir(settings)
        database = open_database(settings)
        with database.read() as connection:
            connection.exec_driver_sql("SELECT 1 FROM decisions")
            assert modes(tmp_path / "deep") == {
                "data": "0o700",
                "data/ragbandit.db": "0o600",
                "data/ragbandit.db-wal": "0o600",
                "data/ragbandit.db-shm": "0o600",
            }
        database.close()
        with new_lines(tmp_path / "export.jsonl") as out:
            out.write(b"{}\n")
        assert oct((tmp_path / "export.jsonl").stat().st_mode & 0o777) == "0o600"
    finally:
        os.umask(before)
