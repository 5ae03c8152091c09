"""Secrets planted in every setting, known or misspelt, in the file and in the environment: nothing prints one."""

import dataclasses
import json
import logging
import typing
from collections.abc import Iterator

import pytest
import yaml
from pydantic import BaseModel

from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.settings_check import check_policy
from ragbandit.router.serving.router import Router
from ragbandit.router.telemetry.logs import set_up_log
from ragbandit.shared.errors import RagBanditError
from ragbandit.workers.setup.generators import check_worker_arms
from ragbandit.workers.setup.loading import check_generators
from tests.support.additions import needs, only_with
from tests.support.cases import every_case
from tests.support.readiness import states_of

SECRET = "s3cr3tplanted9x7"
#: forms of a secret that are one wherever a text may stand
FORMS = (
    f"postgresql://someone:{SECRET}@db.example/name",
    f"redis://:{SECRET}@cache.example:6379/0",
    f"https://{SECRET}@search.example/v1",
    f"https://search.example/v1?token={SECRET}",
    f"https://search.example/v1#{SECRET}",
    f"s3://key:{SECRET}@bucket/folder",
    f"Bearer {SECRET}",
    f"sk-{SECRET}",
    f'{{"password": "{SECRET}"}}',
)


def leaves(kind: type = Settings, above: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """(dotted key, type) of every setting of the schema."""
    if issubclass(kind, BaseModel):
        fields = {name: field.annotation for name, field in kind.model_fields.items()}
    else:
        fields = typing.get_type_hints(kind)
    for name, annotation in fields.items():
        inner = isinstance(annotation, type) and (
            issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)
        )
        if inner:
            yield from leaves(annotation, (*above, name))
        else:
            yield ".".join((*above, name)), annotation


KEYS = dict(leaves())


def tree_of(key: str, value: object) -> dict:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def variable_of(key: str) -> str:
    return "RAGBANDIT_" + "__".join(part.upper() for part in key.split("."))


def said(tmp_path, tree, environ) -> str:
    """All that loading, checking and printing these settings says, as an error or as the list of settings."""
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(tree))  # which is YAML too
    try:
        loaded = load(file, environ=environ)
        shown = json.dumps(loaded.rows)
        check_worker_arms(loaded.settings)
        check_policy(loaded.settings)
        check_generators(loaded.settings, fetch=False)
    except RagBanditError as error:
        # What an error carries behind it ends in tracebacks.
        chained, said = error, [str(error), repr(error.args), repr(vars(error))]
        while (chained := chained.__cause__) is not None and isinstance(chained, RagBanditError):
            said.append(str(chained))
        return " ".join(said)
    return shown


def planted(tmp_path, key: str, value: object) -> list[str]:
    """What is said with this value in the file, and in the environment."""
    variables = {variable_of(key): json.dumps(value)}
    return [said(tmp_path, tree_of(key, value), {}), said(tmp_path, {}, variables)]


@pytest.mark.parametrize("part", range(4))
def test_every_setting(tmp_path, part):
    """A URL, header, token or key with a secret in it is printed without it, whatever setting it stands in.

    Every setting has all forms in one text, in a list and in a mapping, and every third form by itself, in turn.
    """
    every = "; ".join(FORMS)
    mapping = {"x": every, "y": {"z": list(FORMS)}, **{form: form for form in FORMS}}
    with every_case() as case:
        for number, (key, kind) in [*enumerate(KEYS.items())][part::4]:
            alone = FORMS[number % 3 :: 3] if "str" in str(kind) else ()
            with case(key):
                for value in (*alone, every, [every], mapping):
                    assert SECRET not in said(tmp_path, tree_of(key, value), {}), value
                assert SECRET not in said(tmp_path, {}, {variable_of(key): json.dumps(mapping)})


def test_misspelt(tmp_path):
    """The value of a setting that does not exist is not printed, whatever it is; the right name is."""
    with every_case() as case:
        for key in KEYS:
            wrong = key[:-2] + key[-1] if len(key.rpartition(".")[2]) > 2 else f"{key}x"
            with case(wrong):
                for output in (
                    said(tmp_path, tree_of(wrong, {"x": [SECRET]}), {}),
                    said(tmp_path, {}, {variable_of(wrong): SECRET}),
                ):
                    assert SECRET not in output
                    assert "unknown setting" in output


@pytest.mark.parametrize(
    ("settings", "hidden"),
    [
        ({"generator": {"openai": {"headers": {"X-Team": SECRET}}}}, "generator.openai.headers.X-Team"),
        ({"generator": {"openai": {"fields": {"user": SECRET}}}}, "generator.openai.fields.user"),
        ({"generator": {"openai": {"fields": {"deep": {"list": [SECRET]}}}}}, "generator.openai.fields.deep.list"),
        ({"generator": {"openai": {"api_key_env": SECRET}}}, "generator.openai.api_key_env"),
        pytest.param({"retriever": {"api_key_env": SECRET}}, "retriever.api_key_env", marks=needs("elasticsearch")),
        ({"policy": {"params": {"api_key": SECRET}}}, "policy.params.api_key"),
        ({"arms": {"single_step": {"password": SECRET}}}, "arms.single_step.password"),
        ({"arms": {"ask": {"class": "http", "url": "http://h/", "headers": {"X": SECRET}}}}, "arms.ask.headers.X"),
    ],
)
def test_bare_words_where_secrets_stand(tmp_path, settings, hidden):
    """A word without any sign of a secret is hidden where secrets stand: headers, fields, passwords, keys."""
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(settings))
    shown = {key: value for key, value, _ in load(file, environ={}).rows}
    assert shown[hidden] in ("[hidden]", ["[hidden]"])
    assert SECRET not in json.dumps(shown)


def test_what_is_no_secret_is_shown(tmp_path):
    """Numbers, names, paths and addresses stay as they are, and so do the names of variables."""
    file = tmp_path / "config.yaml"
    address = only_with("elasticsearch", {"url": "http://127.0.0.1:9200"})
    file.write_text(
        "generator: {openai: {base_url: 'http://127.0.0.1:8000/v1', api_key_env: MY_KEY, fields: {temperature: 0.5}}}\n"
        f"snapshots: /var/lib/snapshots\nretriever: {json.dumps(address)}\n"
    )
    environ = {"DATABASE_URL": f"postgresql+psycopg://me:{SECRET}@db:5432/name?sslmode=require&sslpassword={SECRET}"}
    shown = {key: value for key, value, _ in load(file, environ=environ).rows}
    assert shown["generator.openai.base_url"] == "http://127.0.0.1:8000/v1"
    assert shown["generator.openai.api_key_env"] == "MY_KEY"
    assert shown["generator.openai.fields.temperature"] == 0.5
    assert shown["snapshots"] == "/var/lib/snapshots"
    assert address.items() <= {"url": shown.get("retriever.url")}.items()
    assert shown["database_url"].startswith("postgresql+psycopg://me:***@db:5432/name?")
    assert SECRET not in shown["database_url"]


@pytest.fixture
def restored_log():
    """Logging is after the test as it was before."""
    root, ours = logging.getLogger(), logging.getLogger("ragbandit")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level, ours.level = before


def test_a_start_that_fails(settings, capfd, restored_log):
    """A database or a Redis that cannot be reached is named in errors, status and log without its password."""
    set_up_log("DEBUG")
    database = f"postgresql+psycopg://someone:{SECRET}@127.0.0.1:1/name?sslpassword={SECRET}&connect_timeout=2"
    with pytest.raises(RagBanditError) as caught:
        Router.open(settings(database_url=database))
    logging.getLogger("ragbandit").error("it failed", exc_info=caught.value)
    with Router.open(settings(redis_url=f"redis://:{SECRET}@127.0.0.1:1/0")) as router:
        decision = router.route("Who wrote Dracula?")
        router.process.notifier.request_answers([decision.id])
        parts = states_of(router.process.readiness)
    router.process.jobs.close()
    told = capfd.readouterr().err
    assert "it failed" in told
    assert "Redis" in told
    for text in (told, str(caught.value), json.dumps(parts)):
        assert SECRET not in text
