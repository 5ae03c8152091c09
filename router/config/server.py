"""Settings of the HTTP service (addresses, limits, sign-in) and of tenants (budgets, cost weights)."""

import ipaddress
import re
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from ragbandit.router.config.learning import CostWeight
from ragbandit.router.config.section import Seconds, Section, one_of
from ragbandit.shared.types import RATE_PATTERN, Role


def _network(text: str) -> str:
    ipaddress.ip_network(text)  # its ValueError is shown to users
    return text


#: a character of a path except a dot; encoded dots, slashes and control characters are refused too
_CHARACTER: Final = r"[A-Za-z0-9_~@:+,=-]|%(?:[34689A-Fa-f][0-9A-Fa-f]|7[0-9A-Ea-e]|2[0-9A-Da-d]|5[0-9ABD-Fabd-f])"
#: a path as /rag; no part of it is only dots
ROOT_PATH: Final = rf"(?:/\.*(?:{_CHARACTER})(?:\.|{_CHARACTER})*)*"


def _root_path(path: str) -> str:
    path = path.rstrip("/")
    if re.fullmatch(ROOT_PATH, path) is None:
        raise ValueError("this is not a path as /rag; write it without a host and a query")
    return path


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


#: prefixes of models that are an arm: both "arm/x" and "ragbandit/x" are the arm x
ARM_PREFIXES: Final = ("arm/", "ragbandit/")
#: name of an HTTP header; converted to lower case
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,100}$"), AfterValidator(str.lower)]


class ServerSettings(Section):
    """The HTTP service."""

    #: address to listen on; 0.0.0.0: all addresses of the host
    host: str = "127.0.0.1"
    #: port to listen on; 0: any free one
    port: Annotated[int, Field(ge=0, le=65535)] = 8100
    #: second port, served by its own thread, for /health, /ready, /metrics, /v1/status and all endpoints for the roles
    #: reader, operator and admin. These endpoints then reply under any load of `port`, and `port` replies 404 to them.
    #: 0: any free port. None: `port` serves all endpoints
    admin_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    #: address of admin_port
    admin_host: str = "127.0.0.1"
    #: path under which a proxy serves this service, as /rag: links, redirects and OpenAPI's server begin with it.
    #: "": the header X-Forwarded-Prefix counts, on connections from trusted_proxies or FORWARDED_ALLOW_IPS
    root_path: Annotated[str, AfterValidator(_root_path), Field(max_length=200)] = ""
    #: seconds that /v1/answer waits for the answer before it replies 202, unless the request sets its own
    answer_wait_s: Annotated[float, Field(ge=0, le=600)] = 30.0
    #: number of further arms tried if an arm of the class `model` or `http` fails before its first content; 0: no
    #: failover
    failover: Annotated[int, Field(ge=0, le=5)] = 1
    #: maximum number of questions per POST /v1/route/batch; max_batch_bytes limits their text
    max_batch_items: Annotated[int, Field(ge=1, le=10_000)] = 512
    #: maximum bytes of a request body; a larger one is refused (413). Single texts have their own limits: 100,000
    #: characters per question, answer or gold answer (422); error messages are cut to 20,000
    max_body_bytes: Annotated[int, Field(ge=1024)] = 65_536
    #: maximum bytes of a request body for paths that end in /batch
    max_batch_bytes: Annotated[int, Field(ge=1024)] = 1_048_576
    #: maximum bytes of a request body for the paths of OpenAI's and Anthropic's interfaces, such as whole conversations
    max_chat_bytes: Annotated[int, Field(ge=1024)] = 4_194_304
    #: maximum bytes of a question's context as JSON; a larger one is refused (422)
    max_context_bytes: Annotated[int, Field(ge=0)] = 8_192
    #: longest expected wait for a batch, seconds; a request that would wait longer is refused at once (503,
    #: Retry-After). A policy that takes seconds per question needs a larger value
    max_wait_s: Seconds = 1.0
    #: maximum number of requests waiting for a batch; further ones are refused (503, Retry-After)
    max_waiting: Annotated[int, Field(ge=1)] = 1000
    #: largest share of max_wait_s and max_waiting for one tenant, if other tenants sent requests in the last 60 s;
    #: beyond it the tenant's questions are refused (429, Retry-After)
    tenant_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    #: maximum number of questions of this process that wait for an answer; beyond it /v1/answer replies 503
    max_unanswered: Annotated[int, Field(ge=1)] = 10_000
    #: maximum number of waiting questions of one tenant; beyond it /v1/answer replies 429
    tenant_unanswered: Annotated[int, Field(ge=1)] = 200
    #: maximum number of connections and concurrent requests (uvicorn's limit_concurrency); beyond it requests get 503.
    #: admin_port has no limit, so send probes there
    max_connections: Annotated[int, Field(ge=1)] = 2000
    #: seconds after which an idle connection is closed. Keep it above the 60 s of common proxies, else a proxy may send
    #: a request on a connection that is being closed
    keep_alive_s: Annotated[int, Field(ge=1, le=3600)] = 75
    #: seconds for requests in progress after SIGTERM or SIGINT; requests that wait for an answer get 202 at once
    shutdown_s: Annotated[int, Field(ge=1, le=600)] = 8
    #: host names (header Host, without port) that a service without keys accepts besides localhost and 127.0.0.1
    allowed_hosts: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(default_factory=list)
    #: origins of web pages that may call all endpoints for programs (CORS), for example https://chat.example.org; "*":
    #: all. They send an API key; cookies do not count. Pages for people, /docs, probes and /metrics stay closed
    cors_origins: list[Annotated[str, Field(pattern=r"^(\*|https?://[^/\s]+)$")]] = Field(default_factory=list)
    #: model in a request -> model that it means, as {"claude-*": auto, gpt-5: "arm/large"}; * is any text. For clients
    #: whose names of models are fixed
    model_aliases: dict[str, str] = Field(default_factory=dict)
    #: dangerous. true: the service starts without API keys even if other machines can reach it, so that everyone there
    #: may read every question and teach the policy. Existing keys stay required. false: such a service needs a key to
    #: start
    open: bool = False
    #: true: /metrics needs no key, for scrapers that cannot send one
    open_metrics: bool = False
    #: role of an API key, or "default" -> its rate limit, as {default: 600/minute, reader: 5/second}. Without keys the
    #: entry "open", else "default", limits all requests together. Redis counts the requests of all processes in
    #: a sliding window; without Redis each process counts its own. Further requests get 429 and Retry-After. The scope
    #: "rate" of a key overrides the limit. Empty: no limit
    rate_limits: dict[
        Annotated[str, one_of(("default", "open", *get_args(Role)))], Annotated[str, Field(pattern=f"^{RATE_PATTERN}$")]
    ] = Field(default_factory=dict)
    #: true: serve the dashboard at /ui, on admin_port if it is set; people log in with keys of the roles reader and
    #: operator
    dashboard: bool = True
    #: header in which an authenticating proxy sends the user's role or groups, separated by commas, for example
    #: X-Forwarded-Groups. People then need no key for the dashboard, and the service requires sign-in or a key. None:
    #: keys only
    trusted_header: HeaderName | None = None
    #: value of trusted_header -> role; if several values match, the highest role counts. Other values give no role
    trusted_roles: dict[str, Literal["reader", "operator", "admin"]] = Field(default_factory=dict)
    #: addresses or networks (CIDR) of the proxy; trusted_header, X-Forwarded-Prefix, and context keys with `proxy:
    #: true`, are ignored on connections from elsewhere
    trusted_proxies: list[Annotated[str, AfterValidator(_network)]] = Field(default_factory=list)
    #: header in which the proxy sends the person's name for the audit log; without a name trusted_header gives no role.
    #: None: the audit log records the value of trusted_header
    trusted_user_header: HeaderName | None = None
    #: true: print one line per request on standard output; /metrics counts requests by path and status anyway
    access_log: bool = False

    @property
    def url(self) -> str:
        return _url(self.host, self.port)

    @property
    def admin_url(self) -> str:
        return self.url if self.admin_port is None else _url(self.admin_host, self.admin_port)

    @model_validator(mode="after")
    def _check_sign_in(self) -> "ServerSettings":
        if self.admin_port and self.admin_port == self.port:
            raise ValueError(f"admin_port: {self.port} is server.port too; choose another port, or null for one port")
        if self.trusted_header is None:
            if self.trusted_roles or self.trusted_user_header is not None:
                raise ValueError("trusted_header: set it, or unset trusted_roles and trusted_user_header")
        elif not self.trusted_proxies or not self.trusted_roles:
            raise ValueError(
                "trusted_proxies: trusted_header needs trusted_proxies and trusted_roles, otherwise anybody could send "
                "the header; set both"
            )
        elif self.open or not self.dashboard:
            raise ValueError("trusted_header: needs open: false and dashboard: true, since people sign in to the pages")
        return self


Dollars = Annotated[float, Field(gt=0)]


class TenantSettings(Section):
    """Budgets (per UTC day and month) and cost weights of a tenant."""

    #: dollars for the tenant's answers per day; None: no budget. The cost weight of its questions rises while they are
    #: spent, so that they last for the day (docs/price.md). Under a budget only keys with the scope forced=true may
    #: choose the arm of a question
    dollars_per_day: Dollars | None = None
    #: dollars for the tenant's answers per month; works like dollars_per_day
    dollars_per_month: Dollars | None = None
    #: true: questions are refused (429) once a budget is spent; false: they go on at the highest cost weight. If the
    #: policy has no cost weight per question, questions are refused in both cases
    budget_stop: bool = False
    #: default cost weight of the tenant's questions: a number, or a name in `cost_weights`; None: reward.weight. The
    #: scope `cost_weight` of a key overrides it
    cost_weight: CostWeight | str | None = None
    #: [smallest, largest] cost weight of the tenant's questions. A request outside is refused (422); a default outside
    #: is moved to the nearest end. None: no limits. The scope `cost_weights` of a key overrides it
    cost_weights: Annotated[list[CostWeight], Field(min_length=2, max_length=2)] | None = None

    @model_validator(mode="after")
    def _check_cost_weights(self) -> "TenantSettings":
        if self.cost_weights is not None and self.cost_weights[0] > self.cost_weights[1]:
            raise ValueError("cost_weights: the smallest value must come first")
        return self
