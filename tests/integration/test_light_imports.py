"""Imports are light, seen in fresh processes: no model library, no database, no Redis, no HTTP server, no I/O."""

import json
import os
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
    """`import ragbandit` loads no torch, database, Redis, HTTP or settings package, and does nothing (promise 9)."""
    found = imported("ragbandit")
    assert HEAVY & set(found["modules"]) == set()
    assert "httpx" not in found["modules"]
    assert found["seen"] == []
    assert found["threads"] == 1


def test_import_client_needs_httpx_alone():
    """`import ragbandit.router.api.client` loads httpx and none of the heavy packages, and connects to nothing."""
    found = imported("ragbandit.router.api.client")
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
        "ragbandit.router.errors",
    ],
)
def test_pure_parts_know_no_database_redis_or_http(module):
    """Policies, reward, evaluation and errors load no database, Redis or HTTP package."""
    found = imported(module)
    assert {"sqlalchemy", "redis", "rq", "httpx", "fastapi", "torch"} & set(found["modules"]) == set()


def test_validate_imports_no_torch(tmp_path):
    """`validate` finds packages without importing them: it stays quick."""
    (tmp_path / "config.yaml").write_text("arms: {fast: {run_by: caller}}\n")
    program = (
        "import sys\nfrom ragbandit.workers.cli import app\ntry:\n    app(['validate'])\nexcept SystemExit as end:\n"
    )
    program += "    assert end.code == 0\nassert not {'torch', 'transformers'} & set(sys.modules)\n"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


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
    code = "import sys, ragbandit.router.policies.testing; print({'pytest', 'hypothesis'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
