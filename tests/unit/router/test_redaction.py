"""Secrets are taken out of texts that were written by code we do not know."""

import pytest
from hypothesis import given, settings, strategies as st

from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.texts import redaction
from ragbandit.shared.texts.redaction import credentials_in, without_credentials, without_secrets


@pytest.mark.parametrize(
    "text",
    [
        *("db down: postgres://u:hunter2@h/x", "postgresql+psycopg://u:hunter2@h:5432/x?sslmode=require"),
        "('cannot connect', 'postgres://u:hun/ter2hunter2@h/x')",
        *("mongodb://u:hunter2@a:27017,b:27017/x?replicaSet=r", "mysql://root:p@ss@hunter2@h/x"),
        *("amqps://guest:hunter2@broker//", "redis://:hunter2@h:6379/0", "https://hunter2@github.com/x.git"),
        *("mysql://u:with space hunter2@h/x", "GET https://api.example.com/v1/x?api_key=hunter2&n=1 -> 500"),
        *("https://blob.example.net/c?sv=1&sig=hunter2 refused", "see https://h/cb#access_token=hunter2"),
        *("root:hunter2@tcp(127.0.0.1:3306)/db", "ORA-12541: scott/hunter2@dbhost:1521/x"),
        *("host=h port=5432 user=u password=hunter2 dbname=x", "host=h password='hunter2 and more' user=u"),
        *("Server=h;UID=sa;PWD=hunter2;Database=d", "Server=h;Password=two hunter2;Database=d"),
        *("DRIVER={ODBC};UID=sa;PWD={hun;ter2hunter2}", "AccountName=a;AccountKey=hunter2==;EndpointSuffix=core"),
        "Endpoint=sb://h/;SharedAccessKeyName=k;SharedAccessKey=hunter2",
        *('body {"user": "u", "password": "hunter2"}', 'body {"client_secret":"hunter\\"2 hunter2"}'),
        *('{"error": "{\\"api_key\\": \\"hunter2\\"}"}', "connect(user='u', passwd='hunter2', host='h')"),
        *("Settings(openai_api_key=hunter2, model='m')", "password: hunter2", "OPENAI_API_KEY=hunter2"),
        *("aws_secret_access_key = hunter2", "Authorization: Basic hunter2"),
        *("headers {'Authorization': 'Bearer hunter2'}", "Authorization: hunter2", "sent Bearer hunter2-and-more"),
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----",
        *("-----BEGIN PRIVATE KEY-----\nhunter2, cut off", "token = hunter2"),
    ],
)
def test_secrets_are_removed(text):
    """Connection strings, fields with telling names, headers and private keys lose their secret."""
    hidden = without_secrets(text)
    assert "hunter2" not in hidden
    assert hidden


@pytest.mark.parametrize(
    "key",
    [
        *("sk-proj-abcdefghij0123456789", "rb_0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQ"),
        *("AKIAIOSFODNN7EXAMPLE", "ghp_abcdefghijklmnopqrstuvwxyz0123456789", "github_pat_abcdefghijklmnopqrstuv"),
        *("hf_abcdefghijklmnopqrstuvwxyz", "xoxb-1234567890-abcdef", "AIzaSyA-abcdefghijklmnopqrstuvwxyz0123"),
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    ],
)
def test_keys_of_known_services_are_removed(key):
    """A key is known by its first letters wherever it stands."""
    assert without_secrets(f"refused ({key}), try again") == "refused ([key]), try again"


@pytest.mark.parametrize(
    "text",
    [
        "TimeoutError: no server",
        "the prompt for read has 9000 tokens; with 32 to write it exceeds the model's 2048",
        *("max_tokens=32, prompt_tokens: 12, context_tokens = 2048", "it replied 503: {'detail': 'the index is gone'}"),
        "http://127.0.0.1:9/answer cannot be asked: it took longer than 3 s",
        *("see http://h:8080/x and write to me @ home", "KeyError: 'password'", 'File "/a/b/c.py", line 12, in answer'),
        *("status 401: put a valid key into the environment variable OPENAI_API_KEY", ""),
    ],
)
def test_other_texts_stay_as_they_are(text):
    """Nothing is taken out of a text without anything that looks like a secret."""
    assert without_secrets(text) == text


_PIECES = (
    *("postgres://", "u:pw", "@h", "?sig=", "#", "Authorization: ", "BEARER ", "hunter22", "hunter2 and more", ";"),
    *("Password=", "PWD =", '"api key": ', "my_token: ", "tokens=", "Sig=", "pass:", "AKIAIOSFODNN7EXAMPLE", "gho_"),
    *("0123456789abcdefghij", "hf_", "xoxb-", "eyJhbGciOi.eyJzdWIi", "sk-", "rb_0123456789_x", "'", " ", "{", "\n"),
    # with letters that IGNORECASE takes for i, s and k
    *("s\u0131g=", "pa\u017f\u017fword=", "to\u212aen=", "author\u0130zation: "),
)


@given(st.lists(st.sampled_from(_PIECES), max_size=12).map("".join))
@settings(max_examples=300, deadline=None)
def test_a_pattern_is_skipped_only_where_it_cannot_match(text):
    """Texts are the same as if every pattern had been tried."""
    expected = redaction._PRIVATE_KEY.sub(redaction._REDACTED, text).split("\n")
    for _, pattern, replacement in redaction._SECRETS:
        expected = [pattern.sub(replacement, line) for line in expected]
    assert without_secrets(text) == "\n".join(expected)


def test_a_long_line_is_cut():
    """No pattern reads a longer line than 4,000 characters: their time would grow with its square."""
    long = ("x://a:", "password ", "password=", '\\\\"', "-----BEGIN PRIVATE KEY-----")
    for piece in ("a", "a:", "x://", "a/b", "-", "'", *long):
        assert len(without_secrets(piece * 50_000)) <= 4_100, piece


@pytest.mark.parametrize(
    ("address", "stored"),
    [
        ("http://me:hunter2@host:9000/x", "http://host:9000/x"),
        ("https://hunter2@host/x", "https://host/x"),
        ("http://me:hun@ter2@host/x", "http://host/x"),
        ("postgresql+psycopg://me:hun/ter2@host/db", "postgresql+psycopg://host/db"),
        ("mongodb://me:hunter2@a:27017,b:27017/x", "mongodb://a:27017,b:27017/x"),
        ("http://h/x?token=hunter2&lang=en", "http://h/x?token=[hidden]&lang=en"),
        ("http://h/x?lang=en;API-Key=hunter2", "http://h/x?lang=en;API-Key=[hidden]"),
        ("http://h/x?%74oken=hunter2", "http://h/x?%74oken=[hidden]"),
        ("http://h/x?code=hunter2", "http://h/x?code=[hidden]"),
        ("http://h/x?subscription-key=hunter2", "http://h/x?subscription-key=[hidden]"),
        ("http://h/x?sig=hunter2", "http://h/x?sig=[hidden]"),
        ("http://h/x#access_token=hunter2", "http://h/x#access_token=[hidden]"),
        ("either http://me:hunter2@a or http://b/?key=hunter2", "either http://a or http://b/?key=[hidden]"),
    ],
)
def test_addresses_are_stored_without_credentials(address, stored):
    """User and password go, and the value of a field of the query whose name speaks of a secret; the rest stays."""
    assert without_credentials(address) == stored
    assert without_credentials(stored) == stored


@pytest.mark.parametrize(
    "value",
    [
        "http://localhost:9000/answer?lang=en&top_k=3&max_tokens=5#part",
        "http://[::1]:9000/@me",
        "https://medium.com/@someone/a-post",
        "http://h/x?mail=a@b.c",
        "Write to me@host: password=none, http://h:80 is fine",
        {"url": "http://h", "headers_env": {"X-Api-Key": "ARM_KEY"}, "rounds": 3, "list": [1, None, ("a", True)]},
    ],
)
def test_what_has_no_credentials_is_stored_as_it_is(value):
    """Params without a secret keep their form, so that what was stored of an arm before is what is stored now."""
    assert without_credentials(value) == value
    assert credentials_in(value, field="arms.a") is None


def test_credentials_are_found_wherever_they_stand():
    """In lists and mappings however deep, and in names, which are shown without them."""
    address = "http://me:hunter2@host"
    assert without_credentials({"a": [{"b": (address,)}], address: 1}) == {
        "a": [{"b": ("http://host",)}],
        "http://host": 1,
    }
    assert credentials_in({"far": {"a": [{"b": (address,)}]}}, field="arms") == "arms.far.a"
    assert credentials_in({"far": {"servers": {"b": address}}}, field="arms") == "arms.far.servers.b"
    assert credentials_in({address: 1}, field="arms") == "arms.http://host"


@pytest.mark.parametrize("kind", [InvalidInput, ConfigError])
def test_an_error_can_be_sent(kind):
    """Half a surrogate pair in a message, a field or a remedy is a question mark."""
    assert str(kind("\ud800", field="\ud800", remedy="\ud800")).encode() == b"?: ? (?)"
