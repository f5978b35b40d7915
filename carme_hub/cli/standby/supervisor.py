"""Waits for the lease, starts the hub while it is held, and kills the hub before anybody else may have it.

The main thread waits and kills; another one renews. Neither waits for the hub, and a renewal that hangs delays no kill.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from carme_hub.errors import ConfigError, StoreError
from carme_hub.fencing import ALIVE, NOT_ACTIVE, VARIABLE, Ticket
from carme_hub.store.lease.lease import Lease

from . import child
from .tenure import Tenure, Times, clock

#: Seconds between two looks at the hub and at the clock.
_TICK = 0.1
#: Seconds for which a hub that was asked to end may take its time.
_STOP = 20.0
#: Seconds for which a start may take its time: until then a hub's event loop says nothing.
_START = 600.0
#: Seconds after which a hub that was killed, and is still there, waits for a disk that does not answer.
_KILLED = 5.0


class Leases(Protocol):
    """What is used of ``LeaseStore``."""

    def acquire(self, holder: str, host: str, seconds: float, secrets: str, release: str) -> Lease: ...
    def renew(self, ticket: Ticket) -> bool: ...
    def release(self, ticket: Ticket) -> bool: ...
    def take_fences(self, ticket: Ticket) -> bool: ...


class HubProcess:
    """A hub that dies with this process."""

    def __init__(self, argv: Sequence[str], ticket: Ticket) -> None:
        self._alive, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        environ = {**os.environ, VARIABLE: str(ticket), ALIVE: str(theirs)}
        program = [sys.executable, "-I", str(Path(child.__file__)), str(os.getpid()), *argv]
        try:
            # A session of its own: what the terminal or systemd sends to us, we pass on.
            self._process = subprocess.Popen(program, env=environ, pass_fds=(theirs,), start_new_session=True)
        finally:
            os.close(theirs)
        self._heard: float | None = None

    def ended(self) -> int | None:
        """Return its exit status, None while it runs."""
        return self._process.poll()

    def silent(self, now: float) -> float | None:
        """Return for how many seconds its event loop has said nothing, None if it never did."""
        try:
            if os.read(self._alive, 4096):
                self._heard = now
        except BlockingIOError:
            pass
        return now - self._heard if self._heard is not None else None

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def kill(self) -> bool:
        """Kill it; return whether it is gone. If it is not, it will never run again, but a disk keeps it."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            try:
                self._process.wait(_KILLED)
            except subprocess.TimeoutExpired:
                return False
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
        return True


class Supervisor:
    """Runs the hub while this host has the lease.

    Args:
        start: starts the hub with a ticket.
        secrets: returns the hash of what this host has; see ``Lease``. release: of this host.
        on_active, on_passive: called before the hub starts, and after it has ended.
        on_tick: called several times a second while this process is not stuck: for systemd's watchdog.
        hang: seconds of silence of a hub that has spoken, after which it is killed; 0 = a hub may be silent for ever.
    """

    def __init__(
        self,
        leases: Leases,
        start: Callable[[Ticket], HubProcess],
        log: logging.Logger,
        *,
        times: Times,
        secrets: Callable[[], str] = lambda: "",
        release: str = "",
        on_active: Callable[[], None] = lambda: None,
        on_passive: Callable[[], None] = lambda: None,
        on_tick: Callable[[], None] = lambda: None,
        hang: float = 0.0,
        now: Callable[[], float] = clock,
    ) -> None:
        self._leases, self._start, self._log, self._times = leases, start, log, times
        self._secrets, self._release, self._hang, self._now = secrets, release, hang, now
        self._on_active, self._on_passive, self._on_tick = on_active, on_passive, on_tick
        self._host = socket.gethostname()
        self._waiting_for = ""
        #: Set to end the hub and ``run``.
        self.ended = threading.Event()

    def run(self) -> int:
        """Wait for the lease and serve, until the hub ends by itself or ``ended`` is set; return the exit status.

        Raises:
            ConfigError: this host must not take over; the message says what to do.
        """
        self._on_passive()
        while not self.ended.is_set():
            self._on_tick()
            tenure = self._acquire()
            if tenure is not None:
                code = self._serve(tenure)
                if code is not None:
                    return code
            self.ended.wait(self._times.poll)
        return 0

    def _acquire(self) -> Tenure | None:
        asked, holder, secrets = self._now(), uuid.uuid4().hex, self._secrets()
        try:
            lease = self._leases.acquire(holder, self._host, self._times.lease, secrets, self._release)
        except StoreError as error:
            self._note(str(error), logging.WARNING)
            return None
        if lease.holder == holder:
            self._waiting_for = ""
            return Tenure(lease.ticket, self._times, asked)
        if lease.secrets not in ("", secrets):
            raise ConfigError(
                f"this host cannot stand by, because its secrets are not those of {lease.host}, where the hub was "
                "active last: after a take-over people would log in again, and no session could be reached. Copy the "
                "state folder (cookie secret, proxy-token, internal-ssl) and JUPYTERHUB_CRYPT_KEY of that host to this "
                "one. Are these the new secrets of both hosts? Then end `carme-hub standby` on both, and run it once "
                "with --new-secrets."
            )
        self._note(f"The hub on {lease.host} is active (token {lease.token}); this host stands by", logging.INFO)
        return None

    def _note(self, text: str, level: int) -> None:
        """Log a reason for waiting once."""
        if text != self._waiting_for:
            self._log.log(level, text)
        self._waiting_for = text

    def _serve(self, tenure: Tenure) -> int | None:
        """Run the hub; return its exit status, None if this host stands by again."""
        self._log.warning("This host has the lease of %s (token %d)", tenure.ticket.name, tenure.ticket.token)
        given_back = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(tenure, given_back), name="carme-renew", daemon=True)
        renewing.start()
        hub: HubProcess | None = None
        code: int | None = None
        gone = True
        try:
            if self._is_alone(tenure):
                self._on_active()
                if not tenure.over(self._now()):
                    hub = self._start(tenure.ticket)
                    code = self._watch(tenure, hub)
        finally:
            gone = hub is None or hub.kill()
            given_back.set()
            self._on_passive()
            renewing.join(self._times.kill)
            if gone:
                self._give_back(tenure)
        if not gone:
            self._log.critical(
                "The hub was killed and is not gone: a disk does not answer. The lease runs out by itself"
            )
            return 1
        return code

    def _is_alone(self, tenure: Tenure) -> bool:
        """Wait until no write of a former holder can be accepted any more; return False if the lease is lost."""
        while not self.ended.is_set() and not tenure.over(self._now()):
            self._on_tick()
            try:
                if self._leases.take_fences(tenure.ticket):
                    return True
                tenure.lose("another hub has taken over")
            except StoreError as error:
                self._note(f"The hub is not started yet: {error}", logging.WARNING)
                self.ended.wait(_TICK)
        return False

    def _watch(self, tenure: Tenure, hub: HubProcess) -> int | None:
        stopping, began = 0.0, self._now()
        while True:
            now = self._now()
            if why := tenure.over(now):
                hub.kill()  # before the line in the log, whose reader may stand still
                self._log.critical("The hub is killed: %s", why)
                return None
            self._on_tick()
            if (code := hub.ended()) is not None:
                self._log.warning("The hub has ended with %d", code)
                if code == NOT_ACTIVE:
                    return None
                if stopping and code == -signal.SIGTERM:
                    return 0
                return code if code >= 0 else 128 - code
            heard = hub.silent(now)
            silent, limit = (now - began, _START) if heard is None else (heard, self._hang)
            if self._hang and silent > limit:
                self._log.critical("The hub is killed: its event loop has said nothing for %.0f s", silent)
                return None
            if self.ended.is_set():
                if not stopping:
                    stopping = now
                    hub.terminate()
                elif now - stopping > _STOP:
                    self._log.warning("The hub did not end in %g s, and is killed", _STOP)
                    return 0
            self.ended.wait(_TICK) if not stopping else threading.Event().wait(_TICK)

    def _renew(self, tenure: Tenure, given_back: threading.Event) -> None:
        while not given_back.wait(self._times.renew):
            asked = self._now()
            try:
                if self._leases.renew(tenure.ticket):
                    tenure.renewed(asked)
                    continue
            except StoreError as error:
                self._log.warning("The lease is not renewed: %s", error)
                continue
            tenure.lose("the lease is another host's, or has run out")
            return

    def _give_back(self, tenure: Tenure) -> None:
        try:
            self._leases.release(tenure.ticket)
        except StoreError as error:
            self._log.warning("The lease is not given back, and runs out by itself: %s", error)
