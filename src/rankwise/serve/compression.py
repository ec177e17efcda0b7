"""gzip and deflate bodies, in both directions; what unpacks to more than is allowed is refused before it is unpacked."""

from __future__ import annotations

import zlib

from rankwise.serve.errors import RequestError, TooLarge

_AUTO, _GZIP, _RAW = 32 + zlib.MAX_WBITS, 16 + zlib.MAX_WBITS, -zlib.MAX_WBITS
_LEVEL = 1  # tensors hardly get smaller with more
LEAST_BYTES = 256  # of a body that is worth it


def inflate(data: bytes, encoding: str, limit: int) -> bytes:
    if encoding in ("", "identity"):
        return data
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise RequestError(f"Content-Encoding {encoding[:40]!r} is not known; gzip and deflate are", 415)
    try:
        return _inflated(data, _AUTO, limit)
    except zlib.error:
        if encoding != "deflate":
            raise RequestError("the body is not gzip, as Content-Encoding says") from None
    try:
        return _inflated(data, _RAW, limit)  # some clients leave out zlib's header
    except zlib.error:
        raise RequestError("the body is not deflate, as Content-Encoding says") from None


def _inflated(data: bytes, wbits: int, limit: int) -> bytes:
    parts, left = [], limit
    while True:
        unpacker = zlib.decompressobj(wbits)
        parts.append(unpacker.decompress(data, left + 1))
        left -= len(parts[-1])
        if left < 0:
            raise TooLarge(f"the body unpacks to more than {limit} bytes")
        if not unpacker.eof:
            raise RequestError("the compressed body is cut off")
        if not unpacker.unused_data:
            return b"".join(parts)
        data = unpacker.unused_data  # one more member of a gzip file


def wanted_encoding(accept: str) -> str:
    """gzip or deflate where a client asks for just that one. Many libraries list all they know with each request, and packing tensors
    for a client that did not ask would only take time."""
    name = accept.split(";")[0].strip().lower()
    return name if name in ("gzip", "deflate") and "," not in accept and "q=0" not in accept.replace(" ", "") else ""


def deflate(parts: list[bytes | memoryview], encoding: str) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP if encoding == "gzip" else zlib.MAX_WBITS)
    return b"".join([*[packer.compress(part) for part in parts], packer.flush()])
