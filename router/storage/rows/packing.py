"""Packing: JSON of a known kind in a third of its bytes, by zlib with a dictionary of what such JSON is made of.

The first byte names the dictionary. One that was ever used is never changed: what was packed with it could not be read
again. A better one gets the next number.
"""

import zlib
from typing import Final

__all__ = ["packed", "unpacked"]

_TRACE_1: Final = (
    b'"branch","value":"rule":"unknown_event"{"error":"","purpose":"remote","seconds":0.,"type":"call_failed"},'
    b'{"rule":"","type":"branch","value":"true"},"false","dollars":null,"model":"smollm2-135m-instruct",'
    b'{"completion_tokens":1,"cached":false,"prompt_tokens":"prompt":"answer","finish_reason":"stop","length",'
    b'"purpose":"answer","query":"rewrite","note","judge","reason":"seconds":0.0,"text":"The passages do not say.",'
    b'"tokens_in":1,"tokens_out":1,"type":"generated"},{"number":1,"type":"round"},{"number":2,"type":"round"},'
    b'{"ids":["","","","",""],"query":"Who was the first","scores":[1.,2.,3.,4.,5.,6.,7.,8.,9.,1],'
    b'"seconds":0.00,"type":"retrieved"},'
)
#: what is likeliest comes last: it is the nearest
_TRACE_2: Final = (
    b'{"error":"","purpose":"remote","seconds":0.,"type":"call_failed"},{"rule":"unknown_event","type":"branch","value":'
    b'"true"},{"rule":"","type":"branch","value":"false"},"dollars":null,"purpose":"rewrite","note","judge","reason","'
    b'{"ids":["","","","",""],"query":"Who was the first","scores":[1.,2.,3.,4.,5.,6.,7.,8.,9.,1],"seconds":0.00,'
    b'"type":"retrieved"},[{"number":1,"type":"round"},{"ids":["","query":"","scores":[],"seconds":0.00,"type":"retrieved"},'
    b'{"number":2,"type":"round"},{"number":3,"type":"round"},{"ids":["","type":"retrieved"},'
    b'[{"completion_tokens":1,"prompt_tokens":1,"purpose":"answer","seconds":0.,"text":"","type":"generated"}]'
)
_DICTIONARIES: Final = {1: _TRACE_1, 2: _TRACE_2}
_NEWEST: Final = 2
#: from this one on, the text beside it in its row ends the dictionary: a trace ends with the answer nearly always
_WITH_TEXT: Final = 2
#: a damaged row must not fill the memory: a trace is never that long
_MOST: Final = 64 * 1024 * 1024


def packed(text: str, *, beside: str) -> bytes:
    """The text, compressed. beside: what stands beside it wherever it is kept, and `unpacked` will be given too."""
    made = zlib.compressobj(level=6, wbits=-15, zdict=_DICTIONARIES[_NEWEST] + beside.encode())
    return bytes([_NEWEST]) + made.compress(text.encode()) + made.flush()


def unpacked(data: bytes, *, beside: str) -> str:
    """The inverse of `packed`. Raises ValueError for anything else."""
    dictionary = _DICTIONARIES.get(data[0]) if data else None
    if dictionary is None:
        raise ValueError("packed by a newer version, or damaged")
    reader = zlib.decompressobj(wbits=-15, zdict=dictionary + (beside.encode() if data[0] >= _WITH_TEXT else b""))
    try:
        text = reader.decompress(data[1:], _MOST)
    except zlib.error as error:
        raise ValueError(f"cannot be unpacked: {error}") from error
    if not reader.eof:
        raise ValueError("cannot be unpacked: it is cut off")
    return text.decode()
