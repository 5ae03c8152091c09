"""Addresses of servers: what cannot be one is refused by the setting's name, and no password is shown."""

import pytest
from hypothesis import given, strategies as st

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.model_servers.outbound import check_address, check_header_value, shown_address

WRONG = {
    "localhost:8000/v1": "does not begin with http://",
    "ftp://host/v1": "does not begin with http://",
    "": "does not begin with http://",
    "http://": "has no host",
    "http:///v1": "has no host",
    "https://:80/v1": "has no host",
    "http://me:word@": "has no host",
    "http://[::1/v1": "host cannot be read",
    "http://a..b/v1": "host cannot be read",
    "http://" + "a" * 64 + "/v1": "host cannot be read",
    "http://host:99999/v1": "not a number from 1 to 65535",
    "http://host:0/v1": "not a number from 1 to 65535",
    "http://host:-1/v1": "not a number from 1 to 65535",
    "http://host:80:90/v1": "not a number from 1 to 65535",
    "http://host:port/v1": "not a number from 1 to 65535",
    "http://my host/v1": "space or a control character",
    "http://ho\nst/v1": "space or a control character",
    "http://ho\x00st/v1": "space or a control character",
    "http://host/v1#part": "fragment",
    "http://host/v1?y=1": "query",
}


@pytest.mark.parametrize("url", WRONG, ids=lambda url: f"{url!r:.40}")
def test_what_is_no_address(url):
    """What nobody can be reached at is refused with the setting, the fault and the remedy."""
    with pytest.raises(ConfigError, match=WRONG[url]) as caught:
        check_address(url, field="some.url", remedy="write it so")
    assert (caught.value.field, caught.value.remedy) == ("some.url", "write it so")


@pytest.mark.parametrize(
    "url",
    [
        *("http://host", "HTTPS://Host/v1", "http://127.0.0.1:1/v1", "http://host:65535", "http://host:/v1"),
        *("http://[::1]:80/v1", "http://me:word@my_host.:9200/x", "http://hôst/v1"),
    ],
)
def test_what_is_an_address(url):
    """An http(s) URL with a host is taken, with a port or without one."""
    check_address(url, field="some.url", remedy="write it so")
    check_address(f"{url}?y=1", field="some.url", remedy="write it so", query=True)


@given(secret=st.text())
def test_no_secret_is_shown(secret):
    """Neither user and password nor query are shown, whatever the password is made of."""
    assert shown_address(f"http://me:{secret}@host:99999/v1?key=1#x") == "http://host:99999/v1"


# With one of the others it is another URL, of the host "me".
@given(secret=st.text(st.characters(exclude_characters="/?#")))
def test_no_refusal_shows_the_password(secret):
    """An address that is refused is refused without its password."""
    with pytest.raises(ConfigError) as caught:
        check_address(f"http://me:{secret}-secret@host:99999/v1", field="some.url", remedy="write it so")
    assert "-secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://host:80/v1", "host:80/v1", "http://"])
def test_the_rest_is_shown_as_it_is(url):
    """A URL without secrets is shown unchanged."""
    assert shown_address(url) == url


@pytest.mark.parametrize(
    "value", ["secret-key\n", " secret-key", "secret\nkey", "sécret-key", "secret\x00", "\t", "   ", "cret\r"]
)
def test_what_no_header_can_carry(value):
    """A line break, a space at an end or a letter beyond ASCII is refused, and the value not shown."""
    with pytest.raises(ConfigError, match="MY_KEY contains a line break") as caught:
        check_header_value(value, source="MY_KEY", field="some.key", remedy="give the value alone")
    assert (caught.value.field, caught.value.remedy) == ("some.key", "give the value alone")
    assert "cret" not in str(caught.value)
    check_header_value("Bearer secret key", source="MY_KEY", field="some.key", remedy="")
