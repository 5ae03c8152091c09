"""Verb `skeleton`: copies parts and the tests of their contracts into a package that pip can install."""

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from ragbandit.router.cli.console import console
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import known_choices

_PARTS: Final = Path(__file__).parent / "parts"
#: part -> (hook, place in the package); "NAME" is the name of the package
_OFFERED: Final = {
    "arm": ("arms", "arm:OwnArm"),
    "policy": ("policies", "policy:OwnPolicy"),
    "retriever": ("retrievers", "retriever:own_kind"),
    "step": ("steps", "step:OwnStep"),
    "door": ("doors", "door:DOOR"),
    "chore": ("chores", "chore:OwnChore"),
    "log": ("logs", "log:OwnLog"),
    "settings": ("sections", "settings:OwnSection"),
    "verb": ("verbs", "verb:own_verb"),
}
_PROJECT: Final = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{project}"
version = "0.1"
requires-python = ">=3.11"
dependencies = ["ragbandit"]

[project.entry-points."ragbandit.additions"]
{package} = "{package}"

[tool.hatch.build.targets.wheel]
packages = ["{package}"]
"""


def skeleton(
    name: Annotated[str, typer.Argument(help="name of the package: small letters, digits and underscores")],
    *,
    part: Annotated[list[str] | None, typer.Option(help=f"{', '.join(_OFFERED)}; repeat for several")] = None,
    folder: Annotated[Path | None, typer.Option(help="folder to write; default: NAME in this folder")] = None,
) -> None:
    """Write a package with parts of your own and the tests of their contracts, for `pip install`."""
    if re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name) is None:
        remedy = "begin with a small letter, and use small letters, digits and underscores"
        raise InvalidInput(f"{name!r:.80} is not a package name", field="NAME", remedy=remedy)
    parts = dict.fromkeys(part or ["arm"])
    for one in parts:
        if one not in _OFFERED:
            raise InvalidInput(
                f"there is no part {one!r:.80}", field="--part", remedy=known_choices([*_OFFERED], given=one)
            )
    target = folder or Path(name)
    if target.exists() and any(target.iterdir()):
        raise InvalidInput(f"{target} is not empty", field="--folder", remedy="name another folder")
    for file, text in _package_files(name, parts=[*parts]).items():
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        (target / file).write_text(text, encoding="utf-8")
    console.print(
        f"{target} has the package {name}: run `pip install -e {target}`, then `pytest {target}`", markup=False
    )


def _package_files(name: str, *, parts: list[str]) -> dict[str, str]:
    """Path of a file in the folder -> its text."""
    hooks = [f'{_OFFERED[part][0]}={{"{"" if part == "settings" else name}": "{_OFFERED[part][1]}"}}' for part in parts]
    files = {
        "pyproject.toml": _PROJECT.format(package=name, project=name.replace("_", "-")),
        f"{name}/__init__.py": "from ragbandit.shared.additions import Addition\n\n"
        f"ADDITION = Addition({', '.join(hooks)})\n",
    }
    for part in parts:
        files[f"{name}/{part}.py"] = (_PARTS / f"{part}.py").read_text(encoding="utf-8")
        test = (_PARTS / f"test_{part}.py").read_text(encoding="utf-8")
        files[f"tests/test_{part}.py"] = test.replace(f"{__package__}.parts.", f"{name}.")
    return files
