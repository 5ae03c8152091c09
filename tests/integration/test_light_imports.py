"""Imports are light, seen in fresh processes: no model library, no database, no Redis, no HTTP server, no I/O."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HEAVY = {
    "alembic",
    "bm25s",
    "fastapi",
    "fsspec",
    "onnx",
    "pydantic",
    "redis",
    "rq",
    "sqlalchemy",
    "starlette",
    "tokenizers",
    "torch",
    "transformers",
    "typer",
    "uvicorn",
    "yaml",
}


#: sees every file written, database opened, socket made and process begun while the import runs
PROBE = """
import json, sys, threading
seen = []
def hook(event, details):
    writes = event == "open" and isinstance(details[1], str) and set(details[1]) & set("wax+")
    cached = event == "open" and ".pyc" in str(details[0])
    if (writes and not cached) or event.startswith(("socket.connect", "socket.bind", "sqlite3.", "subprocess.")):
        seen.append(f"{event} {details[:2]!r}")
sys.addaudithook(hook)
import MODULE
print(json.dumps({"modules": sorted({m.partition(".")[0] for m in sys.modules}), "seen": seen,
                  "threads": threading.active_count()}))
"""


def imported(module):
    """What a fresh process has loaded and done after importing a module."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE.replace("MODULE", module)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(run.stdout)


def test_import_router_is_light():
    """`import ragbandit` loads no torch, numpy, database, Redis, HTTP or settings package (promise 9)."""
    found = imported("ragbandit")
    assert HEAVY & set(found["modules"]) == set()
    assert {"httpx", "numpy"} & set(found["modules"]) == set()
    assert found["seen"] == []
    assert found["threads"] == 1


def test_import_client_needs_httpx_alone():
    """The client loads httpx and none of the heavy packages, and connects to nothing."""
    found = imported("ragbandit.client.client")
    assert HEAVY & set(found["modules"]) == set()
    assert "httpx" in found["modules"]
    assert found["seen"] == []
    assert found["threads"] == 1


@pytest.mark.parametrize(
    "module",
    [
        "ragbandit.router.policies",
        "ragbandit.router.learning.reward",
        "ragbandit.router.offline.estimation",
        "ragbandit.shared.errors",
    ],
)
def test_pure_parts_know_no_database_redis_or_http(module):
    """Policies, reward, evaluation and errors load no database, Redis or HTTP package."""
    found = imported(module)
    assert {"sqlalchemy", "redis", "rq", "httpx", "fastapi", "torch"} & set(found["modules"]) == set()


#: runs the command as its entry point does, then says what is loaded, and how many threads this process has
COMMAND = """
import json, os, sys
from ragbandit.workers.cli import main
sys.argv = ["ragbandit", *WORDS]
try:
    main()
except SystemExit as end:
    assert end.code in (0, None), end.code
seen = sorted({m.partition(".")[0] for m in sys.modules})
import numpy
numpy.ones((400, 400)) @ numpy.ones((400, 400))
print("\\n" + json.dumps({"modules": seen, "threads": len(os.listdir("/proc/self/task"))}))
"""


def after(folder, *words):
    """What a fresh process has loaded after running the command with these words."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND.replace("WORDS", repr(words))],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


STORES = {"alembic", "redis", "rq", "sqlalchemy", "torch", "transformers"}


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_help_loads_no_library(tmp_path, words):
    """The help and the version of the command load what prints them: no database, Redis, numpy or settings."""
    assert (STORES | {"numpy", "pydantic", "httpx", "yaml"}) & set(after(tmp_path, *words)["modules"]) == set()


def test_validate_loads_no_database_and_no_model_library(tmp_path):
    """`validate` finds packages without importing them, and reads no database: it stays quick."""
    (tmp_path / "config.yaml").write_text("arms: {fast: {run_by: caller}}\n")
    assert (STORES | {"httpx", "pyarrow"}) & set(after(tmp_path, "validate")["modules"]) == set()


def test_what_reads_the_database_loads_no_migrations_and_no_service(tmp_path, sqlite_template):
    """On a database that is up to date Alembic is not loaded, nor FastAPI by a verb that serves nothing."""
    shutil.copyfile(sqlite_template, tmp_path / "ragbandit.db")
    (tmp_path / "config.yaml").write_text("data_dir: .\n")
    assert {"alembic", "fastapi", "torch"} & set(after(tmp_path, "data", "recount")["modules"]) == set()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts the threads that Linux lists")
def test_processes_of_the_command_have_one_thread_for_numpy(tmp_path, monkeypatch):
    """After the command's entry point numpy has no threads of its own: they spin for longer than a product takes."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    assert after(tmp_path, "--help")["threads"] == 1


def test_importing_encoders_loads_no_model_library():
    """The modules of encoder and weights import neither torch nor transformers nor the hub."""
    heavy = {"torch", "transformers", "huggingface_hub"}
    code = f"import sys; from ragbandit.router.encoders import distilbert, weights; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_importing_strategies_is_light():
    """`import ragbandit.strategies` loads no model library, no search library, no HTTP client, and none of our arms."""
    heavy = (
        "pydantic",
        "ragbandit.strategies.arms.single_step",
        "bm25s",
        "torch",
        "transformers",
        "openai",
        "httpx",
        "redis",
        "sqlalchemy",
    )
    code = f"import sys, ragbandit.strategies; print([name for name in {heavy!r} if name in sys.modules])"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_contract_needs_no_test_framework():
    """Importing the contract imports neither pytest nor hypothesis: it ships with the package."""
    code = "import sys, ragbandit.testing.policies; print({'pytest', 'hypothesis'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
