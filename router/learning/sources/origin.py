"""Origin of a feedback: the tenant, the API key and the rater that it came from, by the names that settings use.

    key:ID       the API key; `ID` is its public id or its name. A key and those that it was rotated to are one source
    tenant:NAME  the tenant of the decision that was judged
    role:NAME    the role of the key
    rater:NAME   who judged, as the caller told; import:... is short for rater:import:...

A name that ends in * stands for all that begin so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ragbandit.router.storage.access.api_keys import ApiKey
from ragbandit.shared.types import Feedback, Role

#: what a name of a source begins with, the closest to the person first
KINDS: Final = ("rater", "import", "key", "role", "tenant")
#: what the rater of feedback begins with that comes from a file of another system
IMPORTED_RATER: Final = "import:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Who a feedback came from."""

    tenant: str
    #: public id of the newest key of the rotation; None: it came without a key
    key: str | None
    #: every id and name that the key has had
    key_names: tuple[str, ...]
    role: Role | None
    #: as the caller told; None: not told
    rater: str | None


class KeyDirectory:
    """The API keys of a store at one moment, with those that were rotated or revoked."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self._keys: Mapping[str, ApiKey] = {key.public_id: key for key in keys}
        self._names: dict[str, set[str]] = {}
        for key in self._keys.values():
            self._names.setdefault(self.newest(key.public_id), set()).update((key.public_id, key.name))

    def newest(self, public_id: str) -> str:
        """The key that this one was rotated to in the end; itself where it was not."""
        seen = {public_id}
        while (key := self._keys.get(public_id)) is not None and key.replaced_by not in (None, *seen):
            assert key.replaced_by is not None
            public_id = key.replaced_by
            seen.add(public_id)
        return public_id

    def origin(self, item: Feedback, *, tenant: str) -> Origin:
        """Who this feedback is of. tenant: of its decision."""
        if item.api_key is None:
            return Origin(tenant=tenant, key=None, key_names=(), role=None, rater=item.rater)
        newest = self.newest(item.api_key)
        known = self._keys.get(newest)
        names = tuple(sorted(self._names.get(newest, {newest}) | {item.api_key}))
        role = None if known is None else known.role
        return Origin(tenant=tenant, key=newest, key_names=names, role=role, rater=item.rater)


def matches(name: str, origin: Origin) -> bool:
    """Whether a name of the settings stands for this origin."""
    kind, _, rest = name.partition(":")
    if kind == "import":
        kind, rest = "rater", name
    theirs: tuple[str | None, ...]
    match kind:
        case "key":
            theirs = origin.key_names
        case "tenant":
            theirs = (origin.tenant,)
        case "role":
            theirs = (origin.role,)
        case "rater":
            theirs = (origin.rater,)
        case _:
            return False
    if rest.endswith("*"):
        return any(one is not None and one.startswith(rest[:-1]) for one in theirs)
    return rest in theirs


def factor(item: Feedback, *, origin: Origin, configured: Mapping[str, float]) -> float:
    """What a feedback's weight is multiplied by, >= 0; with 0 it is stored and not learned from.

    Of several names that match, the closest to the person counts: rater, then key, role, tenant; of one kind the
    longest. Where none matches it is 1, but 0 for scores of a model that come from another system: nobody here has
    looked at that model yet.
    """
    names = [name for name in configured if matches(name, origin)]
    if names:
        best = min(names, key=lambda name: (KINDS.index(name.partition(":")[0]), name.endswith("*"), -len(name), name))
        return configured[best]
    foreign = item.source == "judge" and (item.rater or "").startswith(IMPORTED_RATER)
    return 0.0 if foreign else 1.0
