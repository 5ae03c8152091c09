"""Record of the configuration: what a service runs with is in the audit log, whenever it is another one."""

import socket

from ragbandit.router.config.loading import changed_settings
from ragbandit.router.config.settings import Settings
from ragbandit.router.storage.access.audit_log import last_entry, record
from ragbandit.router.storage.sql.database import Database

#: the action of these entries; their facts have the settings that are not the defaults, without secrets
ACTION = "config.use"


def record_config(database: Database, settings: Settings, *, actor: str | None = None) -> None:
    """Add an entry if this host's service ran with other settings before. Raises StoreError.

    actor: who brought them; None: the process that starts.
    """
    host = socket.gethostname()
    facts: dict[str, object] = {"settings": changed_settings(settings)}
    target = f"host:{host}"
    with database.read() as connection:
        last = last_entry(connection, action=ACTION, target=target)
    if last is not None and last.facts == facts:
        return
    with database.write() as connection:
        record(connection, actor=actor or f"process:serve@{host}", action=ACTION, target=target, facts=facts)
