"""tests/clients: every folder has tests, and environments that `make clients` can make."""

from pathlib import Path

import pytest

CLIENTS = Path(__file__).parents[1] / "clients"
FOLDERS = sorted(folder for folder in CLIENTS.iterdir() if folder.is_dir() and folder.name != "__pycache__")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_is_an_environment(folder):
    """It has tests, and requirements that are ranges: a newest release that is pinned cannot be had everywhere."""
    files = list(folder.glob("requirements*.txt"))
    assert files
    for file in files:
        asked = [line for line in file.read_text().splitlines() if line.strip() and not line.startswith("#")]
        assert any(line.startswith("pytest") for line in asked)
        assert not [line for line in asked if "==" in line]
    assert list(folder.glob("test_*.py"))
