"""Redaction of secrets in texts that are stored, logged, printed or sent to callers.

Error messages may contain secrets: servers repeat headers, and database drivers print the connection string.
`without_keys` removes known secrets, `without_secrets` removes texts that look like secrets.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import unquote

#: replaces the value of a secret setting
HIDDEN: Final = "[hidden]"

#: replaces an API key
_KEY: Final = "[key]"
#: replaces any other text that looks like a secret
_REDACTED: Final = "[redacted]"
#: character -> its name in HTML
_ENTITIES: Final = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}
#: length from which a known secret is replaced inside words too; a shorter one may be part of an ordinary word
_LONG_KEY: Final = 8
#: API keys of RagBandit, and of OpenAI and similar servers, also with stars in the middle
_ANY_KEY: Final = re.compile(r"(?<![A-Za-z])sk-[\w*-]{8,}|(?<![A-Za-z0-9])rb_[0-9A-Za-z]{10}_[\w*-]+")
#: names of fields with secret values, but not "tokens", which is a count
_NAME: Final = (
    r"[\w.-]*(?:password|passwd|passphrase|pwd|secret|token(?!s)|credential|signature"
    r"|(?:api|access|account|private)[_ -]?key)[\w.-]*|pass|pw|sig"
)
_NAME_ALONE: Final = re.compile(_NAME, re.IGNORECASE)
#: usual form of an environment variable's name
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
#: further names of fields with secret values in the query of a URL
_QUERY_NAME: Final = re.compile(r"(?:[\w.-]*[_.-])?key|code|auth\w*|jwt|otp|sas|session|sid", re.IGNORECASE)
#: user and password of a URL, up to the last @ before the path. After a colon that begins no port, they end at the
#: next @ even in the path, since an unescaped password may contain the characters that begin a path
_USER: Final = re.compile(r"(?<=://)(?:[^\s/?#]*@|[^\s/?#:@\[]*:(?!\d*(?:[/?#\s]|$))[^\s@]*@)")
#: a field of the query or the fragment of a URL
_FIELD: Final = re.compile(r"(?<=[?&;#])([^\s=&;#?]+)=[^\s&;#]+")
#: longest name of a field; a longer name counts as that of a secret, because the patterns take quadratic time
_LONGEST_NAME: Final = 1000
#: a value in quotes, in escaped quotes (JSON within JSON), or in braces (ODBC)
_QUOTED: Final = (
    r"\\\"(?:[^\"\\\n]|\\(?!\"))*\\\"|\"(?:\\.|[^\"\\\n])*\""
    r"|\\'(?:[^'\\\n]|\\(?!'))*\\'|'(?:\\.|[^'\\\n])*'|\{[^}\n]*\}"
)
#: longest line that is searched, in characters. The patterns take quadratic time in the length of a line
_LINE: Final = 4000
#: number of characters kept at each end of a long text
_END: Final = 20_000

#: a private key, also without its end
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
#: every name that _NAME matches contains one of these
_NAME_HINTS: Final = ("pass", "pw", "secret", "token", "credential", "sig", "key")
#: (hints, pattern, replacement), applied to each line in this order. For speed, a pattern is skipped if an ASCII
#: text, in lower case, contains none of its hints
_SECRETS: Final = [
    (hints, re.compile(pattern), replacement)
    for hints, pattern, replacement in (
        # User part of a URL, up to the last @: an unescaped password may contain any character.
        (("://",), r"(?<=://)\S*@", ""),
        # User part of a URL whose password contains spaces. Digits after the colon are a port.
        (("://",), r"(?<=://)[^\s/:@]*:(?!\d+(?:[/?#\s]|$))[^\n@]*@", ""),
        # Query and fragment of a URL, without closing brackets and quotes after it.
        (("://",), r"(?<=://)([^\s?#]*)[?#](?!\[redacted\])\S+?(?=[\"')\]},.;:]*(?:\s|$))", rf"\1?{_REDACTED}"),
        # user:password@host without a scheme (drivers for Go), and user/password@host (Oracle).
        (("@",), r"(?<![\w/@])[\w.+-]+[:/][^\s@/:]+@(?=[\w(\[])", f"{_REDACTED}@"),
        (
            ("authorization",),
            r"(?i)\b(authorization[\"']?\s*[:=]\s*)(?!\[redacted\])"  # noqa: ISC004
            r"(?:[\"'][^\"'\n]*[\"']|(?:(?:bearer|basic|digest|token)\s+)?\S+)",
            rf"\1{_REDACTED}",
        ),
        (("bearer",), r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}", rf"\1{_REDACTED}"),
        # "password": "...", password='...', PWD={...}
        (_NAME_HINTS, rf"(?i)(?<![\w.-])((?:{_NAME})\\?[\"']?\s*[:=]\s*)(?:{_QUOTED})", rf"\1{_REDACTED}"),
        # ;Password=a b;Database=d: a value before a semicolon may contain spaces
        (_NAME_HINTS, rf"(?i)(;\s*(?:{_NAME})\s*=\s*)(?!\[redacted\])[^;\n]+", rf"\1{_REDACTED}"),
        (_NAME_HINTS, rf"(?i)(?<![\w.-])((?:{_NAME})\s*[:=]\s*)(?!\[redacted\])[^\s;]+", rf"\1{_REDACTED}"),
        # Keys of AWS, GitHub, GitLab, Google, Hugging Face and Slack, and JSON web tokens, by their prefixes.
        (
            ("akia", "asia", "gh", "glpat", "aiza", "hf_", "xox", "eyj"),
            r"(?<![A-Za-z0-9])(?:(?:AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"  # noqa: ISC004
            r"|AIza[\w-]{30,}|hf_[A-Za-z0-9]{16,}|xox[a-z]-[\w-]{10,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)",
            _KEY,
        ),
        (("sk-", "rb_"), _ANY_KEY.pattern, _KEY),
    )
]
#: any hint: most texts have none
_HINTS: Final = re.compile(
    "|".join(re.escape(hint) for hint in sorted({hint for hints, *_ in _SECRETS for hint in hints}))
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
        # Only whole lines are kept, since half a line may contain a secret without the name of its field.
        head, tail = text[:_END].rpartition("\n"), text[-_END:].partition("\n")
        text = f"{head[0] or head[2]}\n...\n{tail[2]}"
    lines = [line if len(line) <= _LINE else f"{line[:_LINE]}..." for line in text.split("\n")]
    is_ascii, lowered = text.isascii(), text.lower()
    if is_ascii and not _HINTS.search(lowered):
        return "\n".join(lines)
    for hints, pattern, replacement in _SECRETS:
        if not is_ascii or any(hint in lowered for hint in hints):  # hints in ASCII do not find a dotless i
            lines = [pattern.sub(replacement, line) for line in lines]
    return "\n".join(lines)


ERROR_LENGTH: Final = 300  #: maximum number of characters of a library error's text in traces and outcomes


def error_in_short(error: BaseException) -> str:
    """Type and message of an error, without secrets."""
    # Secrets are removed before the text is cut: half a secret could not be recognized.
    text = without_secrets(str(error))
    text = text if len(text) <= ERROR_LENGTH else f"{text[:ERROR_LENGTH]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_secret_name(name: str) -> bool:
    """Whether a field's name means a password, a key, a token or another secret."""
    return len(name) > _LONGEST_NAME or _NAME_ALONE.fullmatch(name) is not None


def describe_value(value: object) -> str:
    """Describe a wrong value for a message. Numbers are shown. Texts are not shown: they may be misplaced secrets."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    kinds = {"a mapping": Mapping, "a list": list | tuple}
    return next((name for name, kind in kinds.items() if isinstance(value, kind)), f"a {type(value).__name__}")


def variable_or_hidden(name: str) -> str:
    """The name of an environment variable, hidden if it may be a key that was entered by mistake."""
    return name if _VARIABLE.fullmatch(name) else HIDDEN


def shown_value(value: object, *, path: Sequence[str]) -> object:
    """Copy a setting with secrets hidden: texts in `headers`, in `fields` and under names of secrets.

    Other texts go through `without_secrets`. path: names of the enclosing sections and of the setting.
    """
    if isinstance(value, Mapping):
        return {without_secrets(str(key)): shown_value(item, path=(*path, str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown_value(item, path=path) for item in value]
    if not isinstance(value, str):
        return value
    if path[-1].endswith("_env"):
        return variable_or_hidden(value)
    if {"headers", "fields"} & set(path[:-1]) or any(is_secret_name(name) for name in path):
        return HIDDEN
    return without_secrets(value)


def without_credentials(value: object) -> object:
    """Copy nested values without credentials in URLs: no user, no password, and "[hidden]" for secrets in the query."""
    if isinstance(value, str):
        return re.sub(r"\S+", _redact_word, value) if "://" in value else value
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {without_credentials(key): without_credentials(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_credentials(item) for item in value]
    if isinstance(value, tuple):
        return tuple(without_credentials(item) for item in value)
    return value


def _redact_word(word: re.Match[str]) -> str:
    # After the last @ there is no user. _USER would search an @ after each "://", which takes quadratic time.
    before, at, after = word[0].rpartition("@")
    address = _USER.sub("", before + at) + after
    begin, slashes, rest = address.partition("://")
    return f"{begin}{slashes}{_FIELD.sub(_redact_field, rest)}" if slashes else address


def _redact_field(field: re.Match[str]) -> str:
    return f"{field[1]}={HIDDEN}" if is_secret_in_query(unquote(field[1])) else field[0]


def is_secret_in_query(name: str) -> bool:
    """Whether a field in the query of a URL is named like a secret. In a query "code" and "key" are such names, too."""
    return is_secret_name(name) or _QUERY_NAME.fullmatch(name) is not None


def credentials_in(value: object, *, field: str) -> str | None:
    """Dotted name of the first value with credentials in a URL; None if no value has any. field: name of `value`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            name = f"{field}.{without_credentials(key)}"
            path = name if without_credentials(key) != key else credentials_in(item, field=name)
            if path is not None:
                return path
        return None
    return field if without_credentials(value) != value else None


def without_keys(text: str, *, secrets: Iterable[str]) -> str:
    """Replace known secrets, and keys that look like OpenAI's or RagBandit's, by "[key]".

    secrets: keys and values of headers. Their last words and their parts of 8 or more characters are replaced too.
    """
    hidden = {piece for secret in secrets for piece in _pieces(secret)}
    if hidden:
        longest_first = sorted(hidden, key=lambda piece: (-len(piece), piece))
        text = re.sub("|".join(map(_pattern, longest_first)), _KEY, text)
    return _ANY_KEY.sub(_KEY, text)


def _pieces(secret: str) -> set[str]:
    words = secret.split()
    # An error of a server may quote only one part of a header such as "session=...; other=...".
    parts = {part.strip("\"'") for part in re.split(r"[\s;=,]+", secret)}
    # The last word is the token in "Bearer ...", whatever its length.
    return {" ".join(words), *words[-1:], *(part for part in parts if len(part) >= _LONG_KEY)} - {""}


def _pattern(piece: str) -> str:
    """Regular expression that matches a text, also as escaped by JSON, repr, URLs or HTML."""
    pattern = piece[0] if piece[0].isalnum() else _escaped(piece[0], most=0)
    pattern += "".join(sign if sign.isalnum() else _escaped(sign, most=3) for sign in piece[1:])
    return pattern if len(piece) >= _LONG_KEY else rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])"


def _escaped(sign: str, *, most: int) -> str:
    """most: largest number of backslashes before the character; a quotation mark in JSON within JSON has three."""
    plain = r"(?:\s|\+)+" if sign == " " else rf"\\{{0,{most}}}{re.escape(sign)}"
    in_url = "".join(f"%(?i:{byte:02x})" for byte in sign.encode("utf-8", "surrogatepass"))
    name = f"|{_ENTITIES[sign]}" if sign in _ENTITIES else ""
    in_page = rf"&(?:#0*{ord(sign)}|#(?i:x0*{ord(sign):x}){name});"
    return rf"(?:{plain}|\\{{1,2}}u(?i:{ord(sign):04x})|{in_url}|{in_page})"
