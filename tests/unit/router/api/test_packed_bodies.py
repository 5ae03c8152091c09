"""Request bodies with a Content-Encoding: what comes out, and what is refused."""

import gzip
import zlib

import pytest
from backports import zstd
from starlette.exceptions import HTTPException

from ragbandit.router.api.packed_bodies import UnknownCoding, codings_of, unpack_body
from ragbandit.router.api.schemas.requests import Malformed

TEXT = b'{"model": "auto", "input": "Who wrote Dracula?"}' * 100


def deflated(data):
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKED = [
    ("gzip", gzip.compress(TEXT)),
    ("X-GZIP", gzip.compress(TEXT[:9]) + gzip.compress(TEXT[9:])),
    ("deflate", zlib.compress(TEXT)),
    ("deflate", deflated(TEXT)),
    ("zstd", zstd.compress(TEXT)),
    ("zstd", zstd.compress(TEXT[:9]) + zstd.compress(TEXT[9:])),
    ("gzip, identity,zstd", zstd.compress(gzip.compress(TEXT))),
    ("identity", TEXT),
]


@pytest.mark.parametrize(("header", "data"), PACKED, ids=[str(place) for place in range(len(PACKED))])
def test_a_packed_body(header, data):
    """One coding or several come out as they were, up to the limit; a body that is cut off is refused."""
    codings = codings_of(header)
    assert unpack_body(data, codings=codings, most=len(TEXT)) == TEXT
    assert unpack_body(b"", codings=codings, most=1) == b""
    if codings:
        with pytest.raises(HTTPException) as large:
            unpack_body(data, codings=codings, most=len(TEXT) - 1)
        assert large.value.status_code == 413
        for broken in (data[:-1], TEXT, b"\x00"):
            with pytest.raises(Malformed):
                unpack_body(broken, codings=codings, most=10**6)


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_a_body_that_grows_too_much(pack):
    """Bodies above a megabyte are read if they grow to at most 200 times their size, whatever the limit is."""
    (coding,) = codings_of("gzip" if pack is gzip.compress else "zstd")
    assert len(unpack_body(pack(bytes(1_000_000)), codings=[coding], most=10**9)) == 1_000_000
    with pytest.raises(HTTPException):
        unpack_body(pack(bytes(30_000_000)), codings=[coding], most=10**9)
    with pytest.raises(Malformed, match="frames"):
        unpack_body(pack(b"") * 101, codings=[coding], most=10**9)


@pytest.mark.parametrize("header", ["br", "gzip, compress", "gzip,gzip,gzip,gzip"])
def test_a_coding_that_nobody_reads(header):
    """It is refused with the codings that are read."""
    with pytest.raises(UnknownCoding) as refused:
        codings_of(header)
    assert refused.value.status == 415
    assert "gzip, deflate, zstd" in refused.value.remedy
