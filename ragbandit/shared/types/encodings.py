"""JSON of a client's request to a model, encoded once: for the check of characters, hashes, the job, the server."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Self, TypeGuard, TypeVar

from ragbandit.shared.texts.json_values import fast_json_bytes, is_plain, json_bytes

_Value = TypeVar("_Value")

#: longest list whose members are separate parts: a part takes about 300 bytes besides its JSON
_MOST_PARTS: Final = 4_096
_UNKNOWN: Final = (object(), b"", b"")
# With a secret of this process, so that nobody can find out by a digest what another caller has sent.
_SECRET: Final = hashlib.sha256(os.urandom(32))


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """The JSON of the parts of a conversation. Each object in a list, such as a message, is a part. Any other field is
    one part.

    A part is found by its identity, so a changed copy of it is encoded again. Parts must not be changed in place.
    """

    #: identity of a part -> (the part, its JSON or None before it is needed, its digest)
    _parts: dict[int, tuple[Any, bytes | None, bytes]] = field(default_factory=dict)
    #: (identity of a part, form) -> (the part, its conversion to this form)
    _conversions: dict[tuple[int, str], tuple[Any, list[Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any) -> Self:
        """Encode the parts of a field. Raises the errors of `json_bytes`."""
        parts = value if _has_parts(value) else [value]
        return cls(_parts={id(part): (part, *_encode_part(part)) for part in parts})

    @classmethod
    def joined(cls, encodings: Iterable[Self]) -> Self:
        """One encoding with the parts of all encodings."""
        return cls(_parts={at: part for one in encodings for at, part in one._parts.items()})  # noqa: SLF001 - its own

    @property
    def size(self) -> int:
        """Bytes of the JSON of the parts that are encoded so far."""
        return sum([len(encoded) for _, encoded, _ in self._parts.values() if encoded])

    def has_bytes(self, data: bytes) -> bool:
        """Whether the JSON of an encoded part contains these bytes."""
        return any(encoded and data in encoded for _, encoded, _ in self._parts.values())

    def converted(self, part: Any, convert: Callable[[Any], list[Any]], *, form: str) -> list[Any]:
        """The results of `convert` for a part, computed once for each form. Results of unknown parts are encoded."""
        known, parts = self._conversions.get((id(part), form), (_UNKNOWN, []))
        if known is part:
            return parts
        parts, digest = convert(part), self.digest(part)
        self._conversions[id(part), form] = part, parts
        for number, one in enumerate(parts if self._parts else ()):
            if self.digest(one) is None:
                new = digest and _digest(b"%b%d%b" % (digest, number, form.encode()))
                self._parts[id(one)] = (one, None, new) if new else (one, *_encode_part(one))
        return parts

    def json(self, value: object) -> bytes:
        """The JSON of a field. Unknown parts are encoded now. Raises the errors of `json_bytes`."""
        data = self._json_of_parts(value)
        return json_bytes(value) if data is None else data

    def body(self, fields: Mapping[str, Any]) -> bytes:
        """The JSON of an object with these fields. Raises the errors of `json_bytes`."""
        members, others = list[bytes](), dict[str, Any]()
        for name, value in fields.items():
            data = self._json_of_parts(value)
            if data is None:
                others[name] = value  # encoded together with the next fields
                continue
            members += [json_bytes(others)[1:-1], b"%b:%b" % (json_bytes(name), data)]
            others = {}
        return b"{%b}" % b",".join(filter(None, [*members, json_bytes(others)[1:-1]]))

    def digest(self, part: object) -> bytes | None:
        """The digest of a part, valid in this process only; None if the part is not known."""
        known, _, digest = self._parts.get(id(part), _UNKNOWN)
        return digest if known is part else None

    def digest_of(self, values: Iterable[object]) -> bytes:
        """The digest of several fields."""
        parts = [b"[%b]" % b"".join(map(self._digest, one)) if _has_parts(one) else self._digest(one) for one in values]
        return _digest(b",".join(parts))

    def _digest(self, part: object) -> bytes:
        return self.digest(part) or _digest(json_bytes(part))

    def _json_of_parts(self, value: object) -> bytes | None:
        """The JSON of a field that is a part, or a list of parts; None for another field."""
        part, data, digest = self._parts.get(id(value), _UNKNOWN)
        if part is value:
            return data or _encode_part(part, digest=digest)[0]
        return b"[%b]" % b",".join(map(self.json, value)) if _has_parts(value) else None


class DigestCache(Generic[_Value]):
    """A thread-safe cache of values by digest: at least the `most` values put or used last, at most twice as many.

    Keys and values are of a fixed size, so a limit of entries limits the bytes.
    """

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._new, self._old = dict[Any, _Value](), dict[Any, _Value]()

    def get(self, key: object) -> _Value | None:
        """The value; None if it is not known."""
        value = self._new.get(key)
        if value is None:
            value = self._old.get(key)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: object, value: _Value) -> None:
        """Remember a value."""
        if len(self._new) >= self._most:
            self._old, self._new = self._new, {}
        self._new[key] = value


#: digests of parts for which pydantic's encoder writes the same bytes as Python's
_KNOWN_PLAIN: Final = DigestCache[bool](most=20_000)


def _encode_part(part: object, *, digest: bytes | None = None) -> tuple[bytes, bytes]:
    """Returns (JSON of a part, its digest). Only the first of equal parts is tested by `is_plain`."""
    data = fast_json_bytes(part)
    key = digest or _digest(data or b"")
    if data is not None and (_KNOWN_PLAIN.get(key) or is_plain(part)):
        _KNOWN_PLAIN.put(key, True)
        return data, key
    data = json_bytes(part)
    return data, digest or _digest(data)


def _has_parts(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list) and 0 < len(value) <= _MOST_PARTS and {*map(type, value)} == {dict}


def _digest(data: bytes) -> bytes:
    digest = _SECRET.copy()
    digest.update(data)
    return digest.digest()
