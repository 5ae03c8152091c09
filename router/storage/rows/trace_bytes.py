"""Traces as bytes: JSON compressed by zlib with a dictionary of what traces are made of, in a third of its size.

The first byte names the dictionary. It is never changed: what was packed with it could not be read again.
"""

import zlib
from typing import Final

#: what is likeliest comes last: it is the nearest
_DICTIONARY: Final = (
    b'{"error":"","purpose":"remote","seconds":0.,"type":"call_failed"},{"rule":"unknown_event","type":"branch","value":'
    b'"true"},{"rule":"","type":"branch","value":"false"},"dollars":null,"purpose":"rewrite","note","judge","reason","'
    b'{"ids":["","","","",""],"query":"Who was the first","scores":[1.,2.,3.,4.,5.,6.,7.,8.,9.,1],"seconds":0.00,'
    b'"type":"retrieved"},[{"number":1,"type":"round"},{"ids":["","query":"","scores":[],"seconds":0.00,"type":"retrieved"},'
    b'{"number":2,"type":"round"},{"number":3,"type":"round"},{"ids":["","type":"retrieved"},'
    b'[{"completion_tokens":1,"prompt_tokens":1,"purpose":"answer","seconds":0.,"text":"","type":"generated"}]'
)
_MARK: Final = b"\x01"
#: a damaged row must not fill the memory: a trace is never that long
_MOST: Final = 64 * 1024 * 1024


def packed(text: str, *, answer: str) -> bytes:
    """The JSON of a trace, compressed. answer: of the same row, with which a trace ends nearly always."""
    writer = zlib.compressobj(level=6, wbits=-15, zdict=_DICTIONARY + answer.encode())
    return _MARK + writer.compress(text.encode()) + writer.flush()


def unpacked(data: bytes, *, answer: str) -> str:
    """The inverse of `packed`. Raises ValueError for anything else."""
    if data[:1] != _MARK:
        raise ValueError("packed by a newer version, or damaged")
    reader = zlib.decompressobj(wbits=-15, zdict=_DICTIONARY + answer.encode())
    try:
        text = reader.decompress(data[1:], _MOST)
    except zlib.error as error:
        raise ValueError(f"cannot be unpacked: {error}") from error
    if not reader.eof:
        raise ValueError("cannot be unpacked: it is cut off")
    return text.decode()
