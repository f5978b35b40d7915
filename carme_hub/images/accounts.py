"""Whether the system's directory knows a user: yes, no, or not known now. The ``images`` service asks, in a thread.

``pwd`` answers alike for "there is none" and for a directory that is silent; the C library tells them apart. Some
directories answer "none" while they are silent, so that counts only beside others that are known.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

#: Others who are asked about, at most.
_OTHERS = 5
_BUFFER = 1 << 16


def account_exists(user: str, others: Iterable[str] = ()) -> bool | None:
    """Return whether there is such a user; None where the directory does not answer. Blocks on it.

    Args:
        others: names of which the directory knows at least one if it answers.
    """
    found = _look_up(user)
    if found is False and not any(_look_up(each) for each in sorted({*others} - {user})[:_OTHERS]):
        return None
    return found


def _look_up(name: str) -> bool | None:
    look_up = getattr(ctypes.CDLL(None, use_errno=True), "getpwnam_r", None)
    try:
        word = os.fsencode(name)
    except UnicodeEncodeError:
        return False
    if look_up is None or b"\0" in word:
        return None
    # struct passwd (pwd.h) is smaller on every system; only whether there is one is read.
    entry, buffer, found = (ctypes.c_char * 512)(), ctypes.create_string_buffer(_BUFFER), ctypes.c_void_p()
    status = look_up(word, ctypes.byref(entry), buffer, ctypes.c_size_t(_BUFFER), ctypes.byref(found))
    return None if status else bool(found)
