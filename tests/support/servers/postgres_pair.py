"""Two PostgreSQL behind one address: a primary, and a standby that takes over."""

import shutil
import signal
from pathlib import Path

from tests.support.servers.postgres_server import PostgresServer
from tests.support.servers.tcp_proxy import TcpProxy


class PostgresPair:
    """A primary with a synchronous standby, which has each commit before it is acknowledged. `close` ends both.

    address, hosts: URLs of a new database by the one address, which the present primary has, and by both servers
    """

    def __init__(self) -> None:
        self.primary, self.standby = PostgresServer(), PostgresServer()
        self._both = (self.primary, self.standby)
        self.primary.start()
        self._add_standby()
        name = self.primary.new_database()
        self._proxy = TcpProxy(self._socket())
        self.address = f"postgresql+psycopg://postgres@127.0.0.1:{self._proxy.port}/{name}"
        self.hosts = f"postgresql+psycopg://postgres@/{name}?host={self.primary.folder},{self.standby.folder}"

    def demote(self, *, crash: bool) -> None:
        """The primary crashes or is ended, and comes back under the address as a server that only reads."""
        if crash:
            self.primary.signal(signal.SIGKILL)
        else:
            self.primary.end()
        self.primary.run_demoted()

    def promote(self) -> None:
        """The standby takes writes, alone, and gets the address. Connections to the demoted server stay there."""
        self._set("synchronous_standby_names", "", on=self.standby)
        self.standby.execute("SELECT pg_promote()")
        self.primary, self.standby = self.standby, self.primary
        self._proxy.target = self._socket()

    def rejoin(self) -> None:
        """The demoted server becomes the standby."""
        self.standby.end()
        shutil.rmtree(self.standby.folder / "data")
        self._add_standby()

    def close(self) -> None:
        self._proxy.close()
        for server in reversed(self._both):  # the second one runs programs of the first one's folder
            server.stop()

    def _add_standby(self) -> None:
        self.standby.start_standby(self.primary)
        self._set("synchronous_standby_names", "*", on=self.primary)

    @staticmethod
    def _set(name: str, value: str, *, on: PostgresServer) -> None:
        on.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        on.execute("SELECT pg_reload_conf()")

    def _socket(self) -> Path:
        return self.primary.folder / ".s.PGSQL.5432"
