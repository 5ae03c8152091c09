"""Packages that offer arms or policies, installed for one test: real metadata in a folder on sys.path."""

import sys

import pytest

from ragbandit.shared.plugins import installed_entry_points
from ragbandit.strategies.registry import GROUP as ARMS


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that installs a package: its name, {name: "module:Class"}, and the code of that module.

    group: of the entry points, arms where it is left out.
    """
    modules = set()

    def put(package, offered, *, code=None, group=ARMS):
        folder = tmp_path / "installed" / package
        metadata = folder / f"{package.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"[{group}]", *(f"{name} = {path}" for name, path in offered.items())]
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for path in offered.values() if code is not None else ():
            modules.add(path.partition(":")[0])
            (folder / f"{path.partition(':')[0]}.py").write_text(code)
        monkeypatch.syspath_prepend(folder)
        installed_entry_points.cache_clear()

    yield put
    installed_entry_points.cache_clear()
    for module in modules:
        sys.modules.pop(module, None)
