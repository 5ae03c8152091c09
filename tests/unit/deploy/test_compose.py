"""deploy/compose.yaml: its shape. It is not run here; nothing here has a Docker daemon."""

import ipaddress
import json
import re

import pytest
import yaml

from .commands import ROOT, check_command, settings_of

FOLDER = ROOT / "deploy"
TEXT = (FOLDER / "compose.yaml").read_text("utf-8")
OVERLAY = (FOLDER / "compose.oauth2-proxy.yaml").read_text("utf-8")
COMPOSE = yaml.safe_load(TEXT)
SERVICES = COMPOSE["services"]
OURS = sorted(name for name, service in SERVICES.items() if "ragbandit" in service["image"])


def test_ports_are_of_this_machine_alone():
    """Every published port is on 127.0.0.1; the database, Redis and the models have none."""
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(ports) == {"service", "openwebui", "prometheus", "grafana"}
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for listed in ports.values() for port in listed)


def test_passwords_are_required_variables():
    """What is secret comes from the environment; compose refuses to start without passwords; the example names all."""
    example = (FOLDER / "env.example").read_text("utf-8")
    assert set(re.findall(r"\$\{(\w+)", TEXT + OVERLAY)) == set(re.findall(r"^(\w+)=", example, flags=re.M))
    assert set(re.findall(r"\$\{(\w+):\?", TEXT)) == {"POSTGRES_PASSWORD", "REDIS_PASSWORD"}
    assert not re.search(r"(PASSWORD|SECRET|KEY|TOKEN)=.", example)
    for line in TEXT.splitlines():
        if re.search(r"(PASSWORD|SECRET|KEYS?|TOKEN):", line) and "ENABLE" not in line:
            assert "${" in line, line


def test_nothing_may_more_than_it_needs():
    """Every container gives up all capabilities but Open WebUI, whose image starts as root; our roots are read-only."""
    for name, service in SERVICES.items():
        if name == "openwebui":
            continue
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service
    for name in (*OURS, "postgres", "redis", "prometheus", "grafana"):
        assert SERVICES[name]["read_only"] is True, name


@pytest.mark.parametrize("name", OURS)
def test_our_services_run_verbs_with_settings_that_are_read(name, tmp_path):
    """Every service runs an existing verb with valid options and settings."""
    service = SERVICES[name]
    check_command(service["command"])
    environment = {key: re.sub(r"\$\{(\w+).*?\}", r"\1", value) for key, value in service["environment"].items()}
    settings = settings_of(environment, config=(ROOT / "config.yaml").read_text("utf-8"), folder=tmp_path)
    assert (settings.server.host, settings.data_dir) == ("0.0.0.0", "/data")
    assert settings.database_url is not None
    assert settings.database_url.startswith("postgresql+psycopg://")
    assert f":{settings.server.port}" in SERVICES["service"]["ports"][0]
    assert "ragbandit:/data" not in service["volumes"]


def test_nobody_starts_before_what_it_needs():
    """Who needs a part waits until it is healthy; whatever runs on has a health check; migrations are run once."""
    for name, service in SERVICES.items():
        once = service["restart"] == "no"
        assert once == (name == "migrate")
        for other, how in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if other == "migrate" else "service_healthy"
            assert how["condition"] == wanted, (name, other)
            assert other == "migrate" or "healthcheck" in SERVICES[other]
    assert {name for name in SERVICES if "healthcheck" not in SERVICES[name]} == {"migrate", "openwebui"}


def test_the_core_has_no_profile():
    """What everybody needs starts without a profile, and nothing else does."""
    core = {name for name, service in SERVICES.items() if "profiles" not in service}
    assert core == {"postgres", "redis", "migrate", "service", "worker", "learner"}
    profiles = {profile for service in SERVICES.values() for profile in service.get("profiles", ())}
    assert profiles == {"elasticsearch", "vllm", "openwebui", "monitoring"}


def test_open_webui_sends_the_headers_that_the_service_reads():
    """The connection's custom headers are those of docs/openai.md, and it leads to the service."""
    given = SERVICES["openwebui"]["environment"]
    (connection,) = json.loads(given["OPENAI_API_CONFIGS"]).values()
    (told,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs/openai.md").read_text("utf-8"), flags=re.S)
    assert connection["headers"] == json.loads(told)
    assert given["OPENAI_API_BASE_URLS"] == "http://service:8100/v1"


def test_sign_in_trusts_the_proxy_alone(tmp_path):
    """Beside oauth2-proxy the service believes one address: the proxy's, in a network of the two."""
    overlay = yaml.safe_load(OVERLAY)
    service, proxy = overlay["services"]["service"], overlay["services"]["oauth2-proxy"]
    given = {**SERVICES["service"]["environment"], **service["environment"]}
    environment = {key: re.sub(r"\$\{(\w+).*?\}", r"\1", value) for key, value in given.items()}
    server = settings_of(environment, config=(ROOT / "config.yaml").read_text("utf-8"), folder=tmp_path).server
    address = proxy["networks"]["pages"]["ipv4_address"]
    assert server.trusted_proxies == [address]
    (network,) = overlay["networks"]["pages"]["ipam"]["config"]
    assert ipaddress.ip_address(address) in ipaddress.ip_network(network["subnet"])
    assert {name for name, one in overlay["services"].items() if "pages" in one["networks"]} == {
        "service",
        "oauth2-proxy",
    }
    assert (server.trusted_header, set(server.trusted_roles.values())) == (
        "x-forwarded-groups",
        {"reader", "operator", "admin"},
    )
    told = proxy["environment"]
    assert told["OAUTH2_PROXY_UPSTREAMS"] == f"http://service:{server.admin_port}/"
    assert told["OAUTH2_PROXY_PASS_BASIC_AUTH"] == "false"
    assert all(port.startswith("127.0.0.1:") for port in proxy["ports"])
    assert not re.search(r"SECRET: (?!\$\{)", OVERLAY)
