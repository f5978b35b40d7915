"""Tells systemd's watchdog that the hub's event loop runs (WatchdogSec= in systemd.service(5), sd_notify(3)).

JupyterHub does not speak with systemd. A hub whose event loop stands still answers nobody, but its process lives, so
only a watchdog has it started again; sessions and open notebooks do not notice. ``startup`` starts this with the hub.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

#: How many times within the limit it is told, so that one late turn of the loop is no failure.
_TIMES = 4


def watchdog_limit(environ: Mapping[str, str]) -> float:
    """Return the seconds within which systemd wants to hear from this process, 0 where it does not."""
    limit, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not environ.get("NOTIFY_SOCKET") or not limit.isdigit() or pid not in ("", str(os.getpid())):
        return 0.0
    return int(limit) / 1_000_000


async def keep_watchdog(log: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
    """Tell systemd from the event loop, as long as that runs; end at once where it does not want to hear."""
    limit, address = watchdog_limit(os.environ), os.environ.get("NOTIFY_SOCKET", "")
    if not limit:
        return
    where = f"\0{address[1:]}" if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as notify:
        while True:
            try:
                notify.sendto(b"WATCHDOG=1", where)
            except OSError as error:
                log.warning("systemd's watchdog was not told that the hub runs: %s", error)
            await asyncio.sleep(limit / _TIMES)
