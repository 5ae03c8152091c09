"""Weights are fetched and checked in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.workers.wiring.loading import check_generators
from tests.support.waiting import runs, until

PROGRAM = """
import sys
from ragbandit.shared.errors import ConfigError
from ragbandit.router.config.settings import Settings
from ragbandit.workers.wiring.loading import check_generators
if __name__ == "__main__":
    for model in sys.argv[1:]:
        try:
            check_generators(Settings(generator={"model": model}), fetch=True)
        except ConfigError as error:
            print(error)
        print("torch" in sys.modules)
"""


FETCHING = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from ragbandit.workers.wiring.generators import _begin_fetching
if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_fetching) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(time.sleep, 60).result()
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


def test_weights_that_cannot_be_read_are_said_with_their_setting(tmp_path):
    """A file that only looks like a model is a wrong setting, not a traceback of whatever reads it."""
    (tmp_path / "x.gguf").write_bytes(b"GGUFxxxx")
    with pytest.raises(ConfigError, match=r"x\.gguf' cannot be made ready: .*give another file") as caught:
        check_generators(Settings(generator={"model": str(tmp_path / "x.gguf")}), fetch=True)
    assert caught.value.field == "generator.model"


def test_what_fetches_weights_does_not_outlive_its_parent(tmp_path):
    """A parent that is killed while weights are fetched leaves no process behind."""
    (tmp_path / "program.py").write_text(FETCHING)
    command = [sys.executable, str(tmp_path / "program.py")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        fetching = int(parent.stdout.readline())
        parent.kill()
    until(lambda: not runs(fetching), seconds=30)
