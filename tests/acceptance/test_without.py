"""A tree without an addition is whole. Each commit leaves out another one; `make without` runs all tests of one."""

import os
import subprocess
import sys

import pytest

from tests.without import ROOT

#: what a missing addition would break first: settings, registries, commands, pages, imports, the service
TESTS = [
    "tests/unit/docs/test_reference.py",
    "tests/unit/docs/test_rows.py",
    "tests/unit/router/config/test_config.py",
    "tests/unit/router/config/test_faults.py",
    "tests/unit/router/config/test_section.py",
    "tests/unit/router/cli",
    "tests/unit/router/test_public_surface.py",
    "tests/unit/strategies/test_registry.py",
    "tests/unit/strategies/test_strategies_doc.py",
    "tests/unit/workers/test_loading.py",
    "tests/unit/workers/test_setup.py",
    "tests/integration/api/test_routing.py",
]


@pytest.mark.timeout(600)  # it runs as long as its tests, also under load
def test_a_tree_without_the_addition_whose_turn_it_is():
    """The service, its commands and its pages work without the addition whose turn it is with this commit."""
    options = ["-q", "-n", "0", "-m", "not slow and not gpu", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "tests.without", "turn", *options, *TESTS]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
