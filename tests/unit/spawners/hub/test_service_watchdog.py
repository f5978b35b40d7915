"""A hub below systemd tells the watchdog that its event loop runs, and stops to tell when that stands still."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from pathlib import Path

import pytest

from carme_hub.spawners.hub.service_watchdog import keep_watchdog, watchdog_limit


async def test_systemd_hears_of_it_while_the_loop_runs_and_not_while_it_stands(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(short_path / "notify"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(short_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        telling = asyncio.create_task(keep_watchdog(logging.getLogger()))
        await asyncio.sleep(0.3)
        heard = received(systemd)
        assert len(heard) >= 3
        assert set(heard) == {b"WATCHDOG=1"}
        time.sleep(0.3)  # the loop stands still
        assert received(systemd) == []
        telling.cancel()


def received(systemd: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(systemd.recv(100))
        except BlockingIOError:
            return found


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "1000"},
        {"NOTIFY_SOCKET": "/x"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"},
    ],
)
async def test_without_a_watchdog_of_its_own_nothing_is_told(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert watchdog_limit(environ) == 0
    await asyncio.wait_for(keep_watchdog(logging.getLogger()), 1)
