"""Weights are fetched and checked in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from ragbandit.shared.errors import ConfigError
from ragbandit.router.config.settings import Settings
from ragbandit.workers.setup.loading import check_generators
if __name__ == "__main__":
    for model in sys.argv[1:]:
        try:
            check_generators(Settings(generator={"model": model}), fetch=True)
        except ConfigError as error:
            print(error)
        print("torch" in sys.modules)
"""


def test_no_model_is_loaded_to_check_it(tmp_path):
    """Weights are looked for, and the hub is asked, in a process of its own; what was wrong there is said here."""
    (tmp_path / "program.py").write_text(PROGRAM)
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    here = {"XDG_CACHE_HOME": str(tmp_path), "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"} | here
    command = [sys.executable, str(tmp_path / "program.py"), str(folder), "no/such-model"]
    environ = environment | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (before, word, after) = done.stdout.splitlines()
    assert word.startswith("generator.model: found no weights for 'no/such-model'")
    assert "http://127.0.0.1:9 did not answer" in word
    assert (before, after) == ("False", "False")
