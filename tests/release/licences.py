"""Licences of what an installation brings: every dependency of the package and of its extras, against a list."""

import importlib.metadata
import re
from collections.abc import Iterable, Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

#: words that name a licence under which we may be used together, in any spelling that packages give
ALLOWED = (
    *(r"0BSD", r"APACHE", r"\bASL\b", r"BSD", r"BSL-1\.0", r"CC0", r"CMU", r"CNRI", r"HPND", r"ISC"),
    *(r"\bMIT\b|MIT LICENSE|MIT-0", r"MPL|MOZILLA PUBLIC LICENSE", r"PSF|PYTHON SOFTWARE FOUNDATION", r"PUBLIC DOMAIN"),
    *(r"UNLICENSE", r"ZLIB", r"\bZPL\b|ZOPE PUBLIC"),
)
#: package -> why it may stay although its licence is on no list, or its metadata name none
EXCEPTIONS = {
    "bm25s": "MIT by its LICENSE file; its metadata name none",
    "psycopg": "LGPL-3.0: an extra, used unchanged as a library of its own",
    "psycopg-binary": "LGPL-3.0: an extra, used unchanged as a library of its own",
}
#: extras that only maintainers install
NOT_SHIPPED = ("dev", "docs", "release")
#: packages of CUDA, which torch for Linux depends on; under NVIDIA's terms, and not part of our files
VENDOR = re.compile(r"(nvidia|cuda)[-_]")


def dependencies(package: str = "ragbandit", *, extras: Iterable[str] | None = None) -> set[str]:
    """Names of the packages that it and its extras need, and those that these need, as far as they are installed.

    extras: None: all that users install.
    """
    found: set[str] = set()
    if extras is None:
        extras = set(importlib.metadata.metadata(package).get_all("Provides-Extra") or []) - set(NOT_SHIPPED)
    waiting = list(_needs(package, extras=set(extras)))
    while waiting:
        name, wanted = waiting.pop()
        if name in found:
            continue
        try:
            importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        waiting += _needs(name, extras=wanted)
    return found


def _needs(package: str, *, extras: set[str]) -> Iterator[tuple[str, set[str]]]:
    for text in importlib.metadata.requires(package) or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            yield canonicalize_name(requirement.name), set(requirement.extras)


def licence_of(package: str) -> str:
    """The licence in a package's metadata, in one line; "" without one."""
    told = importlib.metadata.metadata(package)
    expression = told.get("License-Expression")
    if expression:
        return str(expression)
    named = [c.rpartition(":: ")[2] for c in told.get_all("Classifier") or [] if c.startswith("License ::")]
    named = [name for name in named if name != "OSI Approved"]
    text = str(told.get("License") or "").strip().split("\n")[0]
    return " AND ".join(named) or text[:100]


def allowed(licence: str) -> bool:
    """Whether each part of it that must hold is on the list: of "A OR B" one, of "A AND B" both."""
    alternatives = re.split(r"\bOR\b|/", licence.upper())
    return any(
        all(
            any(re.search(pattern, part) for pattern in ALLOWED)
            for part in re.split(r"\bAND\b|;|,", one)
            if part.strip()
        )
        for one in alternatives
        if one.strip(" ()")
    )


def refused(packages: Iterable[str]) -> dict[str, str]:
    """Package -> its licence, of those that are neither on the list nor an exception."""
    strange = {}
    for package in sorted(packages):
        licence = licence_of(package)
        if package not in EXCEPTIONS and not VENDOR.match(package) and not allowed(licence):
            strange[package] = licence or "none is named"
    return strange
