"""Damage to a file's bytes: what disks, networks and attackers do."""

from __future__ import annotations

import struct
from random import Random

INTERESTING = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**31, 2**63 - 1, 2**64 - 1)
SCRAPS = (
    b"\x00",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\n",
    b"\r",
    b'"',
    b",",
    b";",
    b"{",
    b"[" * 3000,
    b"9" * 5000,
    b"1e999",
    b"NaN",
    b"-Infinity",
    b"\\ud800",
    b"PK\x03\x04",
    b"PK\x01\x02",
    b"PK\x05\x06",
    b"PAR1",
    b"\x93NUMPY\x03\x00",
    b"../../",
    b"'descr': '|O'",
    b"'shape': (-1,)",
    b"(4611686018427387904, 4)",
)


def damaged(content: bytes, rng: Random) -> bytes:
    out = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        rng.choice((_flip, _overwrite, _cut, _repeat, _insert, _truncate, _length))(out, rng)
    return bytes(out)


def _place(out: bytearray, rng: Random) -> int:
    # The ends hold what readers trust first: magic numbers, directories, footers.
    span = min(len(out), 64)
    return rng.choice((rng.randint(0, len(out)), rng.randint(0, span), len(out) - rng.randint(0, span)))


def _flip(out: bytearray, rng: Random) -> None:
    if out:
        out[min(_place(out, rng), len(out) - 1)] ^= 1 << rng.randrange(8)


def _overwrite(out: bytearray, rng: Random) -> None:
    scrap, at = rng.choice(SCRAPS), _place(out, rng)
    out[at : at + len(scrap)] = scrap


def _cut(out: bytearray, rng: Random) -> None:
    at = _place(out, rng)
    del out[at : at + rng.choice((1, 4, 16, 256))]


def _repeat(out: bytearray, rng: Random) -> None:
    at = _place(out, rng)
    out[at:at] = out[at : at + rng.choice((1, 8, 64))] * rng.choice((1, 2, 100))


def _insert(out: bytearray, rng: Random) -> None:
    at = _place(out, rng)
    out[at:at] = rng.choice((*SCRAPS, rng.randbytes(rng.choice((1, 4, 32)))))


def _truncate(out: bytearray, rng: Random) -> None:
    if rng.random() < 0.3:
        del out[_place(out, rng) :]


def _length(out: bytearray, rng: Random) -> None:
    """A number of 2, 4 or 8 bytes that is not what it was: most of these are lengths and offsets."""
    at, value = _place(out, rng), rng.choice(INTERESTING)
    packed = struct.pack("<Q", value)[: rng.choice((2, 4, 8))]
    out[at : at + len(packed)] = packed
