"""The setting `ratings`: the warning of `validate`, and the contracts of its check and of its chore."""

from ragbandit.additions.other_tools.ratings.settings import RatingsSection
from ragbandit.shared.additions import load_offered
from ragbandit.testing.chores import check_chore
from ragbandit.testing.settings_checks import check_settings_check
from tests.support import command
from tests.support.servers.scripted_http import ScriptedHttp, json_reply


def test_validate_warns_of_ratings_without_a_key(tmp_path, monkeypatch):
    """`validate` warns of a list of ratings whose key is not in the environment, since a learner fetches none of it."""
    config = tmp_path / "config.yaml"
    config.write_text(
        "encoder: {model: hashing}\ngenerator: {name: scripted}\n"
        "ratings: {webui: {url: 'http://127.0.0.1:1/api', key_env: WEBUI_KEY}}\n"
    )
    warned = []
    for key in ("", "secret"):
        monkeypatch.setenv("WEBUI_KEY", key)
        output = command.run("validate", "--settings-only", "--config", config).output
        warned.append("warning ratings.webui.key_env: " in output)
    assert warned == [True, False]


def test_the_check_follows_the_contract():
    """Each list of ratings whose key is not set is named by its own setting, also if its name has dots."""
    source = {"url": "http://127.0.0.1:1/api", "key_env": "NO_SUCH_KEY"}
    check_settings_check(RatingsSection.findings, warned=[{"ratings": {"webui": source, "a.b": source}}])


def test_the_chore_follows_the_contract(monkeypatch):
    """The chore of each list has a title of its own, fetches it, and ends also before its first fetch."""
    monkeypatch.setenv("WEBUI_KEY", "secret")
    with ScriptedHttp(json_reply([])) as server:
        sources = {name: {"url": server.url, "key_env": "WEBUI_KEY"} for name in ("webui", "other")}
        check_chore(load_offered("chores")["ratings"], settings={"ratings": sources})
    assert len(server.seen) == 2
