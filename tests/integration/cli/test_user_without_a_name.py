"""A container's user: a number without a name and a home, on a root file system that nobody can write.

Only data_dir and the folder of temporary files can be written, as in a pod with readOnlyRootFilesystem.
"""

import contextlib
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from benchmarks.service_process import free_port
from tests.support.servers.scripted_http import ScriptedHttp, json_reply
from tests.support.waiting import until

UID = 65_123
#: folder that only its owner may enter, if Python is below one, as in a home of root
CLOSED = next((str(place) for place in Path(sys.base_prefix).parents if not place.stat().st_mode & stat.S_IXOTH), "")
#: in a mount namespace of its own: opens the way to Python, makes all file systems read-only except /tmp, and becomes
#: another user
READ_ONLY = f"""
mount --bind /tmp /tmp
if [ -n "{CLOSED}" ]; then
    mkdir -p "$1/python" && mount --bind "{sys.base_prefix}" "$1/python" && mount -t tmpfs -o mode=755 tmpfs "{CLOSED}"
    mkdir -p "{sys.base_prefix}" && mount --bind "$1/python" "{sys.base_prefix}"
fi
shift
while read -r _ place _; do
    case "$place" in /tmp|/proc|/proc/*|/sys|/sys/*) ;; *) mount -o remount,bind,ro "$place" 2>/dev/null;; esac
done < /proc/self/mounts
cd /tmp
exec setpriv --reuid {UID} --regid {UID} --clear-groups "$@"
"""
NAMED = {"HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_CACHE_HOME", "TMPDIR"}
CACHE = """
import os
from pathlib import Path
from ragbandit.shared.caches import cache_root
cache_root().mkdir(exist_ok=True)
try:
    Path("/root-file").touch()
except OSError as error:
    print(cache_root(), error.errno)
os.environ["HOME"] = "/"  # as of a container whose user has no name
print(cache_root())
"""


def may_unshare() -> bool:
    """Whether this user may make a mount namespace and run programs as another user."""
    if os.getuid() != 0 or not all(map(shutil.which, ("setpriv", "unshare", "mount"))):
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not may_unshare(), reason="needs root, `setpriv`, and `unshare --mount`")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of that user."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        os.chown(made, UID, UID)
        yield Path(made)
        shutil.rmtree(f"/tmp/ragbandit-{UID}", ignore_errors=True)


def as_pod(folder: Path, *arguments: str, **options) -> "subprocess.Popen[str]":
    command = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        READ_ONLY,
        "sh",
        str(folder),
        sys.executable,
    ]
    env = {name: value for name, value in os.environ.items() if name not in NAMED}
    return subprocess.Popen([*command, *arguments], env=env, cwd="/", text=True, **options)


def done(folder: Path, *arguments: str) -> str:
    """What a command of this user prints."""
    process = as_pod(folder, *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


@pytest.mark.parametrize("verb", ["serve", pytest.param("up", marks=pytest.mark.slow)])
def test_a_user_without_a_name_and_a_home_works(folder, verb):
    """The service starts and answers, and other commands work, by a user without a name and a home who can write only
    data_dir and /tmp; with `up` a worker answers, too, and the learner learns.
    """
    with ScriptedHttp(json_reply({"answer": "Stoker."})) as pipeline:
        arm = {"class": "http", "url": f"{pipeline.url}/answer"}
        arms = {"first": arm, "second": arm} | ({"ours": {"class": "no_retrieval"}} if verb == "up" else {})
        port = free_port()
        settings = {"data_dir": f"{folder}/data", "server": {"port": port}, "arms": arms, "workers": {"answer": 1}}
        settings |= {"encoder": {"model": "hashing"}, "generator": {"name": "scripted"}}
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
        config = ("--config", f"{folder}/config.yaml")
        caches = f"/tmp/ragbandit-{UID}"
        assert done(folder, "-c", CACHE).split() == [caches, str(errno.EROFS), caches]
        assert "ok: " in done(folder, "-m", "ragbandit", "validate", *config)
        done(folder, "-m", "ragbandit", "migrate", *config)
        with (folder / "log").open("w") as log, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            service = as_pod(folder, "-m", "ragbandit", verb, *config, stdout=log, stderr=log)
            try:
                until(lambda: service.poll() is not None or is_ready(http))
                assert service.poll() is None, (folder / "log").read_text()
                for name in arms:
                    sent = {"question": f"Who wrote it, {name}?", "arms": [name]}
                    reply = http.post("/v1/answer", params={"wait_s": 60}, json=sent).json()
                    assert reply["status"] == "answered", reply
                judged = {"decision_id": reply["decision_id"], "label": "correct"}
                assert http.post("/v1/feedback", json=judged).status_code == 202
                until(lambda: verb == "serve" or http.get("/v1/status").json()["counters"]["learned"] == 1)
            finally:
                service.send_signal(signal.SIGTERM)
                assert service.wait(60) in (0, -signal.SIGTERM)
    texts = [path.read_text() for path in [folder / "log", *folder.glob("data/logs/*")]]
    assert "Traceback" not in "".join(texts)
    assert "key is not shown again" in done(
        folder, "-m", "ragbandit", "keys", "create", "--name", "pod", "--role", "app", *config
    )


def is_ready(http: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return http.get("/ready").status_code == 200
    return False
