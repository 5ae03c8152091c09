"""deploy/systemd: content of the units, and a check by systemd itself if it is installed."""

import configparser
import re
import shutil
import subprocess

import pytest

from .commands import ROOT, check_command, settings_of

FOLDER = ROOT / "deploy/systemd"
UNITS = sorted(FOLDER.glob("*.service"))


def parsed(file):
    found = configparser.RawConfigParser(strict=False, delimiters=("=",))
    found.optionxform = str
    found.read_string(file.read_text("utf-8"))
    return found


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.stem)
def test_units_run_verbs(file):
    """Every command is a verb of ours with options that it takes; what runs on is started again when it dies."""
    service = parsed(file)["Service"]
    for key in ("ExecStartPre", "ExecStart"):
        if key in service:
            check_command(service[key].split())
    if service["Type"] != "oneshot":
        assert service["Restart"] == "always"
        assert "--wait" in service["ExecStartPre"]


def test_the_drop_in(tmp_path):
    """What all share: no root, no capability, a read-only system, and settings that are read."""
    text = (FOLDER / "ragbandit-hardening.conf").read_text("utf-8")
    service = parsed(FOLDER / "ragbandit-hardening.conf")["Service"]
    assert service["User"] != "root"
    assert (service["CapabilityBoundingSet"], service["NoNewPrivileges"]) == ("", "yes")
    assert (service["ProtectSystem"], service["PrivateTmp"]) == ("strict", "yes")
    environment = dict(re.findall(r"^Environment=(\w+)=(.*)$", text, flags=re.M))
    settings = settings_of(environment, config="", folder=tmp_path)
    assert settings.data_dir == f"/var/lib/{service['StateDirectory']}"


def test_systemd_takes_them(tmp_path):
    """`systemd-analyze verify` reports nothing for the units with their drop-ins."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    for file in UNITS:
        unit = tmp_path / file.name.replace("@.", "@1.")
        unit.write_text(file.read_text("utf-8").replace("/opt/ragbandit/bin/ragbandit", shutil.which("true") or ""))
        (tmp_path / f"{unit.name}.d").mkdir()
        shutil.copy(FOLDER / "ragbandit-hardening.conf", tmp_path / f"{unit.name}.d" / "hardening.conf")
    command = [program, "verify", "--man=no", "--recursive-errors=no", *map(str, tmp_path.glob("*.service"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"})
    said = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert (done.returncode, said) == (0, []), done.stderr
