"""examples/openwebui: the shape of the compose file. It is not run here; nothing here has Docker."""

import json
import re
from pathlib import Path

import yaml

from ragbandit.router.config.loading import load
from ragbandit.workers.cli import VERBS

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "examples/openwebui/compose.yaml").read_text("utf-8")
COMPOSE = yaml.safe_load(TEXT)
SERVICES = COMPOSE["services"]


def test_ports_are_of_this_machine_alone():
    """Every published port is on 127.0.0.1; the database and Redis have none."""
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports == {"service": ["127.0.0.1:8100:8100"], "openwebui": ["127.0.0.1:3000:8080"]}


def test_images_have_a_tag():
    """No image is `latest` or nameless; ours is a variable that must be set."""
    images = {service["image"] for service in SERVICES.values()}
    assert all(re.fullmatch(r"[\w./-]+:v?\d[\w.]*|\$\{\w+:\?.*\}", image) for image in images), images


def test_passwords_are_required_variables():
    """What is secret comes from the environment; compose refuses to start without passwords; the example names all."""
    named = set(re.findall(r"\$\{(\w+)", TEXT))
    example = (ROOT / "examples/openwebui/env.example").read_text("utf-8")
    assert named == set(re.findall(r"^(\w+)=$", example, flags=re.M))
    required = set(re.findall(r"\$\{(\w+):\?", TEXT))
    assert required == {"RAGBANDIT_IMAGE", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "WEBUI_SECRET_KEY"}
    for line in TEXT.splitlines():
        if re.search(r"(PASSWORD|SECRET|KEYS?):", line) and "ENABLE" not in line:
            assert "${" in line, line


def test_open_webui_sends_the_headers_that_the_service_reads():
    """The connection's custom headers are those of docs/openai.md, and it leads to the service."""
    given = SERVICES["openwebui"]["environment"]
    (connection,) = json.loads(given["OPENAI_API_CONFIGS"]).values()
    (told,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs/openai.md").read_text("utf-8"), flags=re.S)
    assert connection["headers"] == json.loads(told)
    assert given["OPENAI_API_BASE_URLS"] == "http://service:8100/v1"


def test_the_services_are_ours(tmp_path):
    """Each runs a verb that there is, with settings that are read; who needs a part waits until it is healthy."""
    for name in ("migrate", "service", "worker", "ratings"):
        service = SERVICES[name]
        assert service["command"][0] == "ragbandit"
        assert service["command"][1] in VERBS
        environment = {key: re.sub(r"\$\{(\w+).*?\}", r"\1", value) for key, value in service["environment"].items()}
        (tmp_path / "config.yaml").write_text("")
        settings = load(str(tmp_path / "config.yaml"), environ=environment).settings
        assert settings.importers.openwebui.url == "http://openwebui:8080"
        assert settings.server.host == "0.0.0.0"
        for other, how in service["depends_on"].items():
            healthy = "healthcheck" in SERVICES[other] or other in ("migrate", "openwebui")
            assert healthy or how["condition"] == "service_started", (name, other)
    assert set(COMPOSE["volumes"]) == {"postgres", "ragbandit", "openwebui"}
