"""API keys of the form `rb_<public id>_<secret>`. The store contains the public id and the sha256 of the secret.

A key is shown only once, when it is made. The secret has 256 random bits, so a fast hash is enough.
"""

import hashlib
import hmac
import math
import re
import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

from sqlalchemy import ColumnElement, bindparam, exists, func, insert, or_, select, update

from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.rows.conversion import JSON_OBJECT, TableRows
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import api_keys
from ragbandit.shared.errors import InvalidInput, NotFound
from ragbandit.shared.texts.formats import known_choices
from ragbandit.shared.texts.text_forms import name_form
from ragbandit.shared.types import CHOOSES_ARM, MAX_WEIGHT, RATE_PATTERN, UNITS, Json, Role

_RATE: Final = re.compile(RATE_PATTERN)


def _are_names(value: Json) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 100 and all(isinstance(name, str) and name for name in value)


def _is_dollars(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value < math.inf


def _is_flag(value: Json) -> bool:
    return isinstance(value, bool)


def _is_weight(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= MAX_WEIGHT


def _is_range(value: Json) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_weight, value)) and value[0] <= value[1]


#: scope -> (function that accepts valid values, description of valid values)
SCOPES: Final[Mapping[str, tuple[Callable[[Json], bool], str]]] = {
    # arms to which questions of the key are restricted
    "arms": (_are_names, "a list of names of arms"),
    # whether the key may choose the arm of a question; default: yes, unless the key or its tenant has a budget
    CHOOSES_ARM: (_is_flag, "true or false"),
    # unit that one draw decides for the key's questions; overrides the setting conversation.unit
    "unit": (UNITS.__contains__, " or ".join(UNITS)),
    # default cost weight of the key's questions; overrides the tenant's
    "cost_weight": (
        lambda value: _is_weight(value) or (isinstance(value, str) and 0 < len(value) <= 32),
        "a number from 0 on, or a name of the setting `cost_weights`",
    ),
    # cost weights that the key's questions may have; overrides the tenant's
    "cost_weights": (_is_range, "[least, largest], two numbers from 0 on"),
    # rate limit; overrides server.rate_limits
    "rate": (lambda value: isinstance(value, str) and bool(_RATE.fullmatch(value)), 'a rate, for example "600/minute"'),
    # budgets per UTC day and month, and whether questions are refused once a budget is spent
    "dollars_per_day": (_is_dollars, "a number of dollars above 0"),
    "dollars_per_month": (_is_dollars, "a number of dollars above 0"),
    "budget_stop": (_is_flag, "true or false"),
}


def check_scopes(scopes: Mapping[str, Json]) -> None:
    """Raises InvalidInput for unknown scopes and invalid values."""
    for name, value in scopes.items():
        if name not in SCOPES:
            raise InvalidInput(f"unknown scope {name!r:.80}", field="scopes", remedy=known_choices(SCOPES, given=name))
        is_valid, expected = SCOPES[name]
        if not is_valid(value):
            raise InvalidInput(f"the scope {name} is not {expected}", field=f"scopes.{name}", remedy=f"give {expected}")
    default, bounds = scopes.get("cost_weight"), scopes.get("cost_weights")
    if isinstance(default, int | float) and isinstance(bounds, list) and not bounds[0] <= default <= bounds[1]:
        remedy = "give a default within the range"
        message = f"the default cost weight {default:g} is not in the range {bounds}"
        raise InvalidInput(message, field="scopes.cost_weight", remedy=remedy)


def are_known_scopes(scopes: Mapping[str, Json]) -> bool:
    """Whether this release supports all scopes. A key that a newer release made may have unknown restrictions."""
    return all(name in SCOPES and SCOPES[name][0](value) for name, value in scopes.items())


ROLES: Final[tuple[Role, ...]] = get_args(Role)
#: roles that operate the service and may read the dashboard; of these, only admin may send questions and feedback
OPERATORS: Final = frozenset[Role]({"reader", "operator", "admin"})
#: maximum number of keys, without those revoked or expired for more than a day; every process keeps them in memory
MAX_KEYS: Final = 10_000
_DIGITS: Final = string.digits + string.ascii_letters
_PUBLIC, _SECRET = 10, 43  # lengths of id and secret; 43 digits of base 62 have 256 bits
_KEY: Final = re.compile(rf"rb_([0-9A-Za-z]{{{_PUBLIC}}})_([0-9A-Za-z]{{{_SECRET}}})")
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,64}")
_TENANT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: hash to compare with a secret whose public id is unknown, so that the check takes the same time
_NOBODY: Final = hashlib.sha256(b"nobody has this secret").hexdigest()
#: query for (whether any key was ever made, whether any key is not revoked)
_EXIST: Final = select(
    exists(select(api_keys.c.public_id)), exists(select(api_keys.c.public_id).where(api_keys.c.revoked_at.is_(None)))
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiKey:
    public_id: str
    name: str
    role: Role
    scopes: Mapping[str, Json]
    #: tenant whose decisions the key may see and judge; None for all tenants
    tenant: str | None
    made_at: float
    made_by: str
    expires_at: float | None
    revoked_at: float | None = None
    #: time of the last use, written at most once a minute; None if the key was never used
    last_used_at: float | None = None

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def state(self, now: float) -> str:
        """One of "active", "expired" and "revoked"."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.is_expired(now) else "active"


_KEYS: Final = TableRows(api_keys, ApiKey, scopes=JSON_OBJECT)


@dataclass(frozen=True, kw_only=True, slots=True)
class NewKey:
    """A new key with its text, which is stored nowhere."""

    key: ApiKey
    text: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeysInForce:
    #: public id -> key, without keys that are revoked, or expired more than a day ago
    keys: Mapping[str, ApiKey]
    hashes: Mapping[str, str] = field(repr=False)
    #: whether any key is not revoked; it may have expired
    unrevoked: bool
    #: whether any key was ever made
    ever: bool

    def find(self, text: str) -> ApiKey | None:
        """The key, which may have expired; None if the text is wrong. Takes constant time, even for unknown ids."""
        match = _KEY.fullmatch(text)
        public_id, secret = ("", "") if match is None else match.groups()
        same = hmac.compare_digest(_sha256(secret), self.hashes.get(public_id, _NOBODY))
        return self.keys.get(public_id) if same else None


class KeyStore:
    """Makes, lists and revokes keys. Every change is recorded in the audit log."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def create(
        self,
        *,
        name: str,
        role: str,
        now: float,
        actor: str,
        tenant: str | None = None,
        scopes: Mapping[str, Json] | None = None,
        expires_at: float | None = None,
    ) -> NewKey:
        """Make a key. Raises InvalidInput. role: one of ROLES. tenant: None for all. expires_at: None for never."""
        check_scopes(scopes or {})
        name = _checked_name(name)
        values: dict[str, Any] = {"name": name, "role": role, "tenant": tenant, "expires_at": expires_at}
        _check_key(role=role, tenant=tenant, expires_at=expires_at, now=now)
        with self.database.write() as connection:
            new = _add_key(connection, values | {"scopes": dict(scopes or {})}, actor=actor, now=now)
            created = {"name": name, "role": role, "scopes": dict(scopes or {}), "expires_at": expires_at}
            _record(connection, new.key, action="key.create", actor=actor, facts=created, now=now)
        return new

    def list_keys(self) -> list[ApiKey]:
        """All keys, including revoked ones, oldest first."""
        query = select(api_keys).order_by(api_keys.c.made_at, api_keys.c.public_id)
        with self.database.read() as connection:
            return [_KEYS.value(row) for row in connection.execute(query).mappings()]

    def names(self) -> dict[str, str]:
        """Public id -> name, also of keys that are no longer valid."""
        return {key.public_id: key.name for key in self.list_keys()}

    def revoke(self, public_id: str, *, actor: str, now: float) -> ApiKey:
        """Revoke a key; services refuse it within a second. Does nothing if it is revoked already. Raises NotFound."""
        with self.database.write() as connection:
            former = _locked_key(connection, public_id)
            if former.revoked_at is not None:
                return former
            connection.execute(update(api_keys).where(api_keys.c.public_id == public_id).values(revoked_at=now))
            _record(connection, former, action="key.revoke", actor=actor, facts={"name": former.name}, now=now)
        return replace(former, revoked_at=now)

    def in_force(self, *, now: float) -> KeysInForce:
        query = select(api_keys).where(*_usable(now)).limit(2 * MAX_KEYS)
        with self.database.read() as connection:
            ever, unrevoked = map(bool, connection.execute(_EXIST).one())
            rows = connection.execute(query).mappings().all() if unrevoked else []
        keys = {row["public_id"]: _KEYS.value(row) for row in rows}
        hashes = {row["public_id"]: row["secret_sha256"] for row in rows}
        return KeysInForce(keys=keys, hashes=hashes, unrevoked=unrevoked, ever=ever)

    def scopes(self, public_id: str) -> Mapping[str, Json]:
        """The scopes of a key; {} if the key does not exist."""
        with self.database.read() as connection:
            row = connection.execute(select(api_keys).where(api_keys.c.public_id == public_id)).mappings().first()
        return {} if row is None else _KEYS.value(row).scopes

    def note_uses(self, uses: Mapping[str, float]) -> None:
        """Store times of last use. uses: public id -> seconds since 1970."""
        if not uses:
            return
        later = or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at < bindparam("at"))
        change = update(api_keys).where(api_keys.c.public_id == bindparam("key"), later)
        with self.database.write() as connection:
            rows = [{"key": key, "at": at} for key, at in sorted(uses.items())]
            connection.execute(change.values(last_used_at=bindparam("at")), rows)


def _usable(now: float) -> list[ColumnElement[bool]]:
    """Conditions for keys in use, and for keys that expired within a day, whose error then says "expired"."""
    is_unexpired = or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > now - 86_400.0)
    return [api_keys.c.revoked_at.is_(None), is_unexpired]


def _checked_name(name: str) -> str:
    """The stored form of a key's name, equal for names that look alike: they are one source. Raises InvalidInput."""
    form = name_form(name) if _NAME.fullmatch(name) else ""
    if not _NAME.fullmatch(form):
        remedy = "use 1 to 64 printable characters"
        raise InvalidInput(f"{name!r:.80} is not a valid name of a key", field="name", remedy=remedy)
    return form


def _check_key(*, role: str, tenant: str | None, expires_at: float | None, now: float) -> None:
    if role not in ROLES:
        raise InvalidInput(f"unknown role {role!r:.80}", field="role", remedy=known_choices(ROLES, given=role))
    if tenant is not None and not _TENANT.fullmatch(tenant):
        remedy = "use 1 to 64 letters, digits, dashes or underscores"
        raise InvalidInput(f"{tenant!r:.80} is not the id of a tenant", field="tenant", remedy=remedy)
    if role == "admin" and tenant is not None:
        remedy = "leave the tenant out, or use another role"
        raise InvalidInput("a key with the role admin cannot belong to one tenant", field="tenant", remedy=remedy)
    if expires_at is not None and expires_at <= now:
        raise InvalidInput("the key would be expired at once", field="expires", remedy="use a time in the future")


def _random_digits(count: int) -> str:
    return "".join(secrets.choice(_DIGITS) for _ in range(count))


def _add_key(connection: Connection, values: Mapping[str, Any], *, actor: str, now: float) -> NewKey:
    """Make and store a key. Raises InvalidInput if there are too many keys."""
    count = select(func.count()).select_from(api_keys).where(*_usable(now))
    if connection.execute(count).scalar_one() >= MAX_KEYS:
        remedy = "revoke keys that are not used any more (`ragbandit keys list`)"
        raise InvalidInput(f"there are {MAX_KEYS} keys already", field="key", remedy=remedy)
    key = ApiKey(public_id=_random_digits(_PUBLIC), made_at=now, made_by=actor[:64], **values)
    secret = _random_digits(_SECRET)
    connection.execute(insert(api_keys).values(**_KEYS.row(key), secret_sha256=_sha256(secret)))
    return NewKey(key=key, text=f"rb_{key.public_id}_{secret}")


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _locked_key(connection: Connection, public_id: str) -> ApiKey:
    query = select(api_keys).where(api_keys.c.public_id == public_id).with_for_update()
    row = connection.execute(query).mappings().first()
    if row is None:
        remedy = "`ragbandit keys list` shows the public ids: the part between rb_ and the secret"
        raise NotFound("no key has this public id", field="key", remedy=remedy)
    return _KEYS.value(row)


def _record(
    connection: Connection, key: ApiKey, *, action: str, actor: str, facts: Mapping[str, Json], now: float
) -> None:
    target = f"key:{key.public_id}"
    record(connection, actor=actor, action=action, target=target, tenant=key.tenant, facts=facts, now=now)
