"""`make release-check`: builds wheel and sdist, and looks at what is published with them. Exit code 1 on a fault."""

import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import ragbandit
from tests.release import changelog, licences

ROOT = Path(__file__).parents[2]
#: a wheel that is larger carries what it should not, bytes
LARGEST = 10_000_000


def main() -> int:
    """Run every check; print one line for each."""
    with tempfile.TemporaryDirectory(prefix="ragbandit-release-") as name:
        folder = Path(name)
        checks: list[tuple[str, Callable[[], str | None]]] = [
            ("wheel and sdist are built", lambda: _built(folder)),
            (
                "metadata are right and the README renders",
                lambda: _run(*_python("twine", "check", "--strict"), *_files(folder)),
            ),
            ("the wheel holds the package alone", lambda: _content(folder)),
            ("it runs where nothing else is installed", lambda: _runs(folder)),
            ("licences of the dependencies are on the list", _licences),
            ("the version is the CHANGELOG's", _changelog),
        ]
        failed = 0
        for what, check in checks:
            fault = check()
            failed += fault is not None
            print(f"{'FAILED' if fault else 'ok':<7} {what}" + (f"\n        {fault}" if fault else ""))
    return 1 if failed else 0


def _built(folder: Path) -> str | None:
    return _run(*_python("hatchling", "build", "-d", str(folder)))


def _files(folder: Path) -> list[str]:
    return [str(file) for file in sorted(folder.iterdir()) if file.suffix in (".whl", ".gz")]


def _wheel(folder: Path) -> Path:
    return next(folder.glob("*.whl"))


def _content(folder: Path) -> str | None:
    wheel = _wheel(folder)
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    strange = {top for top in tops if top != "ragbandit" and not top.endswith(".dist-info")}
    if strange:
        return f"it would install {', '.join(sorted(strange))} too"
    size = wheel.stat().st_size
    return None if size <= LARGEST else f"it has {size / 1e6:.1f} MB"


def _runs(folder: Path) -> str | None:
    """Run in a separate environment that has only the dependencies of this one."""
    place = folder / "environment"
    fault = _run(*_python("venv", "--without-pip", str(place)))
    if fault:
        return fault
    python = place / "bin" / "python"
    site = next((place / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = _python("pip", "--python", str(python), "install", "--quiet", "--no-deps", "--ignore-installed")
    fault = _run(*pip, str(_wheel(folder)))
    command = str(place / "bin" / "ragbandit")
    for arguments in (["--version"], ["--help"], ["validate"]):
        fault = fault or _run(command, *arguments, cwd=place)
    return fault


def _licences() -> str | None:
    found = licences.dependencies()
    strange = licences.refused(found)
    print(f"        {len(found)} dependencies")
    return "; ".join(f"{name}: {licence}" for name, licence in strange.items()) or None


def _changelog() -> str | None:
    return changelog.fault_of((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version=ragbandit.__version__)


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def _run(*command: str, cwd: Path = ROOT) -> str | None:
    """Output of a failed command; None if it succeeded."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RAGBANDIT_"))}
    done = subprocess.run(command, cwd=cwd, env=bare, capture_output=True, text=True, timeout=300, check=False)
    return None if done.returncode == 0 else f"{' '.join(command[:4])}: {(done.stdout + done.stderr).strip()[-1500:]}"


if __name__ == "__main__":
    raise SystemExit(main())
