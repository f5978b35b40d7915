"""What of a minute says whether a session was idle, in three bytes, so that it can be kept as long as hours. Pure.

Minutes themselves are kept for days; a policy is tried on a month. The three bytes are what ``idle.minute_is_idle``
looks at, in whole percent, without its parts: whether anything was at work and whether that is known, the CPUs (254 %
at most), the busiest GPU whose use is known, and whether there was one whose use is not.

    text = pack(minutes, hour)
    unpack(text, hour)    # minutes that are idle by a rule where the packed ones were
"""

from __future__ import annotations

import binascii
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable

from .minutes import HOUR, MINUTE, GpuMinute, Minute

#: Bits of the first byte; a minute without ``_REPORTED`` was not measured.
_REPORTED, _AT_WORK, _NOT_SAID, _GPU_UNKNOWN = 1, 2, 4, 8
_UNKNOWN, _MOST = 255, 254
_SIZE = 3
_BYTES = HOUR // MINUTE * _SIZE


def pack(minutes: Iterable[Minute], hour: int) -> str:
    """Return the evidence of the minutes of the hour that begins then."""
    found = bytearray(_BYTES)
    for minute in minutes:
        place = (minute.at - hour) // MINUTE * _SIZE
        if 0 <= place < _BYTES:
            found[place : place + _SIZE] = _packed(minute)
    return b64encode(zlib.compress(bytes(found), 1)).decode("ascii")


def _packed(minute: Minute) -> bytes:
    work = (minute.kernels, minute.terminals, minute.runs)
    said = _AT_WORK if any(work) else _NOT_SAID if None in work else 0
    said |= _GPU_UNKNOWN if any(gpu.utilisation is None for gpu in minute.gpus) else 0
    busiest = max((gpu.utilisation for gpu in minute.gpus if gpu.utilisation is not None), default=None)
    return bytes((_REPORTED | said, _percent(minute.cpu), _percent(busiest)))


def _percent(value: float | None) -> int:
    return _UNKNOWN if value is None else min(_MOST, max(0, int(value)))


def unpack(text: str | None, hour: int) -> list[Minute]:
    """Return the minutes that were measured, with what is known of them; [] for a text that is none."""
    try:
        found = zlib.decompressobj().decompress(b64decode(text or "", validate=True), _BYTES)
    except (binascii.Error, ValueError, zlib.error):
        return []
    rows = (found[place : place + _SIZE] for place in range(0, len(found) - _SIZE + 1, _SIZE))
    return [_unpacked(row, hour + MINUTE * number) for number, row in enumerate(rows) if row[0] & _REPORTED]


def _unpacked(row: bytes, at: int) -> Minute:
    work = 1 if row[0] & _AT_WORK else None if row[0] & _NOT_SAID else 0
    gpus = () if row[2] == _UNKNOWN else (GpuMinute(utilisation=float(row[2])),)
    gpus = (*gpus, GpuMinute()) if row[0] & _GPU_UNKNOWN else gpus
    cpu = None if row[1] == _UNKNOWN else float(row[1])
    return Minute(at, MINUTE, cpu=cpu, gpus=gpus, kernels=work, terminals=0, runs=0)
