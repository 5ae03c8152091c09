"""Redaction of secrets in texts that are stored, logged, printed or sent to callers.

Error messages may contain secrets: some servers repeat the key or another header of the request, HTTP clients print
invalid headers, and database drivers print the connection string. `without_keys` removes known secrets,
`without_secrets` removes texts that look like secrets.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import unquote

#: replaces the value of a secret setting
HIDDEN: Final = "[hidden]"

#: replaces a key
_HIDDEN: Final = "[key]"
#: replaces any other text that looks like a secret
_REDACTED: Final = "[redacted]"
#: shorter keys are hidden only as whole words, since they may be part of any word
_LONG_KEY: Final = 8
#: separators in a header's value, as in "session=...; other=..."; a server may repeat a single part
_BETWEEN: Final = re.compile(r"[\s;=,]+")
#: API keys that look like those of OpenAI, also with stars in the middle, and those of RagBandit
_ANY_KEY: Final = re.compile(r"(?<![A-Za-z])sk-[\w*-]{8,}|(?<![A-Za-z0-9])rb_[0-9A-Za-z]{10}_[\w*-]+")
#: names of fields with secret values; "tokens" is excluded, since it is a count
_NAME: Final = (
    r"[\w.-]*(?:password|passwd|passphrase|pwd|secret|token(?!s)|credential|signature"
    r"|(?:api|access|account|private)[_ -]?key)[\w.-]*|pass|pw|sig"
)
_NAME_ALONE: Final = re.compile(_NAME, re.IGNORECASE)
#: sections with arbitrary names for a server
_FREE: Final = frozenset({"headers", "fields"})
#: usual form of an environment variable's name
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
#: further names of fields that are secrets in the query of a URL
_QUERY_NAME: Final = re.compile(r"(?:[\w.-]*[_.-])?key|code|auth\w*|jwt|otp|sas|session|sid", re.IGNORECASE)
#: a URL after its scheme
_ADDRESS: Final = re.compile(r"(?<=://)\S+")
#: user and password of a URL: up to the last @ before the path; or up to the next @ after a colon without a port, since
#: an unescaped password may contain characters that begin a path
_USER: Final = re.compile(r"(?<=://)(?:[^\s/?#]*@|[^\s/?#:@\[]*:(?!\d*(?:[/?#\s]|$))[^\s@]*@)")
#: a field of the query or the fragment
_FIELD: Final = re.compile(r"(?<=[?&;#])([^\s=&;#]+)=[^\s&;#]+")
#: a value in quotes, in escaped quotes (JSON within JSON), or in the braces of ODBC
_QUOTED: Final = (
    r"\\\"(?:[^\"\\\n]|\\(?!\"))*\\\"|\"(?:\\.|[^\"\\\n])*\""
    r"|\\'(?:[^'\\\n]|\\(?!'))*\\'|'(?:\\.|[^'\\\n])*'|\{[^}\n]*\}"
)
#: longest line that is searched, in characters: the time of the patterns is quadratic in it
_LINE: Final = 4000
#: characters kept at both ends of a long text; the end of a traceback has the error
_END: Final = 20_000

#: a private key, complete or cut off
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
#: (pattern, replacement), applied to every line in this order
_SECRETS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    # User part of a URL, up to the last @: an unescaped password may contain any character.
    (re.compile(r"(?<=://)\S*@"), ""),
    # The same with spaces in the password; digits after the colon are a port.
    (re.compile(r"(?<=://)[^\s/:@]*:(?!\d+(?:[/?#\s]|$))[^\n@]*@"), ""),
    # Query and fragment of a URL, without closing brackets and quotes after it.
    (re.compile(r"(?<=://)([^\s?#]*)[?#](?!\[redacted\])\S+?(?=[\"')\]},.;:]*(?:\s|$))"), rf"\1?{_REDACTED}"),
    # user:password@host without a scheme (drivers for Go), and user/password@host (Oracle).
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
    # ;Password=a b;Database=d: values between semicolons may contain spaces
    (re.compile(rf"(?i)(;\s*(?:{_NAME})\s*=\s*)(?!\[redacted\])[^;\n]+"), rf"\1{_REDACTED}"),
    (re.compile(rf"(?i)(?<![\w.-])((?:{_NAME})\s*[:=]\s*)(?!\[redacted\])[^\s;]+"), rf"\1{_REDACTED}"),
    # Keys of AWS, GitHub, GitLab, Google, Hugging Face and Slack, and JSON web tokens, by their prefixes.
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
    """Remove texts that look like secrets, from messages of unknown code.

    Removes user, password, query and fragment of URLs; users and passwords before an @; values of fields named like
    passwords, keys, tokens or secrets (in connection strings, JSON, YAML and Python); Authorization headers; keys of
    well-known services; private keys. It may remove too much. A secret that looks like an ordinary word stays. Lines
    are cut to 4,000 characters, and long texts to the lines in their first and last 20,000 characters.
    """
    text = _PRIVATE_KEY.sub(_REDACTED, text)
    if len(text) > 2 * _END:
        # Whole lines only: half a line may contain a secret without the name of its field.
        head, tail = text[:_END].rpartition("\n"), text[-_END:].partition("\n")
        text = f"{head[0] or head[2]}\n...\n{tail[2]}"
    return "\n".join(_line_without_secrets(line) for line in text.split("\n"))


def _line_without_secrets(line: str) -> str:
    line = line if len(line) <= _LINE else f"{line[:_LINE]}..."
    for pattern, replacement in _SECRETS:
        line = pattern.sub(replacement, line)
    return line


def is_secret_name(name: str) -> bool:
    """Whether a field's name is that of a password, key, token or other secret."""
    return _NAME_ALONE.fullmatch(name) is not None


def described(value: object) -> str:
    """Describe a wrong value in an error: numbers are printed; texts are not, since they may be misplaced secrets."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    kinds = {"a mapping": Mapping, "a list": list | tuple}
    return next((name for name, kind in kinds.items() if isinstance(value, kind)), f"a {type(value).__name__}")


def shown_variable(name: str) -> str:
    """The name of an environment variable, hidden if it may be the key itself, entered by mistake."""
    return name if _VARIABLE.fullmatch(name) else HIDDEN


def shown_value(value: object, *, path: Sequence[str]) -> object:
    """Copy the value of a setting with secrets hidden.

    Hides texts in `headers` and `fields`, texts of settings named like secrets, and everything that `without_secrets`
    removes. The value of a setting `..._env` is shown if it looks like a variable's name.

    path: names of the enclosing sections and of the setting
    """
    if isinstance(value, Mapping):
        return {without_secrets(str(key)): shown_value(item, path=(*path, str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown_value(item, path=path) for item in value]
    if not isinstance(value, str):
        return value
    if path[-1].endswith("_env"):
        return shown_variable(value)
    if _FREE & set(path[:-1]) or any(is_secret_name(name) for name in path):
        return HIDDEN
    return without_secrets(value)


def without_credentials(value: object) -> object:
    """Copy a param without credentials in URLs: no user, no password, and "[hidden]" for secrets in the query.

    Applies to all keys and values of mappings, lists and tuples. Other fields of a query stay.
    """
    if isinstance(value, Mapping):
        return {without_credentials(key): without_credentials(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_credentials(item) for item in value]
    if isinstance(value, tuple):
        return tuple(without_credentials(item) for item in value)
    if not isinstance(value, str) or "://" not in value:
        return value
    return _ADDRESS.sub(lambda address: _FIELD.sub(_stored_field, address[0]), _USER.sub("", value))


def _stored_field(field: re.Match[str]) -> str:
    return f"{field[1]}={HIDDEN}" if is_secret_in_query(unquote(field[1])) else field[0]


def is_secret_in_query(name: str) -> bool:
    """Whether a field in the query of a URL is named like a secret; "code" and "key" are secrets there."""
    return is_secret_name(name) or _QUERY_NAME.fullmatch(name) is not None


def credentials_in(value: object, *, field: str) -> str | None:
    """Dotted name of the first param with credentials in a URL; None without any. field: name of the value itself."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            name = f"{field}.{without_credentials(key)}"
            path = name if without_credentials(key) != key else credentials_in(item, field=name)
            if path is not None:
                return path
        return None
    return field if without_credentials(value) != value else None


def without_keys(text: str, *, secrets: Iterable[str]) -> str:
    """Replace these secrets, and all keys that look like OpenAI's or RagBandit's, by "[key]". secrets: keys and values
    of headers; their last word and all parts of 8 or more characters are replaced too.
    """
    hidden = {piece for secret in secrets for piece in _pieces(secret)}
    if hidden:
        longest_first = sorted(hidden, key=lambda piece: (-len(piece), piece))
        text = re.sub("|".join(map(_pattern, longest_first)), _HIDDEN, text)
    return _ANY_KEY.sub(_HIDDEN, text)


def _pieces(secret: str) -> set[str]:
    words = secret.split()
    parts = {part.strip("\"'") for part in _BETWEEN.split(secret)}
    # The last word is the token in "Bearer ...", whatever its length.
    return {" ".join(words), *words[-1:], *(part for part in parts if len(part) >= _LONG_KEY)} - {""}


def _pattern(piece: str) -> str:
    """Regular expression that matches a text as it is, and as escaped by JSON, repr and similar."""
    pattern = piece[0] if piece[0].isalnum() else _escaped(piece[0], most=0)
    pattern += "".join(sign if sign.isalnum() else _escaped(sign, most=3) for sign in piece[1:])
    return pattern if len(piece) >= _LONG_KEY else rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])"


def _escaped(sign: str, *, most: int) -> str:
    """most: most backslashes before the character; a quotation mark in JSON within JSON has three."""
    plain = r"\s+" if sign == " " else rf"\\{{0,{most}}}{re.escape(sign)}"
    return rf"(?:{plain}|\\{{1,2}}u(?i:{ord(sign):04x}))"
