"""Redaction of secrets in texts that are stored, logged, printed or sent to callers.

Some servers repeat the key, or another header, that they were sent; transports name a header that they cannot send;
drivers of databases repeat the whole connection string. `without_keys` removes secrets that are known,
`without_secrets` whatever looks like one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import unquote

#: what stands where a setting's value is not shown
HIDDEN: Final = "[hidden]"

#: what stands where a key stood
_HIDDEN: Final = "[key]"
#: what stands where anything else stood that looks like a secret
_REDACTED: Final = "[redacted]"
#: a shorter key may be a piece of any word, and is hidden where it stands alone
_LONG_KEY: Final = 8
#: between the pieces of a header's value, as in "session=...; other=...": a server may repeat one of them alone
_BETWEEN: Final = re.compile(r"[\s;=,]+")
#: keys of OpenAI and of those who took over its habit, also with stars in the middle; and our own
_ANY_KEY: Final = re.compile(r"(?<![A-Za-z])sk-[\w*-]{8,}|(?<![A-Za-z0-9])rb_[0-9A-Za-z]{10}_[\w*-]+")
#: words in the name of a field whose value is a secret; "tokens" are counts
_NAME: Final = (
    r"[\w.-]*(?:password|passwd|passphrase|pwd|secret|token(?!s)|credential|signature"
    r"|(?:api|access|account|private)[_ -]?key)[\w.-]*|pass|pw|sig"
)
_NAME_ALONE: Final = re.compile(_NAME, re.IGNORECASE)
#: sections that hold whatever a server wants
_FREE: Final = frozenset({"headers", "fields"})
#: the name of an environment variable as everybody writes it
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
#: names of fields of an address that are secrets there, beside those above
_QUERY_NAME: Final = re.compile(r"(?:[\w.-]*[_.-])?key|code|auth\w*|jwt|otp|sas|session|sid", re.IGNORECASE)
#: of an address what follows its scheme
_ADDRESS: Final = re.compile(r"(?<=://)\S+")
#: user and password of an address: up to the last @ before the path; and up to the next @ after a colon that no port
#: follows, since a password that is not escaped may hold the signs that begin a path
_USER: Final = re.compile(r"(?<=://)(?:[^\s/?#]*@|[^\s/?#:@\[]*:(?!\d*(?:[/?#\s]|$))[^\s@]*@)")
#: a field of the query or the fragment
_FIELD: Final = re.compile(r"(?<=[?&;#])([^\s=&;#]+)=[^\s&;#]+")
#: a value in quotes, in quotes of a text within a text (JSON in JSON), or in the braces of ODBC
_QUOTED: Final = (
    r"\\\"(?:[^\"\\\n]|\\(?!\"))*\\\"|\"(?:\\.|[^\"\\\n])*\""
    r"|\\'(?:[^'\\\n]|\\(?!'))*\\'|'(?:\\.|[^'\\\n])*'|\{[^}\n]*\}"
)
#: longest line that is read, in characters: the patterns' time grows with its square
_LINE: Final = 4000
#: characters kept of each end of a text: a traceback says what failed at its end
_END: Final = 20_000

#: cut off or not
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
#: pattern of a line -> what takes its place, in this order
_SECRETS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    # The user part of a URL, up to the last @: a password that is not escaped may hold any sign.
    (re.compile(r"(?<=://)\S*@"), ""),
    # The same with spaces in the password; digits after the colon are a port.
    (re.compile(r"(?<=://)[^\s/:@]*:(?!\d+(?:[/?#\s]|$))[^\n@]*@"), ""),
    # Query and fragment of a URL, without the signs that close a bracket or a quotation after it.
    (re.compile(r"(?<=://)([^\s?#]*)[?#](?!\[redacted\])\S+?(?=[\"')\]},.;:]*(?:\s|$))"), rf"\1?{_REDACTED}"),
    # user:password@host without a scheme, as Go's drivers write it, and user/password@host of Oracle.
    (re.compile(r"(?<![\w/@])[\w.+-]+[:/][^\s@/:]+@(?=[\w(\[])"), f"{_REDACTED}@"),
    (
        re.compile(
            r"(?i)\b(authorization[\"']?\s*[:=]\s*)(?!\[redacted\])"
            r"(?:[\"'][^\"'\n]*[\"']|(?:(?:bearer|basic|digest|token)\s+)?\S+)"
        ),
        rf"\1{_REDACTED}",
    ),
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}"), rf"\1{_REDACTED}"),
    # "password": "...", password='...', PWD={...}
    (re.compile(rf"(?i)(?<![\w.-])((?:{_NAME})\\?[\"']?\s*[:=]\s*)(?:{_QUOTED})"), rf"\1{_REDACTED}"),
    # ;Password=a b;Database=d: between semicolons a value may hold spaces
    (re.compile(rf"(?i)(;\s*(?:{_NAME})\s*=\s*)(?!\[redacted\])[^;\n]+"), rf"\1{_REDACTED}"),
    (re.compile(rf"(?i)(?<![\w.-])((?:{_NAME})\s*[:=]\s*)(?!\[redacted\])[^\s;]+"), rf"\1{_REDACTED}"),
    # Keys of AWS, GitHub, GitLab, Google, Hugging Face and Slack, and JSON web tokens, by their first letters.
    (
        re.compile(
            r"(?<![A-Za-z0-9])(?:(?:AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
            r"|AIza[\w-]{30,}|hf_[A-Za-z0-9]{16,}|xox[a-z]-[\w-]{10,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
        ),
        _HIDDEN,
    ),
    (_ANY_KEY, _HIDDEN),
)


def without_secrets(text: str) -> str:
    """The text without what looks like a secret, for messages written by code that we do not know.

    Removed are the user, password, query and fragment of URLs; users and passwords before an @; values of fields whose
    names speak of passwords, keys, tokens or secrets, as connection strings, JSON, YAML and Python write them;
    Authorization headers; keys of well-known services; private keys. In doubt more is removed than needed. A secret
    that looks like any other word stays. Of a line only the first 4,000 characters are kept, and of a long text the
    lines in its first and last 20,000.
    """
    text = _PRIVATE_KEY.sub(_REDACTED, text)
    if len(text) > 2 * _END:
        # Whole lines only: half a line may hold a secret without the word that tells it.
        head, tail = text[:_END].rpartition("\n"), text[-_END:].partition("\n")
        text = f"{head[0] or head[2]}\n...\n{tail[2]}"
    return "\n".join(_line_without_secrets(line) for line in text.split("\n"))


def _line_without_secrets(line: str) -> str:
    line = line if len(line) <= _LINE else f"{line[:_LINE]}..."
    for pattern, instead in _SECRETS:
        line = pattern.sub(instead, line)
    return line


def is_secret_name(name: str) -> bool:
    """Whether the name of a field speaks of a password, a key, a token or another secret."""
    return _NAME_ALONE.fullmatch(name) is not None


def described(value: object) -> str:
    """A value that was given wrongly, for an error: numbers as they are; a text may be a secret in the wrong place."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    kinds = {"a mapping": Mapping, "a list": list | tuple}
    return next((name for name, kind in kinds.items() if isinstance(value, kind)), f"a {type(value).__name__}")


def shown_variable(name: str) -> str:
    """The name of an environment variable for a message; hidden where it may be the key itself, put in its place."""
    return name if _VARIABLE.fullmatch(name) else HIDDEN


def shown_value(value: object, *, path: Sequence[str]) -> object:
    """The value of a setting as it may be printed: numbers and words as they are, without what may be a secret.

    path: names of the sections above it, and its own. Hidden are texts below `headers` and `fields`, and those whose
    own name speaks of a secret; of the others what `without_secrets` removes. The name of an environment variable in a
    setting `..._env` is shown where it is written like one.
    """
    if isinstance(value, Mapping):
        return {without_secrets(str(key)): shown_value(each, path=(*path, str(key))) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [shown_value(each, path=path) for each in value]
    if not isinstance(value, str):
        return value
    if path[-1].endswith("_env"):
        return shown_variable(value)
    if _FREE & set(path[:-1]) or any(is_secret_name(name) for name in path):
        return HIDDEN
    return without_secrets(value)


def without_credentials(value: object) -> object:
    """A param as it may be stored: addresses in its texts have no user and no password, and no secret in their query.

    Of mappings (keys too), lists and tuples the same for all that is in them. A field of a query whose name speaks of
    a secret has the value "[hidden]"; the others stay, since they say what is asked. What holds no such address is
    equal to what was given.
    """
    if isinstance(value, Mapping):
        return {without_credentials(key): without_credentials(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        stored = [without_credentials(each) for each in value]
        return stored if isinstance(value, list) else tuple(stored)
    if not isinstance(value, str) or "://" not in value:
        return value
    return _ADDRESS.sub(lambda address: _FIELD.sub(_stored_field, address[0]), _USER.sub("", value))


def _stored_field(field: re.Match[str]) -> str:
    return f"{field[1]}={HIDDEN}" if is_secret_in_query(unquote(field[1])) else field[0]


def is_secret_in_query(name: str) -> bool:
    """Whether the name of a field in the query of an address speaks of a secret: there "code" and "key" are some."""
    return is_secret_name(name) or _QUERY_NAME.fullmatch(name) is not None


def credentials_in(value: object, *, field: str) -> str | None:
    """The dotted name of the first param that `without_credentials` would change; None if there is none.

    field: name of the value itself.
    """
    if isinstance(value, Mapping):
        for key, each in value.items():
            name = f"{field}.{without_credentials(key)}"
            path = name if without_credentials(key) != key else credentials_in(each, field=name)
            if path is not None:
                return path
        return None
    return field if without_credentials(value) != value else None


def without_keys(text: str, *, secrets: Iterable[str]) -> str:
    """The text with "[key]" for each of these secrets, and for whatever looks like a key of OpenAI's or of ours.

    secrets: keys, and values of headers; hidden are also their pieces of 8 characters or more, and the last word.
    """
    hidden = {piece for secret in secrets for piece in _pieces(secret)}
    if hidden:
        longest_first = sorted(hidden, key=lambda piece: (-len(piece), piece))
        text = re.sub("|".join(map(_pattern, longest_first)), _HIDDEN, text)
    return _ANY_KEY.sub(_HIDDEN, text)


def _pieces(secret: str) -> set[str]:
    words = secret.split()
    parts = {part.strip("\"'") for part in _BETWEEN.split(secret)}
    # Of "Bearer ..." the token, however short.
    return {" ".join(words), *words[-1:], *(part for part in parts if len(part) >= _LONG_KEY)} - {""}


def _pattern(piece: str) -> str:
    """A regular expression for it as it is, and as JSON, repr and their like escape it."""
    pattern = piece[0] if piece[0].isalnum() else _escaped(piece[0], most=0)
    pattern += "".join(each if each.isalnum() else _escaped(each, most=3) for each in piece[1:])
    return pattern if len(piece) >= _LONG_KEY else rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])"


def _escaped(sign: str, *, most: int) -> str:
    """most: backslashes before it; three are those of a quotation mark in JSON within JSON."""
    plain = r"\s+" if sign == " " else rf"\\{{0,{most}}}{re.escape(sign)}"
    return rf"(?:{plain}|\\{{1,2}}u(?i:{ord(sign):04x}))"
