"""Settings of the HTTP service: address, limits, and what a tenant may spend in a day and a month."""

import ipaddress
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from ragbandit.router.config.sections import CostWeight, Seconds, Section, one_of
from ragbandit.shared.types import RATE_PATTERN, Role


def _network(text: str) -> str:
    ipaddress.ip_network(text)  # its ValueError says what is wrong
    return text


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


#: name of a header, in small letters
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,100}$"), AfterValidator(str.lower)]


class ServerSettings(Section):
    """The HTTP surface."""

    #: address to listen on; 0.0.0.0 is every one of the host
    host: str = "127.0.0.1"
    #: port to listen on; 0: any free one
    port: Annotated[int, Field(ge=0, le=65535)] = 8100
    #: a port of its own, with a thread of its own, for what operators ask: /health, /ready, /metrics, /v1/status and
    #: every endpoint that only reader, operator or admin may call; `port` then has none of them (404), and they reply
    #: whatever its load. 0: any free one; None: all on `port`
    admin_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    #: address that admin_port listens on
    admin_host: str = "127.0.0.1"
    #: /v1/answer waits that long unless the call says otherwise, then says 202
    answer_wait_s: Annotated[float, Field(ge=0, le=600)] = 30.0
    #: further arms that a question goes to when its arm, of the class `model` or `http`, fails before its first
    #: content; 0 turns failover off
    failover: Annotated[int, Field(ge=0, le=5)] = 1
    #: most questions in one POST /v1/route/batch; their text is bounded by max_batch_bytes too
    max_batch_items: Annotated[int, Field(ge=1, le=10_000)] = 512
    #: larger request bodies are refused with 413. Texts in them have caps of their own: 100,000 characters a question,
    #: answer or gold answer (longer ones are 422); of an error 20,000 are kept
    max_body_bytes: Annotated[int, Field(ge=1024)] = 65_536
    #: the same for calls of many items, whose path ends in /batch
    max_batch_bytes: Annotated[int, Field(ge=1024)] = 1_048_576
    #: the same for /v1/chat/completions and /v1/responses, whose bodies bring a whole conversation
    max_chat_bytes: Annotated[int, Field(ge=1024)] = 4_194_304
    #: bytes of a question's context, keys and values as JSON; a larger one is refused with 422
    max_context_bytes: Annotated[int, Field(ge=0)] = 8_192
    #: a request that is expected to wait longer for its batch is refused at once, with 503 and Retry-After; a policy
    #: that takes seconds for a question (`llm`) needs more
    max_wait_s: Seconds = 1.0
    #: requests waiting for their batch; while there are as many, further ones are refused with 503 and Retry-After
    max_waiting: Annotated[int, Field(ge=1)] = 1000
    #: part of max_wait_s and of max_waiting that the questions of one tenant may take while other tenants ask too;
    #: beyond it they are refused with 429 and Retry-After
    tenant_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    #: questions that workers have been asked to answer and have not answered, in this process; beyond it /v1/answer
    #: replies 503
    max_unanswered: Annotated[int, Field(ge=1)] = 10_000
    #: of one tenant among those; beyond it 429
    tenant_unanswered: Annotated[int, Field(ge=1)] = 200
    #: connections, and requests at a time (uvicorn's limit_concurrency); beyond it a request is 503. admin_port has no
    #: limit, so probes belong there
    max_connections: Annotated[int, Field(ge=1)] = 2000
    #: a connection without a request is closed after that long, and counts as one until then. Proxies keep theirs for
    #: 60 s: with less here, a request may meet a connection that is being closed
    keep_alive_s: Annotated[int, Field(ge=1, le=3600)] = 75
    #: at SIGTERM and SIGINT requests are finished for that long; waits for answers end at once, with 202
    shutdown_s: Annotated[int, Field(ge=1, le=600)] = 8
    #: names that an open service may be called by (the header Host) besides localhost and 127.0.0.1, without port
    allowed_hosts: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(default_factory=list)
    #: dangerous: without API keys, everyone who can reach the service may read every question and teach the policy.
    #: Without it a service that other machines reach does not start before there is a key. Keys that are there stay
    #: required
    open: bool = False
    #: /metrics needs no key, for scrapers that cannot send one
    open_metrics: bool = False
    #: requests that may come with one API key, by its role or "default": {default: 600/minute, reader: 5/second}.
    #: Without keys "open", else "default", holds for all requests together. Counted in Redis by all processes, in a
    #: sliding window; beyond it 429 and Retry-After. A key's own rate (its scope "rate") comes first. Empty: no limit
    rate_limits: dict[
        Annotated[str, one_of(("default", "open", *get_args(Role)))], Annotated[str, Field(pattern=f"^{RATE_PATTERN}$")]
    ] = Field(default_factory=dict)
    #: pages for people at /ui, on the operators' port where there is one; keys of the roles reader and operator log in
    dashboard: bool = True
    #: header in which a proxy that signs people in says their role or groups, with commas between them, as
    #: X-Forwarded-Groups: it opens the pages, beside keys, and closes the service, as a key does. None: keys alone
    trusted_header: HeaderName | None = None
    #: value of that header -> role; of several values the highest role counts, and any other value is none
    trusted_roles: dict[str, Literal["reader", "operator", "admin"]] = Field(default_factory=dict)
    #: addresses or networks (CIDR) of that proxy: the header counts from a connection of theirs alone
    trusted_proxies: list[Annotated[str, AfterValidator(_network)]] = Field(default_factory=list)
    #: header in which the same proxy names the person, for the audit log; whom it does not name has no role by
    #: trusted_header. None: the log has the value of trusted_header
    trusted_user_header: HeaderName | None = None
    #: one line per request on standard output; off, since /metrics counts requests by path and status
    access_log: bool = False

    @property
    def url(self) -> str:
        """URL of the service."""
        return _url(self.host, self.port)

    @property
    def admin_url(self) -> str:
        """URL of what operators ask."""
        return self.url if self.admin_port is None else _url(self.admin_host, self.admin_port)

    @model_validator(mode="after")
    def _apart(self) -> "ServerSettings":
        if self.admin_port and self.admin_port == self.port:
            raise ValueError(f"admin_port: {self.port} is server.port; choose another one, or null for one port")
        if self.trusted_header is None:
            if self.trusted_proxies or self.trusted_roles or self.trusted_user_header is not None:
                raise ValueError("trusted_header: name the header that other trusted_ settings are about")
        elif not self.trusted_proxies or not self.trusted_roles:
            message = "trusted_proxies: trusted_header takes it, else anybody could send the header, and trusted_roles"
            raise ValueError(message)
        elif self.open or not self.dashboard:
            raise ValueError("trusted_header: it takes open: false and dashboard: true; people sign in to pages")
        return self


#: a budget in dollars
Dollars = Annotated[float, Field(gt=0)]


class TenantSettings(Section):
    """What a tenant may spend in a day and a month (UTC), and at what price it asks."""

    #: dollars that its answers may cost in a day. As they are spent the weight of cost of its questions rises, so that
    #: they last for the day (docs/price.md); None: no budget. Under a budget the right to choose the arm of a question
    #: is the scope forced=true of a key
    dollars_per_day: Dollars | None = None
    #: the same in a month
    dollars_per_month: Dollars | None = None
    #: refuse questions once a budget is spent, with 429; false: they go on at the highest price. A policy that has no
    #: price for each question stops in any case
    budget_stop: bool = False
    #: weight of cost of its questions that want none of their own: a number, or a name of the setting `cost_weights`;
    #: None: reward.weight. A key's scope `cost_weight` goes before it
    cost_weight: CostWeight | str | None = None
    #: [least, largest] weight of cost of its questions: another one that a caller wants is refused (422), and a default
    #: is brought in; None: any. A key's scope `cost_weights` goes before it
    cost_weights: Annotated[list[CostWeight], Field(min_length=2, max_length=2)] | None = None

    @model_validator(mode="after")
    def _ordered(self) -> "TenantSettings":
        if self.cost_weights is not None and self.cost_weights[0] > self.cost_weights[1]:
            raise ValueError("cost_weights: the least comes before the largest")
        return self
