"""Tells systemd's watchdog that the hub's event loop runs (WatchdogSec= in systemd.service(5), sd_notify(3)).

JupyterHub does not speak with systemd. A hub whose event loop stands still answers nobody, but its process lives, so
only a watchdog has it started again; sessions and open notebooks do not notice. ``startup`` starts this with the hub.
Where ``carme-hub standby`` runs the hub, systemd knows that process alone, so that one tells it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Mapping

#: How many times within the limit it is told, so that one late turn of the loop is no failure.
_TIMES = 4


def watchdog_limit(environ: Mapping[str, str]) -> float:
    """Return the seconds within which systemd wants to hear from this process, 0 where it does not."""
    limit, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not environ.get("NOTIFY_SOCKET") or not limit.isdigit() or pid not in ("", str(os.getpid())):
        return 0.0
    return int(limit) / 1_000_000


class Watchdog:
    """systemd's watchdog of this process. Attribute ``every``: seconds between two words to it, 0 if it wants none."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.every = watchdog_limit(environ) / _TIMES
        address = environ.get("NOTIFY_SOCKET", "")
        self._where = f"\0{address[1:]}" if address.startswith("@") else address
        self._told = float("-inf")

    def tell(self) -> None:
        """Tell it that this process runs; ``OSError`` if it does not take it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as notify:
            notify.sendto(b"WATCHDOG=1", self._where)

    def tell_in_time(self) -> None:
        """Tell it, if it is time again: for loops that run often."""
        now = time.monotonic()
        if self.every and now - self._told >= self.every:
            self._told = now
            with contextlib.suppress(OSError):  # it is told again in time
                self.tell()


async def keep_watchdog(log: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
    """Tell systemd from the event loop, as long as that runs; end at once where it does not want to hear."""
    watchdog = Watchdog(os.environ)
    while watchdog.every:
        try:
            watchdog.tell()
        except OSError as error:
            log.warning("systemd's watchdog was not told that the hub runs: %s", error)
        await asyncio.sleep(watchdog.every)
