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
    found = {}
    for place in _places(installation.settings):
        there = _existing(place)
        usage = shutil.disk_usage(there)
        found[os.stat(there).st_dev] = (there, usage.free)
    told = []
    for there, free in found.values():
        if free < LITTLE:
            say = problem if free < NEARLY_NONE else warning
            means = "when it is full nothing can be stored: the service replies 503"
            remedy = "make room, or move old decisions away: ragbandit data archive --before 90d"
            told.append(say("disk", f"{free / 1e9:.1f} GB are free at {there}", means=means, remedy=remedy))
    return told or [fine("disk", ", ".join(f"{free / 1e9:.0f} GB free at {there}" for there, free in found.values()))]


def permissions(installation: Installation) -> Sequence[Finding]:
    """Whether this user can write there, and no other can read."""
    told = []
    for place in _places(installation.settings):
        if not place.exists():
            continue
        if not os.access(place, os.R_OK | os.W_OK | (os.X_OK if place.is_dir() else 0)):
            means = "the service cannot work with it under this user"
            remedy = f"run as its owner (uid {place.stat().st_uid}), or chown it"
            told.append(problem("permissions", f"this user cannot write {place}", means=means, remedy=remedy))
        mode = place.stat().st_mode & 0o777
        if mode & 0o077 and not (place in (Path.cwd(), Path.home()) or _shielded(place)):
            means = "other users of this host may read questions and answers"
            remedy = f"chmod go= {place}"
            told.append(warning("permissions", f"{place} has the mode {mode:o}", means=means, remedy=remedy))
    return told or [fine("permissions", "only the owner reads data_dir and the database")]


def _places(settings: Settings) -> list[Path]:
    """Folders and files of this host."""
    places = [Path(settings.data_dir).absolute()]
    url = make_url(settings.database)
    if url.get_backend_name() == "sqlite" and url.database:
        places.append(Path(url.database))
    places += [Path(root) for root in (settings.snapshot_root, settings.checkpoint_root) if "://" not in root]
    return places


def _shielded(place: Path) -> bool:
    """Whether a folder above it lets nobody but its owner pass."""
    return any(above.stat().st_mode & 0o077 == 0 for above in place.absolute().parents)


def _existing(place: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return place if place.exists() or place == place.parent else _existing(place.parent)
