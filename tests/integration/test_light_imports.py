"""Imports are light, seen in fresh processes: no model library, no database, no Redis, no HTTP server, no I/O."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HEAVY = {
    *("alembic", "bm25s", "fastapi", "fsspec", "onnx", "pydantic", "redis", "rq", "sqlalchemy", "starlette"),
    *("tokenizers", "torch", "transformers", "typer", "uvicorn", "yaml"),
}


#: sees every file written, database opened, socket made and process begun while the modules are imported, in turn
PROBE = """
import importlib, json, sys, threading
seen = []
def hook(event, details):
    writes = event == "open" and isinstance(details[1], str) and set(details[1]) & set("wax+")
    cached = event == "open" and ".pyc" in str(details[0])
    if (writes and not cached) or event.startswith(("socket.connect", "socket.bind", "sqlite3.", "subprocess.")):
        seen.append(f"{event} {details[:2]!r}")
sys.addaudithook(hook)
for name in MODULES:
    module, _, attribute = name.partition(":")
    getattr(importlib.import_module(module), attribute or "__name__")
    loaded = {part for each in sys.modules for part in (each, each.partition(".")[0])}
    print(json.dumps({"modules": sorted(loaded), "seen": seen, "threads": threading.active_count()}))
"""


def imported(*modules):
    """What a fresh process has loaded after each of these modules, or names in one, in turn; the first does no more."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE.replace("MODULES", repr(modules))],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    printed = [json.loads(line) for line in run.stdout.splitlines()]
    assert (printed[0]["seen"], printed[0]["threads"]) == ([], 1)
    return [set(each["modules"]) for each in printed]


def test_imports_are_light():
    """What `import ragbandit` loads, and every part after it in the same process, has none of what it must not need.

    What a part has loaded stays loaded: those that may load least come first.
    """
    pure = {"sqlalchemy", "redis", "rq", "httpx", "fastapi", "torch"}
    arms = {"ragbandit.strategies.arms.basic", "openai", "httpx"}
    never = {
        "ragbandit": HEAVY | {"httpx", "numpy"},
        "ragbandit.strategies": HEAVY | arms,
        "ragbandit.shared.errors": pure,
        "ragbandit.router.learning.reward": pure,
        "ragbandit.router.offline.estimation": pure,
        "ragbandit.router.encoders.distilbert": pure | {"transformers", "huggingface_hub"},
        "ragbandit.router.policies": pure,
        "ragbandit.router.encoders.weights": {"torch", "transformers", "huggingface_hub"},
        "ragbandit.testing.policies": {"pytest", "hypothesis"},  # the contract ships with the package
        "ragbandit.router.api.app": {"mcp"},
    }
    for (name, forbidden), loaded in zip(never.items(), imported(*never), strict=True):
        assert forbidden & loaded == set(), name


#: loaded with httpx; `idna` and `typing_extensions` among its packages
WITH_HTTPX = {"anyio", "certifi", "h11", "httpcore", "httpx", "idna", "sniffio", "typing_extensions"}
#: loaded at every start of a Python that has them, as Debian's has
AT_EVERY_START = {"sitecustomize", "usercustomize"}


def named(name):
    """The packages, other than Python's own, that a fresh process has loaded after `from ragbandit import name`."""
    packages = {module.partition(".")[0] for module in imported(f"ragbandit:{name}")[0]}
    foreign = packages - set(sys.stdlib_module_names) - AT_EVERY_START
    return {package for package in foreign if not package.startswith("_")}


def test_client_needs_httpx_alone():
    """`from ragbandit import Client` loads httpx with its packages, and not httpx's command line: no click, no rich."""
    assert named("Client") <= {"ragbandit"} | WITH_HTTPX


def test_router_loads_what_a_decision_needs():
    """`from ragbandit import Router` loads no Redis, server, template, command line or model library."""
    needed = {"numpy", "pydantic", "safetensors", "sqlalchemy", "uuid_utils", "yaml"}
    packages = named("Router")
    assert needed <= packages
    foreign = {"alembic", "click", "httpx", "jinja2", "opentelemetry", "prometheus_client", "pyarrow", "rich"}
    assert (HEAVY - {"pydantic", "sqlalchemy", "yaml"} | foreign) & packages == set()


#: runs the command as its entry point does, then says what is loaded, and how many threads this process has
COMMAND = """
import json, os, sys
from ragbandit.workers.cli import main
for words in CALLS:
    sys.argv = ["ragbandit", *words]
    try:
        main()
    except SystemExit as end:
        assert end.code in (0, None), end.code
seen = sorted({m.partition(".")[0] for m in sys.modules})
import numpy
numpy.ones((400, 400)) @ numpy.ones((400, 400))
print("\\n" + json.dumps({"modules": seen, "threads": len(os.listdir("/proc/self/task"))}))
"""


def after(folder, *calls):
    """What a fresh process has loaded after running the command with each of these words."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND.replace("CALLS", repr(calls))],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


STORES = {"alembic", "redis", "rq", "sqlalchemy", "torch", "transformers"}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts the threads that Linux lists")
def test_help_loads_no_library_and_numpy_has_one_thread(tmp_path, monkeypatch):
    """Help and version load what prints them: no database, Redis, numpy or settings.

    After the command's entry point numpy has no threads of its own: they spin for longer than a product takes.
    """
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    found = after(tmp_path, ["--help"], ["--version"])
    assert (STORES | {"numpy", "pydantic", "httpx", "yaml"}) & set(found["modules"]) == set()
    assert found["threads"] == 1


def test_validate_loads_no_database_and_no_model_library(tmp_path):
    """`validate` finds packages without importing them, and reads no database: it stays quick."""
    with socket.create_server(("127.0.0.1", 0)) as listener:  # what answers at a port in use is asked, over httpx
        port = listener.getsockname()[1]
    (tmp_path / "config.yaml").write_text(f"arms: {{fast: {{run_by: caller}}}}\nserver: {{port: {port}}}\n")
    assert (STORES | {"httpx", "pyarrow"}) & set(after(tmp_path, ["validate"])["modules"]) == set()


def test_what_reads_the_database_loads_no_migrations_and_no_service(tmp_path, sqlite_template):
    """On a database that is up to date Alembic is not loaded, nor FastAPI by a verb that serves nothing."""
    shutil.copyfile(sqlite_template, tmp_path / "ragbandit.db")
    (tmp_path / "config.yaml").write_text("data_dir: .\n")
    assert {"alembic", "fastapi", "torch"} & set(after(tmp_path, ["keys", "list"])["modules"]) == set()
