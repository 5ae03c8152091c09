"""A container's user: a number without a name and a home. Only data_dir and /tmp can be written."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

UID = 65_123
COMMANDS = {
    "validate": ["-m", "ragbandit", "validate"],
    "migrate": ["-m", "ragbandit", "migrate"],
    "keys": ["-m", "ragbandit", "keys", "create", "--name", "pod", "--role", "app"],
    "cache": [
        "-c",
        "from ragbandit.shared.files import cache_root; print(cache_root()); cache_root().mkdir(exist_ok=True)",
    ],
}


@pytest.mark.skipif(os.getuid() != 0, reason="only root may run a command as another user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv: apt-get install util-linux")
def test_a_user_without_a_name_and_a_home_works():
    """`validate`, `migrate`, `keys create` and the folder of caches need neither a name nor a home."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chown(folder, UID, UID)
        config = Path(folder, "config.yaml")
        config.write_text(yaml.safe_dump({"data_dir": f"{folder}/data", "encoder": {"model": "hashing"}}))
        named = {"HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_CACHE_HOME"}
        kept = {name: value for name, value in os.environ.items() if name not in named}
        as_pod = ["setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups", sys.executable]
        for name, arguments in COMMANDS.items():
            config_of = ["--config", str(config)] if "-m" in arguments else []
            command = [*as_pod, *arguments, *config_of]
            env = kept | {"PYTHONDONTWRITEBYTECODE": "1"}
            done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, (name, done.stdout, done.stderr)
        shutil.rmtree(Path(tempfile.gettempdir(), f"ragbandit-{UID}"), ignore_errors=True)
