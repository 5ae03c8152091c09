"""`make clients`: the tests of every folder here and of the pages, in each environment, against one live service.

An environment is a requirements*.txt of a folder, installed into .venv-clients/, with the packages of its package.json
if npm is installed; the folder's test files are run there. They find the service by the fixture `service` of
conftest.py, and this repository's `ragbandit` on the path. Everything runs in a network namespace that has only
loopback, so that no client calls home, if `unshare` may make one. Prints a table; the exit status is 1 if a test
failed, or a folder had none.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import xml.etree.ElementTree as ElementTree
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.service_process import free_port
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.clients.agent_models import AgentModels
from tests.support.anthropic_events import events_of, sse_of
from tests.support.servers.scripted_http import Scripted, ScriptedHttp

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / ".venv-clients"
#: variable of a process that reaches only loopback
ISOLATED = "RAGBANDIT_CLIENTS_ISOLATED"
ANSWER = "Paris 🗼 (sur Seine, là)"
CORPUS = [
    {
        "id": "france",
        "title": "France",
        "text": "Paris is the capital of France and lies on the Seine.",
        "url": "https://geography.example/france",
    },
    {"id": "spain", "title": "Spain", "text": "Madrid is the capital of Spain and lies on the Manzanares."},
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make clients")
    parser.add_argument("--only", default="", help="folders, by words in their names")
    words = parser.parse_args().only.split()
    files = sorted(HERE.glob("*/requirements*.txt"))
    files = [file for file in files if not words or any(word in name_of(file) for word in words)]
    if os.environ.get(ISOLATED):
        raise_loopback()
    else:
        for file in files:
            install(file)
        isolate()
    proxy = free_port()
    os.environ["LITELLM_MASTER_KEY"] = "sk-of-these-tests"  # without one the proxy does not start
    with (
        tempfile.TemporaryDirectory() as place,
        tempfile.TemporaryDirectory() as beside,
        ScriptedServer(model_reply) as models,
        ScriptedHttp(answer=claude_reply) as claude,
        live_service(Path(place), arms=PIPELINES) as (url, key),
        live_service(Path(beside), **gateway(models.url, proxy=proxy, claude=claude.url)) as (passing, other_key),
        agents(Path(place, "agents")) as behind_agents,
    ):
        more = {"URL": url, "KEY": key, "GATEWAY_URL": passing, "GATEWAY_KEY": other_key}
        more |= {"MODELS_URL": models.url, "PROXY_PORT": str(proxy)} | behind_agents
        environ = os.environ | {f"RAGBANDIT_CLIENTS_{name}": value for name, value in more.items()}
        rows = [tested(file, environ=environ, place=Path(place)) for file in files]
    width = max(len(row[0]) for row in rows)
    show(f"\n{'environment':{width}}  passed  failed  skipped  with")
    for name, (passed, failed, skipped), packages in rows:
        show(f"{name:{width}}  {passed:6}  {failed:6}  {skipped:7}  {packages}")
    return int(not rows or any(failed or not passed + skipped for _, (passed, failed, skipped), _ in rows))


def isolate() -> None:
    """Run this process again where it reaches only loopback, if it may make such a place."""
    unshare = ["unshare", "--net", "--map-root-user"]
    if shutil.which("unshare") and not subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        os.environ[ISOLATED] = "1"
        os.execvp(unshare[0], [*unshare, sys.executable, "-m", "tests.clients", *sys.argv[1:]])
    show("the clients run with the network of this machine: `unshare --net --map-root-user` is refused")


def raise_loopback() -> None:
    """Switch loopback on, which is off in a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 0x41))  # SIOCSIFFLAGS, up and running


def show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def name_of(file: Path) -> str:
    """Name of an environment: openai-sdk-3 of openai-sdk/requirements-3.txt."""
    return file.parent.name + file.stem.removeprefix("requirements")


def python_of(file: Path) -> str:
    return str(ENVIRONMENTS / name_of(file) / "bin" / "python")


def install(file: Path) -> None:
    """Make the environment of these requirements, unless it has been made of the same ones."""
    packages = file.with_name("package.json")
    wanted = hashlib.sha256(file.read_bytes() + (packages.read_bytes() if packages.exists() else b"")).hexdigest()
    stamp = ENVIRONMENTS / name_of(file) / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    show(f"installing {name_of(file)}")
    subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENTS / name_of(file)], check=True)
    pip = [python_of(file), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", file], check=True)
    if packages.exists():
        if shutil.which("npm") is None:
            show(f"npm is missing: the tests of {name_of(file)} are skipped")
            return
        shutil.copy(packages, ENVIRONMENTS / name_of(file))
        npm = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(npm, cwd=ENVIRONMENTS / name_of(file), check=True)
    stamp.write_text(wanted)


#: the service's own arms, and two that the frameworks' tests run themselves
PIPELINES = {arm: {} for arm in ("no_retrieval", "single_step", "multi_step")} | {
    arm: {"run_by": "caller"} for arm in ("fast", "deep")
}


def gateway(models: str, *, proxy: int, claude: str) -> dict:
    """The settings of a service in front of models: two, one behind LiteLLM's proxy, one that speaks Messages."""
    chosen = {"name": "openai", "context_tokens": 8000}
    arms = {"small": {"class": "model"}, "large": {"class": "model", "generator": "large"}, "recall": {}}
    return {
        "generator": chosen | {"model": "small", "openai": {"base_url": models}},
        "generators": {
            "large": chosen
            | {"model": "large", "openai": {"base_url": models}, "supports": ["tools", "json", "images", "logprobs"]},
            "proxied": chosen
            | {
                "model": "behind",
                "openai": {"base_url": f"http://127.0.0.1:{proxy}/v1", "api_key_env": "LITELLM_MASTER_KEY"},
                "supports": ["audio"],
            },
            "claude": {
                "name": "anthropic",
                "model": "claude",
                "anthropic": {"base_url": claude},
                "supports": ["tools"],
            },
        },
        "server": {"port": free_port(), "model_aliases": {"claude-*": "arm/small"}},
        "arms": arms
        | {"recall": {"class": "no_retrieval"}, "proxied": {"class": "model", "generator": "proxied"}}
        | {"claude": {"class": "model", "generator": "claude"}},
    }


@contextmanager
def agents(place: Path):
    """Services for coding agents: one in front of models that speak chat completions, one of Messages. Yields their
    variables.
    """
    place.mkdir()
    models = AgentModels(place / "requests.jsonl")
    prices = {"token_prices": {"input": 1.0, "output": 2.0}, "supports": ["tools", "json", "images"]}
    with (
        ScriptedServer(models.chat) as chat,
        ScriptedHttp(answer=models.messages) as messages,
        ExitStack() as stack,
    ):
        clients = {
            "chat": {"name": "openai", "openai": {"base_url": chat.url}},
            "messages": {"name": "anthropic", "anthropic": {"base_url": messages.url}},
        }
        found = {"AGENTS_REQUESTS": str(place / "requests.jsonl")}
        for dialect, client in clients.items():
            (place / dialect).mkdir()
            started = live_service(
                place / dialect,
                generators={name: {"model": name, **prices, **client} for name in ("small", "large")},
                arms={name: {"class": "model", "generator": name} for name in ("small", "large")},
                server={"port": free_port(), "model_aliases": {"claude-*": "auto", "gpt-*": "auto"}},
                conversation={"units": {"anthropic": "task", "responses": "task"}, "task_limit": {"turns": 8}},
            )
            url, key = stack.enter_context(started)
            found |= {f"AGENTS_{dialect.upper()}": url, f"AGENTS_{dialect.upper()}_KEY": key}
        yield found


def model_reply(sent):
    """What the models reply: calls of tools until their results are there, JSON where it is asked for, else a text."""
    last = sent["messages"][-1]
    if sent.get("tools") and last["role"] != "tool" and "<system-reminder>B" not in json.dumps(last):
        name = sent["tools"][0]["function"]["name"]
        call = {"id": f"call_{os.urandom(6).hex()}", "type": "function"}
        function = {"name": name, "arguments": json.dumps({"city": "Paris"})}
        return Reply(message={"tool_calls": [call | {"function": function}]}, finish="tool_calls")
    form = (sent.get("response_format") or {}).get("type")
    return Reply(text='{"name": "Paris", "people": 2100000}' if form == "json_schema" else ANSWER)


def claude_reply(sent):
    """What the model behind Messages replies, as `model_reply`; with thoughts if they are asked for."""
    thoughts = {"type": "thinking", "thinking": "Let me see.", "signature": "EqQBCg=="}
    content = [thoughts] if (sent.get("thinking") or {}).get("type") in ("enabled", "adaptive") else []
    is_answered = "tool_result" in json.dumps(sent["messages"])
    call = {"type": "tool_use", "id": f"toolu_{os.urandom(6).hex()}", "name": "weather", "input": {"city": "Paris"}}
    is_call = bool(sent.get("tools")) and not is_answered
    content.append(call if is_call else {"type": "text", "text": ANSWER})
    message = {"type": "message", "id": "msg_1", "role": "assistant", "model": sent["model"], "content": content}
    message |= {"stop_reason": "tool_use" if is_call else "end_turn", "stop_sequence": None}
    if sent.get("stream"):
        return Scripted(body=sse_of(events_of(message)), headers={"content-type": "text/event-stream"})
    usage = {"input_tokens": 9, "output_tokens": 5}
    return Scripted(body=json.dumps(message | {"usage": usage}).encode())


@contextmanager
def live_service(place: Path, **more):
    """A whole service with scripted answers; its address, and a key that may ask and judge. more: of its settings."""
    settings = {
        "data_dir": str(place / "data"),
        "encoder": {"model": "hashing"},
        "generator": {"name": "scripted", "script": {"": f"So the answer is: {ANSWER}"}, "script_s": 0.02},
        "server": {"port": free_port()},
        "reward": {"cost": {"seconds_total": 1.0}, "weight": 0.02},  # what the clients measure
        **more,
    }
    port = settings["server"]["port"]
    (place / "config.yaml").write_text(json.dumps(settings, ensure_ascii=False), encoding="utf-8")
    (place / "corpus.jsonl").write_text("\n".join(map(json.dumps, CORPUS)))
    command = [sys.executable, "-m", "ragbandit"]
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RAGBANDIT_")}
    how = {"cwd": place, "env": ours | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}}
    subprocess.run([*command, "index", "build", "--corpus", "corpus.jsonl"], check=True, capture_output=True, **how)
    made = [*command, "keys", "create", "--name", "clients", "--role", "app", "--json"]
    with (place / "up.log").open("wb") as log:
        up = subprocess.Popen([*command, "up"], stdout=log, stderr=log, **how)
    try:
        wait_ready(f"http://127.0.0.1:{port}", up=up, log=place / "up.log")
        key = json.loads(subprocess.run(made, check=True, capture_output=True, **how).stdout)["key"]
        time.sleep(1.5)  # the service looks for new keys every second
        yield f"http://127.0.0.1:{port}", key
    finally:
        up.send_signal(signal.SIGINT)
        try:
            up.wait(30)
        except subprocess.TimeoutExpired:
            up.kill()
            up.wait(10)


def wait_ready(url: str, *, up: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5):
                return
        except OSError:
            if up.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"the service did not start:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.2)


def tested(file: Path, *, environ: dict[str, str], place: Path) -> tuple[str, tuple[int, int, int], str]:
    """Run the tests in this environment; its name, (passed, failed, skipped), and the packages that it asks for."""
    name = name_of(file)
    show(f"\n== {name}")
    report = place / f"{name}.xml"
    options = ["-q", "-c", HERE / "pytest.ini", "--rootdir", HERE, "--confcutdir", HERE, "-p", "no:cacheprovider"]
    command = [python_of(file), "-m", "pytest", *options, f"--junitxml={report}", file.parent, HERE / "test_pages.py"]
    paths = {"PYTHONPATH": str(ROOT), "RAGBANDIT_CLIENTS_NPM": str(ENVIRONMENTS / name / "node_modules" / ".bin")}
    ended = subprocess.run(command, cwd=place, env=environ | paths, timeout=900, check=False)
    if not report.exists():
        return name, (0, 1, 0), f"pytest ended with {ended.returncode}"
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    counts = {kind: int(suite.get(kind, "0")) for kind in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    return name, (passed, failed, counts["skipped"]), versions(file)


def versions(file: Path) -> str:
    """The packages of the requirements but pytest, with the versions that are installed."""
    lines = file.read_text().splitlines()
    names = [re.split(r"[\s<>=!~\[;]", line)[0] for line in lines if line.strip() and not line.startswith(("#", "-"))]
    names = [name for name in names if not name.startswith("pytest")]
    code = "import importlib.metadata as m, sys; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    result = subprocess.run([python_of(file), "-c", code, *names], capture_output=True, text=True, check=False)
    return result.stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
