"""Settings: environment beats file beats default, and nothing starts on a guess."""

import json
import sys
from pathlib import Path

import pytest

from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.config.strict_yaml import parse_yaml, yaml_text
from ragbandit.router.policies.settings_check import check_policy
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import MAX_ARMS
from tests.support.additions import needs
from tests.support.cases import every_case

SHIPPED = Path(__file__).parents[4] / "config.yaml"


@pytest.fixture
def written(tmp_path):
    """A function that writes a config file and gives its path."""

    def write(text):
        path = tmp_path / "config.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def refused(path, **environ):
    with pytest.raises(ConfigError) as caught:
        load(path, environ=environ)
    assert caught.value.field, "the error names no field"
    assert caught.value.remedy, "the error has no remedy"
    assert caught.value.code == "CONFIG_INVALID"
    return caught.value


def test_shipped_file_says_the_defaults():
    """The config.yaml of the repository loads and equals the defaults."""
    assert load(SHIPPED, environ={}).settings == Settings()


def test_no_file_gives_the_defaults(tmp_path, monkeypatch):
    """Without a file, and with other variables than ours or empty ones, every setting is its default."""
    monkeypatch.chdir(tmp_path)
    for environ in ({}, {"PATH": "/bin", "RAGBANDIT_URL": "http://x", "DATABASE_URL": "", "REDIS_URL": ""}):
        loaded = load(environ=environ)
        assert loaded.settings == Settings()
        assert loaded.sources == {}


def test_where_the_file_is_found(written, monkeypatch):
    """config.yaml of the working folder is read where RAGBANDIT_CONFIG names no other; an empty one sets nothing."""
    path = written("snapshots: here\n")
    assert load(environ={"RAGBANDIT_CONFIG": str(path)}).settings.snapshots == "here"
    monkeypatch.chdir(path.parent)
    assert load(environ={}).settings.snapshots == "here"
    assert load(written("# nothing\n"), environ={}).settings == Settings()


def test_precedence_and_sources(written):
    """Environment beats file beats default, and every value knows where it came from."""
    path = written("learning: {wait_s: 5.0, aggregate: mean}\nsnapshots: file\n")
    loaded = load(path, environ={"RAGBANDIT_LEARNING__WAIT_S": "30", "DATABASE_URL": "sqlite:///x.db"})
    assert loaded.settings.learning.wait_s == 30.0
    assert loaded.settings.learning.aggregate == "mean"
    assert loaded.settings.learning.batch == Settings().learning.batch
    sources = {key: source for key, _, source in loaded.rows}
    assert sources["learning.wait_s"] == "environment RAGBANDIT_LEARNING__WAIT_S"
    assert sources["learning.aggregate"] == f"file {path}"
    assert sources["learning.batch"] == "default"
    assert sources["database_url"] == "environment DATABASE_URL"
    assert sources["snapshots"] == f"file {path}"


def test_a_name_that_is_not_known_is_answered_with_the_one_that_was_meant(written):
    """An unknown name gets the field and "did you mean"; a number gets its bound, and its unit if it has one."""
    with every_case() as case:
        for text, field, words in (
            ("reward: {cost: {dolars: 1}}", "reward.cost", "did you mean dollars?"),
            ("server: {rate_limits: {raeder: 5/minute}}", "server.rate_limits", "did you mean reader?"),
            (
                "{cost_weights: {economy: 1}, tenants: {a: {cost_weight: econmy}}}",
                "tenants.a.cost_weight",
                "mean economy?",
            ),
            ("armz: {}", "armz", "did you mean arms?"),
            ("learning: {wait: 5}", "learning.wait", "wait_s"),
            ("reward: {cost: {steps: 1.0}, lambda: 2}", "reward.lambda", "weight"),
            ("learning: {lease_s: 0}", "learning.lease_s", "at least 1, not 0 [file"),
            ("tenants: {a: {cost_weights: []}}", "tenants.a.cost_weights", "must have at least 2 items, not 0 [file"),
            ("learning: {lease_s: 0}", "learning.lease_s", "(in seconds; the default is 10.0)"),
            ("learning: {wait_s: 5m}", "learning.wait_s", "write a plain number of seconds"),
            ("server: {rate_limits: {default: 600/min}}", "server.rate_limits.default", "for example 600/minute"),
            ("learning: {sources: {'kye:a': 1}}", "learning.sources.kye:a", "for example key:ID"),
            ("retriever: {name: bm52}", "retriever.name", "did you mean bm25? known: bm25, dense"),
            ("retriever: {name: 'my search:make'}", "retriever.name", "or your own as package.module:function"),
            # sections that are null by default, or that stand in a map, have their own keys
            ("tenants: {a: {budget: 1}}", "tenants.a.budget", "known: budget_stop, cost_weight"),
            ("policy: {holdback: {arm: a, shar: 1}}", "policy.holdback.shar", "did you mean share?"),
            ("policy: {holdback: {arm: a, share: 7}}", "policy.holdback.share", "the default is 0.02"),
            ("conversation: {rewrite: {generator: {nam: a}}}", "conversation.rewrite.generator.nam", "mean name?"),
            (
                "generators: {a: {token_prices: {input: 1.0, output: 1.0, cache: 1.0}}}",
                "generators.a.token_prices.cache",
                "known: cache_write, cache_write_hour",
            ),
        ):
            with case(text):
                error = refused(written(text))
                assert error.field == field
                assert words in str(error)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("learning: {wait_s: soon}", "learning.wait_s", "a text"),
        ("learning: {batch: true}", "learning.batch", "True"),
        ("server: {port: '8100'}", "server.port", "a text"),
        ("policy: null", "policy", "None"),
        ("arms: [single_step]", "arms", "a list"),
        ("reward: {quality: bleu}", "reward.quality", "or 'containment', not another text"),
        ("learning: {aggregate: median}", "learning.aggregate", "or 'max', not 'median'"),
    ],
)
def test_wrong_type_is_refused(written, text, field, value):
    """A value of another type is named with its key, a text without its words; nothing is converted in silence."""
    error = refused(written(text))
    assert error.field == field
    assert value in error.message


OUT_OF_RANGE = (
    "policy.floor=0.6 policy.floor=0.004 policy.cold_start_floor=0.001 reward.weight=.nan reward.cost.steps=-1.0 "
    "learning.weights.judge=.inf data_dir='' arms={}"
)


def a_line(field, value):
    """The configuration that sets this field."""
    return f"{field.replace('.', ': {')}: {value}{'}' * field.count('.')}"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        *((a_line(*pair.split("=")), pair.split("=")[0]) for pair in OUT_OF_RANGE.split()),
        ("policy: {label: 'Main Ledger'}", "policy.label"),
        ("reward: {minimum: 1.0, maximum: 1.0}", "reward"),
        ("feedback_events: {'two words': 0.5}", "feedback_events"),
        (f"feedback_events: {{{', '.join(f'e{n}: 0.5' for n in range(65))}}}", "feedback_events"),
        *(
            (f"arms: {{{name}: }}\npolicy: {{fallback: {name}}}", "arms")
            for name in ("two words", "a/b", "''", "a" * 65)
        ),
    ],
)
def test_out_of_range_is_refused(written, text, field):
    """A value beyond its range is refused under its key."""
    assert refused(written(text)).field == field


@pytest.mark.parametrize(
    ("variable", "value", "field"),
    [
        ("RAGBANDIT_LEARNING__WAIT", "5", "learning.wait"),
        ("RAGBANDIT_SNAPSHOTS__DEEP", "1", "RAGBANDIT_SNAPSHOTS__DEEP"),
        ("RAGBANDIT_SNAPSHOTS", "{a: ", "RAGBANDIT_SNAPSHOTS"),
        ("RAGBANDIT_SNAPSHOTS", "2026-13-45", "RAGBANDIT_SNAPSHOTS"),
        ("RAGBANDIT_LEARNING__WAIT_S", "soon", "learning.wait_s"),
    ],
)
def test_variables_are_refused(written, variable, value, field):
    """Errors name variables of an unknown setting, of a part of a plain value, without YAML, and of a wrong type."""
    error = refused(written("snapshots: x"), **{variable: value})
    assert error.field == field
    assert (f"[environment {variable}]" in error.message) == (value in ("5", "soon"))


@pytest.mark.parametrize(
    ("line", "field", "remedy"),
    [
        ("database_url: postgresql+psycopg://me:hunter2@host/name", "database_url", "DATABASE_URL"),
        ("database_url: postgresql+psycopg://host/name?user=me&password=hunter2", "database_url", "DATABASE_URL"),
        ("redis_url: redis://:hunter2@host:6379/0", "redis_url", "REDIS_URL"),
        ("redis_url: redis://host:6379/0?password=hunter2", "redis_url", "REDIS_URL"),
        ('arms: {far: {class: http, url: "http://me:hunter2@host/x"}}', "arms.far.url", "headers_env"),
        ('arms: {far: {class: http, url: "http://host/x?token=hunter2"}}', "arms.far.url", "headers_env"),
        (
            'arms: {far: {class: "mine:Arm", servers: {index: ["https://hunter2@host"]}}}',
            *("arms.far.servers.index", "headers_env"),
        ),
    ],
)
def test_secret_in_the_file_is_refused(written, line, field, remedy):
    """A URL with a password, also in the params of an arm of any class, is refused without repeating it; the field is
    named, and the remedy names where it may stand.
    """
    error = refused(written(line))
    assert error.field == field
    assert remedy in error.remedy
    assert "hunter2" not in str(error)


@pytest.mark.parametrize("value", [-1.5, 1.5])
def test_default_reward_must_be_within_the_bounds(written, value):
    """A default reward beyond the bounds of rewards is refused with its value and the bounds' keys."""
    error = refused(written(f"learning: {{default_reward: {value}}}"))
    assert error.field == "learning.default_reward"
    assert str(value) in error.message
    assert "reward.minimum" in error.message
    wide = load(written(f"learning: {{default_reward: {value}}}\nreward: {{minimum: -2.0, maximum: 2.0}}"), environ={})
    assert wide.settings.learning.default_reward == value


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"name": "oracle"}, "policy.name"),
        ({"params": {"learning_rate": 0.1}}, "policy.params.learning_rate"),
        ({"name": "fixed", "params": {"arm": "oracle"}}, "policy.params.arm"),
        pytest.param({"name": "adaptive_rag"}, "policy.params.trained", marks=needs("classifiers")),
    ],
)
def test_policy_that_cannot_decide_is_refused(policy, field):
    """An unknown policy, a wrong param, an arm that is not configured, an untrained policy: refused."""
    with pytest.raises(ConfigError) as caught:
        check_policy(Settings.model_validate({"policy": policy}))
    assert caught.value.field == field
    assert caught.value.remedy


def multiplied(form):
    """A text of ten lines whose aliases stand for 10^10 arms."""
    lines = [f"x{n}: &x{n} {form.format(', '.join([f'*x{n - 1}'] * 10))}" for n in range(1, 11)]
    return "\n".join(["x0: &x0 {run_by: caller}", *lines, "arms: *x10\n"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "") for text in ("a: [1, 2", "a: b: c", "\tsnapshots: x", b"snapshots: \xff\xfe", "- a\n- b\n", "7")),
        ("snapshots: a\nsnapshots: b\n", "'snapshots' is set twice"),
        ("learning: {batch: 1, wait_s: 1.0, batch: 2}", "'batch' is set twice"),
        ("snapshots: 2026-13-45", "the value is invalid (line 1, column 12)"),
        ("arms: !!bool maybe", "the value is invalid (line 1, column 7)"),
        ("? [a, b]\n: c", "it is not YAML (TypeError)"),
        ("arms: {a: &x {run_by: caller, own: *x}}", "recursive node (line 1, column 11)"),
        ("a: &x [1, [2, *x]]", "recursive node (line 1, column 4)"),
        (multiplied("[{}]"), "there are too many values"),
        (multiplied("{{<<: [{}]}}"), "there are too many values"),
    ],
)
def test_broken_yaml_is_refused(written, text, said):
    """A file is refused if it is not a YAML mapping in UTF-8, or if it sets a key twice."""
    error = refused(written(text))
    assert error.field == "config"
    assert said in error.message


NUMBERS = ("1e-05", "-1E5", "2e+3", "0.5e1", "10", "-0.25")


def test_every_number_of_json_is_a_number(written):
    """Numbers as json.dumps writes them are numbers in the file and in variables; such texts stay texts."""
    value = {"a": [*map(float, NUMBERS)], "texts": [*NUMBERS, "1e", "e5", "01e5"]}
    assert parse_yaml(f'{{"a": [{",".join(NUMBERS)}], "texts": {json.dumps(value["texts"])}}}') == value
    assert parse_yaml(yaml_text(value)) == value
    path = written(json.dumps({"tenants": {"t1": {"dollars_per_day": 1e-05}}}))
    settings = load(path, environ={"RAGBANDIT_REWARD__WEIGHT": "1e-07"}).settings
    assert (settings.tenants["t1"].dollars_per_day, settings.reward.weight) == (1e-05, 1e-07)


def test_too_many_arms_are_refused(written):
    """A file with more arms than one policy can choose between is refused by their number, before they are read."""
    arms = ",".join(f"a{number}: {{run_by: caller}}" for number in range(MAX_ARMS + 1))
    error = refused(written(f"arms: {{{arms}}}"))
    assert error.field == "arms"
    assert "at most 1000 items, not 1001" in error.message


@pytest.mark.parametrize(
    "url",
    ["mysql://host/name", "oracle://host/name", "nonsense", "postgresql://host:port/name"],
)
def test_unknown_database_is_refused(written, url):
    """An invalid URL, or one of another database than SQLite and PostgreSQL, is refused with an example."""
    error = refused(written(""), DATABASE_URL=url)
    assert error.field == "database_url"
    assert "postgresql" in error.remedy
    assert refused(written(f"database_url: {url}")).field == "database_url"


@pytest.mark.parametrize(
    ("variable", "given", "used"),
    [
        (
            "DATABASE_URL",
            "postgres://me:pw@host:5433/name?sslmode=require",
            "postgresql+psycopg://me:pw@host:5433/name?sslmode=require",
        ),
        ("DATABASE_URL", "POSTGRESQL://host/name", "postgresql+psycopg://host/name"),
        ("DATABASE_URL", "postgresql+psycopg://host/name", "postgresql+psycopg://host/name"),
        ("DATABASE_URL", "sqlite:////var/a.db", "sqlite:////var/a.db"),
        ("DATABASE_URL", "postgres://host/name\n", "postgresql+psycopg://host/name"),
        ("DATABASE_URL", '"postgres://host/name"', "postgresql+psycopg://host/name"),
        ("DATABASE_URL", "postgresql://me@a:1,b:2/name", "postgresql+psycopg://me@/name?host=a:1&host=b:2"),
        ("DATABASE_URL", "postgresql://a,b:2/name?options=-c", "postgresql+psycopg:///name?host=a&host=b:2&options=-c"),
        ("DATABASE_URL", "postgres://me@%2Frun%2Fpg:1/name", "postgresql+psycopg://me@/name?host=/run/pg&port=1"),
        ("DATABASE_URL", "postgres://a@srv:p,w:1@host/name", "postgresql+psycopg://a@srv:p,w:1@host/name"),
        ("REDIS_URL", "REDIS://host:6380/1\t\n", "redis://host:6380/1"),
        ("REDIS_URL", "redis:///0?password=a@b", "redis:///0?password=a@b"),
        ("REDIS_URL", "redis://:p@w@host:6380/1", "redis://:p@w@host:6380/1"),
        ("REDIS_URL", "unix://:pw@/run/a@b.sock?db=1", "unix://:pw@/run/a@b.sock?db=1"),
        ("REDIS_URL", "valkey://:pw@host:6380/1", "redis://:pw@host:6380/1"),
        ("REDIS_URL", "valkeys://host?ssl_ca_certs=/ca.pem", "rediss://host?ssl_ca_certs=/ca.pem"),
    ],
)
def test_an_address_as_hosts_write_it(written, variable, given, used):
    """The schemes of hosting companies for PostgreSQL and Valkey lead to the clients that this service has."""
    settings = load(written(""), environ={variable: given}).settings
    assert getattr(settings, variable.lower()) == used


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("DATABASE_URL", "postgres://me:hunter2@pass@host/name"),
        ("REDIS_URL", "redis://:hunter2/pass@host:6379/0"),
        ("REDIS_URL", "rediss://me:12/hunter2=@host:6380/0"),
        ("REDIS_URL", "redis://:hunter2#pass@host:6379/0"),
        ("REDIS_URL", "redis://:12?hunter2@host:6379/0"),
        ("REDIS_URL", "redis://me:0?hunter2@host:6379/0"),
    ],
)
def test_a_password_that_cuts_the_address_is_refused(written, variable, url):
    """A character that ends the password too early is named as such, before a client prints the rest as a host."""
    error = refused(written(""), **{variable: url})
    assert (error.field, "%40" in str(error.remedy)) == (variable.lower(), True)
    assert not any(part in str(error) for part in ("hunter2", "pass@", "12"))


@pytest.mark.parametrize("driver", ["psycopg2", "asyncpg", "pg8000"])
def test_another_driver_is_refused_with_the_scheme_that_works(written, driver):
    """A URL that names another driver is refused, and the remedy has the scheme with the driver of this service."""
    error = refused(written(""), DATABASE_URL=f"postgresql+{driver}://host/name")
    assert (error.field, driver in error.message) == ("database_url", True)
    assert "postgresql+psycopg://" in error.remedy


@pytest.mark.parametrize("scheme", ["redis+sentinel", "redis-sentinel", "redis+cluster", "tcp"])
def test_another_kind_of_redis_is_refused_with_the_scheme_that_works(written, scheme):
    """An address of sentinels or of a cluster is refused, and the remedy names an address of one server."""
    error = refused(written(""), REDIS_URL=f"{scheme}://host:26379/0")
    assert (error.field, "redis://host:6379/0" in str(error.remedy)) == ("redis_url", True)


LINKS = {
    "RAGBANDIT_SERVICE_HOST": "10.96.0.12",
    "RAGBANDIT_SERVICE_PORT": "8100",
    "RAGBANDIT_SERVICE_PORT_HTTP": "8100",
    "RAGBANDIT_PORT": "tcp://10.96.0.12:8100",
    "RAGBANDIT_PORT_8100_TCP": "tcp://10.96.0.12:8100",
    "RAGBANDIT_PORT_8100_TCP_PROTO": "tcp",
    "RAGBANDIT_PORT_8100_TCP_PORT": "8100",
    "RAGBANDIT_PORT_8100_TCP_ADDR": "10.96.0.12",
    "RAGBANDIT_SERVER_PORT": "tcp://[fd00::12]:8100",
    "RAGBANDIT_SERVER_SERVICE_HOST": "fd00::12",
    "RAGBANDIT_REDIS_PORT_53_UDP_ADDR": "10.96.0.13",
}


def test_variables_of_services_are_no_settings(written):
    """Variables that Kubernetes adds for Services named ragbandit, ragbandit-server and so on change no setting."""
    assert load(written(""), environ=LINKS).settings == load(written(""), environ={}).settings
    settings = load(written(""), environ=LINKS | {"RAGBANDIT_SERVER__PORT": "8101"}).settings
    assert settings.server.port == 8101


@pytest.mark.parametrize("variable", ["RAGBANDIT_PORT", "RAGBANDIT_SERVICE", "RAGBANDIT_SERVER__SERVICE_HOST"])
def test_a_variable_like_a_service_is_still_a_setting(written, variable):
    """A variable that only looks like those of a Service is refused as an unknown setting."""
    assert refused(written(""), **{variable: "8100"}).field


def test_classes_are_found_beside_the_file(written, monkeypatch):
    """The file's folder is put at the end of sys.path once, since a setting may name a class there."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = [*sys.path]
    file = written("arms: {a: {class: 'my_arms:A'}}")
    load(file, environ={})
    load(file, environ={})
    assert sys.path == [*before, str(file.parent)]


def test_sources_of_mappings_from_the_environment(tmp_path):
    """A mapping of the environment, given whole or by one key, is the source of its leaves, over the file's."""
    (tmp_path / "c.yaml").write_text(
        "generator: {openai: {headers: {X-A: b}}}\narms: {old: {run_by: caller}}\nbudget:\n"
    )
    environ = {
        "RAGBANDIT_GENERATOR__OPENAI__HEADERS": "{X-Team: rag, a.b: c}",
        "RAGBANDIT_GENERATOR__OPENAI__FIELDS__SEED": "7",
        "RAGBANDIT_ARMS": "{mine: {run_by: caller}, single_step: {passages: 4}, multi_step: , bare: }",
        "RAGBANDIT_ARMS__BARE__PASSAGES": "3",
        "RAGBANDIT_BUDGET__ROUNDS": "9",
        "RAGBANDIT_JUDGE": "{generator: default}",
        "RAGBANDIT_ARMS__V2__RUN_BY": "caller",
    }
    loaded = load(tmp_path / "c.yaml", environ=environ)
    assert set(loaded.settings.arms) == {"mine", "single_step", "multi_step", "bare", "v2"}
    rows = {key: source for key, _, source in loaded.rows}
    of_headers, of_arms = "environment RAGBANDIT_GENERATOR__OPENAI__HEADERS", "environment RAGBANDIT_ARMS"
    assert rows["generator.openai.headers.X-Team"] == rows["generator.openai.headers.a.b"] == of_headers
    assert rows["generator.openai.fields.seed"] == "environment RAGBANDIT_GENERATOR__OPENAI__FIELDS__SEED"
    assert rows["arms.mine.run_by"] == rows["arms.single_step.passages"] == rows["arms.multi_step"] == of_arms
    assert rows["arms.v2.run_by"] == "environment RAGBANDIT_ARMS__V2__RUN_BY"
    assert rows["arms.bare.passages"] == "environment RAGBANDIT_ARMS__BARE__PASSAGES"
    assert (loaded.settings.budget.rounds, rows["budget.rounds"]) == (9, "environment RAGBANDIT_BUDGET__ROUNDS")
    of_judge = "environment RAGBANDIT_JUDGE, generator"
    assert (rows["judge.generator.openai.headers.X-Team"], rows["judge.share"]) == (of_judge, "default")
    assert not {key for key in rows if key.startswith(("generator.openai.headers.X-A", "arms.old"))}
