"""Unpacks request bodies that have a Content-Encoding. The size and the ratio of the unpacked body are limited."""

import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from starlette.exceptions import HTTPException

from ragbandit.router.api.schemas.requests import Malformed
from ragbandit.shared.errors import InvalidInput

#: a body may unpack to _FREE bytes, or to _RATIO times the bytes that were sent if these are more
_FREE: Final = 1_000_000
_RATIO: Final = 200
#: base-2 logarithm of zstd's largest window, as in RFC 9659
_WINDOW: Final = 23
#: maximum number of frames, since each costs time and a copy of the rest
_MOST_FRAMES: Final = 100


class UnknownCoding(InvalidInput, code="UNSUPPORTED_CODING", status=415):
    """The body has a coding that the service cannot read."""


def _deflate_decoder(data: bytes) -> Any:
    has_zlib_head = data[0] & 15 == 8  # some clients send no zlib header
    return zlib.decompressobj(zlib.MAX_WBITS if has_zlib_head else -zlib.MAX_WBITS)


#: name of a coding -> function that makes a decoder for data; zstd if its library is installed
_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "gzip": lambda _: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "deflate": _deflate_decoder,
}
with suppress(ImportError):
    from backports import zstd

    _OPTIONS: Final = {int(zstd.DecompressionParameter.window_log_max): _WINDOW}
    _DECODERS["zstd"] = lambda _: zstd.ZstdDecompressor(options=_OPTIONS)


def codings_of(header: str) -> list[str]:
    """The codings in a header Content-Encoding, in the order in which they were applied. Raises UnknownCoding."""
    names = [name.strip().removeprefix("x-") for name in header.lower().split(",")]
    codings = [name for name in names if name not in ("", "identity")]
    if len(codings) > len(_DECODERS) or not _DECODERS.keys() >= set(codings):
        remedy = f"use one of {', '.join(_DECODERS)}, or send the body unpacked"
        raise UnknownCoding(f"a body in {header!r:.80} is not read", field="Content-Encoding", remedy=remedy)
    return codings


def unpack_body(data: bytes, *, codings: Sequence[str], most: int) -> bytes:
    """Unpack a body of at most `most` bytes; blocks. Raises Malformed, and HTTPException(413) for a larger body."""
    for coding in reversed(codings):
        limit = min(most, max(_FREE, _RATIO * len(data)))
        try:
            data = _first_bytes(data, make=_DECODERS[coding], most=limit + 1)
        except Exception as error:  # each library has its own errors
            message = f"the body is not whole {coding}: {str(error)[:100]}"
            raise Malformed(message, field="Content-Encoding", remedy="send the body unpacked") from error
        if len(data) > limit:
            raise HTTPException(413)
    return data


def _first_bytes(data: bytes, *, make: Callable[[bytes], Any], most: int) -> bytes:
    """The first `most` bytes in data, which may have several frames. Raises EOFError, and the errors of the library."""
    body, frames = b"", 0
    while data and len(body) < most:
        decoder, frames = make(data), frames + 1
        body += decoder.decompress(data, most - len(body))
        if frames > _MOST_FRAMES or not (decoder.eof or len(body) == most):
            raise EOFError("it is cut off, or has too many frames")
        data = decoder.unused_data
    return body
