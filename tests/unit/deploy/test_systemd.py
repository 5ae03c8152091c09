"""The systemd unit of docs/deploy.md; no systemd runs here."""

import configparser
import re

from .commands import ROOT, check_command, settings_of


def test_the_unit_runs_a_command_of_ours_with_settings_that_are_read(tmp_path):
    """The unit starts a command that exists, writes only to the folders that systemd makes, and is restarted."""
    (text,) = re.findall(r"```ini\n(\[Unit\].*?)```", (ROOT / "docs" / "deploy.md").read_text("utf-8"), flags=re.S)
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read_string(text)
    service = unit["Service"]
    check_command(service["ExecStart"].split())
    environment = dict(item.split("=", 1) for item in service["Environment"].split())
    settings = settings_of(environment, config="", folder=tmp_path)
    assert str(settings.data_dir) == f"/var/lib/{service['StateDirectory']}"
    assert environment["XDG_CACHE_HOME"] == f"/var/cache/{service['CacheDirectory']}"
    assert (service["ProtectSystem"], service["Restart"]) == ("strict", "always")
