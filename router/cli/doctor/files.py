"""Checks of this host's files: room on the disk, and who may read them."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sqlalchemy import make_url

from ragbandit.router.cli.doctor.findings import Finding, Installation, fine, problem, warning
from ragbandit.router.config.settings import Settings

#: free bytes below which it is a warning, and a problem
LITTLE: Final = 2_000_000_000
NEARLY_NONE: Final = 200_000_000


def disk(installation: Installation) -> Sequence[Finding]:
    """Room where the database, snapshots and logs of this host are written."""
    free_by_device = {}
    for path in _places(installation.settings):
        there = _existing(path)
        usage = shutil.disk_usage(there)
        free_by_device[os.stat(there).st_dev] = (there, usage.free)
    findings = []
    for there, free in free_by_device.values():
        if free < LITTLE:
            say = problem if free < NEARLY_NONE else warning
            means = "when it is full nothing can be stored: the service replies 503"
            remedy = "make room, or blank old texts: ragbandit data erase --before 90d"
            findings.append(say("disk", f"{free / 1e9:.1f} GB are free at {there}", means=means, remedy=remedy))
    return findings or [
        fine("disk", ", ".join(f"{free / 1e9:.0f} GB free at {there}" for there, free in free_by_device.values()))
    ]


def permissions(installation: Installation) -> Sequence[Finding]:
    """Whether this user can write there, and no other can read."""
    findings = []
    for path in _places(installation.settings):
        if not path.exists():
            continue
        if not os.access(path, os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)):
            means = "the service cannot work with it under this user"
            remedy = f"run as its owner (uid {path.stat().st_uid}), or chown it"
            findings.append(problem("permissions", f"this user cannot write {path}", means=means, remedy=remedy))
        mode = path.stat().st_mode & 0o777
        if mode & 0o077 and not (path in (Path.cwd(), Path.home()) or _shielded(path)):
            means = "other users of this host may read questions and answers"
            remedy = f"chmod go= {path}"
            findings.append(warning("permissions", f"{path} has the mode {mode:o}", means=means, remedy=remedy))
    return findings or [fine("permissions", "only the owner reads data_dir and the database")]


def _places(settings: Settings) -> list[Path]:
    """Folders and files of this host."""
    places = [Path(settings.data_dir).absolute()]
    url = make_url(settings.database)
    if url.get_backend_name() == "sqlite" and url.database:
        places.append(Path(url.database))
    return places if "://" in settings.snapshot_root else [*places, Path(settings.snapshot_root)]


def _shielded(path: Path) -> bool:
    """Whether a folder above it lets nobody but its owner pass."""
    return any(above.stat().st_mode & 0o077 == 0 for above in path.absolute().parents)


def _existing(path: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return path if path.exists() or path == path.parent else _existing(path.parent)
