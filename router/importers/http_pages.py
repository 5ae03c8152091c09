"""HTTP of importers: JSON by GET, with every wait and every size bounded, and no redirect followed."""

import json
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import httpx

from ragbandit.shared.errors import ConfigError, NotReady
from ragbandit.shared.retries import is_retryable, pause_before_retry, retry_after_s

log = logging.getLogger("ragbandit.importers")

#: calls for one page, the first one included
TRIES: Final = 5
#: longest pause before another try that is our own idea, and longest that a server may ask for, seconds
LONGEST_PAUSE_S: Final = 30.0
LONGEST_ASKED_S: Final = 300.0
#: one reply may take so long in all, however steadily it drips, seconds
WHOLE_REPLY_S: Final = 120.0
#: largest reply
MAX_BYTES: Final = 32 * 1024 * 1024


class HttpPages:
    """A client of one server. `ending`: when it is set, waits end and the next call raises NotReady."""

    def __init__(
        self,
        url: str,
        *,
        setting: str,
        headers: Mapping[str, str] | None = None,
        auth: tuple[str, str] | None = None,
        timeout_s: float,
        ending: threading.Event,
    ) -> None:
        """setting: the section of the settings, for messages. auth: user and password of basic authentication."""
        self.setting = setting
        self.ending = ending
        self.base_s = 0.5
        self._client = httpx.Client(
            base_url=url,
            headers={"accept": "application/json", **(headers or {})},
            auth=auth,
            timeout=httpx.Timeout(timeout_s),
            follow_redirects=False,
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def get(self, path: str, *, params: Mapping[str, Any] | None = None, missing_ok: bool = False) -> Any:
        """The JSON of a reply; None where missing_ok and the server has nothing there.

        Raises NotReady where the server does not give it, ConfigError where no other try can.
        """
        sent = {name: value for name, value in (params or {}).items() if value is not None}
        for attempt in range(1, TRIES + 1):
            fault, asked_s = "", 0.0
            try:
                status, headers, body = self._ask(path, sent)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                fault = f"cannot be reached ({type(error).__name__})"
            else:
                if status == 404 and missing_ok:
                    return None
                if 200 <= status < 300:
                    return self._json(path, headers, body)
                self._refuse(path, status)
                fault, asked_s = f"replied {status}", retry_after_s(headers.get("retry-after"))
            if attempt == TRIES or asked_s > LONGEST_ASKED_S or self.ending.is_set():
                break
            self._pause(attempt, asked_s=asked_s)
        raise NotReady(
            f"{self.setting}: {path} {fault}, {attempt} times",
            field=f"importers.{self.setting}.url",
            remedy="what was imported so far is kept; the next import goes on from there",
        )

    def _pause(self, attempt: int, *, asked_s: float) -> None:
        own_s = pause_before_retry(attempt, base_s=self.base_s, longest_s=LONGEST_PAUSE_S) or 0.0
        self.ending.wait(asked_s + own_s)

    def _ask(self, path: str, params: Mapping[str, Any]) -> tuple[int, httpx.Headers, bytes]:
        if self.ending.is_set():
            raise NotReady("the import was told to end")
        give_up = time.monotonic() + WHOLE_REPLY_S
        with self._client.stream("GET", path, params=params) as reply:
            parts, size = [], 0
            for part in reply.iter_bytes():
                parts.append(part)
                size += len(part)
                if size > MAX_BYTES:
                    raise NotReady(
                        f"{self.setting}: the reply of {path} is larger than {MAX_BYTES // 2**20} MiB",
                        field=f"importers.{self.setting}",
                        remedy="begin later (--since), so that there is less to tell",
                    )
                if time.monotonic() > give_up:
                    raise httpx.ReadTimeout("the whole reply takes too long")
            return reply.status_code, reply.headers, b"".join(parts)

    def _json(self, path: str, headers: httpx.Headers, body: bytes) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            kind = headers.get("content-type", "no content type")[:60]
            raise NotReady(
                f"{self.setting}: {path} replied with {kind}, which is no JSON",
                field=f"importers.{self.setting}.url",
                remedy="check that the address is that of the API, not of a page or a proxy before it",
            ) from error

    def _refuse(self, path: str, status: int) -> None:
        """Raises ConfigError for a status that no other try can change."""
        if is_retryable(status):
            return
        field, remedy = f"importers.{self.setting}.url", "check the address, and the version of the server"
        if status in (401, 403):
            field = f"importers.{self.setting}"
            remedy = "check the keys in the environment variables that this section names, and what they may read"
        elif 300 <= status < 400:
            remedy = "redirects are not followed, since the key would go along: configure the address it leads to"
        raise ConfigError(f"{self.setting}: {path} replied {status}", field=field, remedy=remedy)
