"""data_dir: what may stand in the way of using it, said with the setting's name; and it belongs to its owner alone.

Questions, answers and logs lie there: folders that we make are 0700 and files 0600, and what an older release made
wider is narrowed.
"""

import contextlib
import fcntl
import logging
import os
import stat
import tempfile
from pathlib import Path
from typing import IO

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.files.atomic import append_private, private_folder
from ragbandit.shared.formats import printable

log = logging.getLogger("ragbandit.data_dir")

#: of a data_dir: what holds questions, answers, or the words of both
_FILES = ("redis.log", "up.lock", "service.lock", "accepted.yaml", "logs/*.log")
_FOLDERS = ("logs", "snapshots", "indexes", "archive")
_REMEDY = "choose another folder, or give this user the right to read and write it (chown, chmod)"


def prepare_data_dir(settings: Settings) -> None:
    """Make data_dir, and narrow the modes of what is in it. Raises ConfigError where it cannot be used."""
    _check(Path(settings.data_dir), field="data_dir", make=True)
    narrow_data_dir(settings)


def check_data_dir(settings: Settings) -> None:
    """Refuse a data_dir in which nothing can be made: an empty folder is made in it, or above it, and removed."""
    folder = Path(settings.data_dir).absolute()
    _check(folder, field="data_dir", make=False)
    there = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        with tempfile.TemporaryDirectory(dir=there, prefix=".ragbandit-"):
            pass
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}", field="data_dir", remedy=_REMEDY) from error


def narrow_data_dir(settings: Settings) -> None:
    """Take away what other users may do with data_dir, if it is there, and with the files in it that we write."""
    folder = Path(settings.data_dir)
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: this user has no home
        if not any(folder.samefile(other) for other in (Path.cwd(), Path.home())):
            _narrow(folder, mode=0o700)  # a folder that has other uses is its user's to narrow
    for pattern in _FOLDERS:
        _narrow(folder / pattern, mode=0o700)
    for pattern in _FILES:
        for file in folder.glob(pattern):
            _narrow(file, mode=0o600)


def check_database_file(settings: Settings, *, make: bool) -> None:
    """Refuse a SQLite database that this user cannot use, and narrow its mode. Raises ConfigError naming the setting.

    make: also make its folder.
    """
    if (file := _sqlite_file(settings)) is None:
        return
    field = _field(settings)
    _check(file.parent, field=field, make=make)
    for name in (file.name, f"{file.name}-wal", f"{file.name}-shm"):
        path = file.with_name(name)
        if path.exists():
            if not os.access(path, os.R_OK | os.W_OK):
                raise ConfigError(f"{path} cannot be read and written by this user", field=field, remedy=_REMEDY)
            _narrow(path, mode=0o600)


def hold_store(settings: Settings, *, at: str) -> IO[bytes] | None:
    """A lock on the folder of a SQLite store, which one service at a time holds; None where the store is elsewhere.

    at: URL of the service. Raises ConfigError that names the process which holds it.
    """
    file = _sqlite_file(settings)
    if file is None:
        return None
    _check(file.parent, field=_field(settings), make=True)
    return hold(file.with_name("service.lock"), process="ragbandit serve", at=at, field=_field(settings))


def hold(file: Path, *, process: str, at: str, field: str) -> IO[bytes]:
    """An open file that only one process holds, and that says which; the kernel lets go of it however that ends.

    Raises ConfigError where another process holds it.
    """
    opened = append_private(file)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        opened.close()
        raise ConfigError(
            f"another `{process}` runs on this folder: {printable(file.read_text('utf-8', 'replace'))[:200]}",
            field=field,
            remedy="stop it, or give this one a data_dir of its own; several services take PostgreSQL",
        ) from error
    opened.truncate(0)
    opened.write(f"process {os.getpid()}, {at}".encode())
    opened.flush()
    return opened


def _sqlite_file(settings: Settings) -> Path | None:
    """The file of a SQLite database; None for one in memory, and of another engine."""
    from sqlalchemy.engine import make_url  # `validate` does without

    url = make_url(settings.database)
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return None if str(url.database).startswith("file:") else Path(str(url.database))  # file: SQLite's own URLs


def _field(settings: Settings) -> str:
    """The setting that says where the SQLite store is."""
    return "data_dir" if settings.database_url is None else "database_url"


def _check(folder: Path, *, field: str, make: bool) -> None:
    try:
        if make:
            with contextlib.suppress(FileExistsError):
                private_folder(folder)
        mode = folder.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror}", field=field, remedy=_REMEDY) from error
    if not stat.S_ISDIR(mode):
        raise ConfigError(f"{folder} is a file, not a folder", field=field, remedy="choose another folder")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} cannot be read and written by this user", field=field, remedy=_REMEDY)


def _narrow(path: Path, *, mode: int) -> None:
    """Take away what others may do with a file or folder of ours."""
    try:
        status = path.stat()
        if status.st_uid == os.geteuid() and status.st_mode & 0o777 & ~mode:
            path.chmod(status.st_mode & mode)
            before = status.st_mode & 0o777
            log.info("restricted %s to its owner (was %04o)", path, before, extra={"action": "restrict"})
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("other users may read %s: %s", path, error.strerror, extra={"action": "restrict"})
