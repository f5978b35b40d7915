"""Shared code of the stories of sessions: a session seen from outside, and the callback as a stranger would call it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pwd
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rig.hub import Answer, Hub, wait_for
from rig.truth import Row, Truth


class SessionOnNode:
    """One session as root sees it on the node."""

    def __init__(self, hub: Hub, row: Row) -> None:
        self.hub = hub
        self.row = row
        self.home = Path(pwd.getpwnam(row.user).pw_dir)
        self.folder = self.home / ".carme/sessions" / row.id

    @classmethod
    def of(cls, hub: Hub, user: str, name: str = "") -> SessionOnNode:
        """Return the newest session of a server."""
        return cls(hub, Truth(hub).row(user, name))

    @property
    def document(self) -> dict[str, Any]:
        """The data document, secrets and all."""
        return dict(json.loads((self.folder / "data.json").read_text()))

    @property
    def nonce(self) -> str:
        return str(self.document["singleuser"]["nonce"])

    @property
    def token(self) -> str:
        """The API token of the session's server."""
        return str(self.document["singleuser"]["environ"]["JUPYTERHUB_API_TOKEN"])

    def processes(self) -> dict[int, dict[str, str]]:
        """Return pid to environment of every process inside the session's container."""
        found = {}
        for pid, environment in environments():
            if environment.get("CARME_SESSION") == self.row.id and "SLURM_CONF" not in environment:
                found[pid] = environment
        return found

    def server_environment(self) -> dict[str, str]:
        """Return the environment that the single-user server's container began with."""
        return next(e for e in self.processes().values() if "CARME_IMAGE" in e)

    def log(self) -> str:
        return (self.folder / "job.log").read_text()

    def call_back(
        self,
        nonce: str,
        body: bytes | None = None,
        *,
        port: int = 40000,
        method: str = "POST",
        source: str = "127.0.0.1",
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Call the start-up callback directly at the hub, from an address; return the status."""
        connection = http.client.HTTPSConnection(
            "127.0.0.1",
            self.hub.demo.ports["hub"],
            timeout=20,
            context=self.hub.demo.hub_ssl(),
            source_address=(source, 0),
        )
        try:
            text = json.dumps({"port": port}).encode() if body is None else body
            sent = {"Authorization": f"carme-nonce {nonce}", **(headers or {})}
            connection.request(method, f"/hub/api/carme/sessions/{self.row.id}/port", text, sent)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def again(self) -> SessionOnNode:
        """Return the same session with its current row."""
        return SessionOnNode(self.hub, Truth(self.hub).session(self.row.id))


def environments() -> Iterator[tuple[int, dict[str, str]]]:
    """Yield pid and environment of every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            pairs = (word.decode("utf-8", "replace").partition("=") for word in words if word)
            yield int(entry.name), {name: value for name, _, value in pairs}


def command_lines() -> Iterator[tuple[int, str]]:
    """Yield pid and command line of every process, as ``ps`` shows them to everybody."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue


def world_readable(top: Path, largest: int = 20_000_000) -> Iterator[Path]:
    """Yield the files below a folder that everybody can reach and read."""
    for folder, names, files in os.walk(top):
        try:
            reachable = Path(folder).stat().st_mode & 0o001
        except FileNotFoundError:  # gone meanwhile
            reachable = 0
        if not reachable:
            names.clear()
            continue
        for file in files:
            path = Path(folder) / file
            with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                status = path.lstat()
                if path.is_file() and not path.is_symlink() and status.st_mode & 0o004 and status.st_size < largest:
                    yield path


def message(answer: Answer) -> str:
    """Return the sentence of an API answer."""
    return str(answer.body["message"] if isinstance(answer.body, dict) else answer.body)


class WatchedStart:
    """A start in progress, with its messages; it is stopped at the end."""

    def __init__(self, hub: Hub, user: str, name: str = "", **options: Any) -> None:
        self.hub, self.user, self.name = hub, user, name
        self.said: list[str] = []
        self.answers: list[str] = []
        self._options = options
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> WatchedStart:
        self._begun = threading.Thread(target=self._begin, daemon=True)
        self._begun.start()
        wait_for(lambda: self.hub.server(self.user, self.name), 20, "the start to begin")
        self._thread.start()
        return self

    def _begin(self) -> None:
        try:
            self.answers.append(f"start: {self.hub.begin(self.user, self.name, **self._options)}")
        except (OSError, http.client.HTTPException) as error:  # a test may restart the hub meanwhile
            self.answers.append(f"start: {error!r}")

    def _read(self) -> None:
        end = time.monotonic() + 20
        while not self.said and time.monotonic() < end:  # the hub lists a server a moment before it tells of its start
            try:
                self.answers.append(f"progress: {self.hub.progress(self.user, self.name, into=self.said)}")
            except (OSError, http.client.HTTPException) as error:
                self.answers.append(f"progress: {error!r}")
            time.sleep(0.1)

    def wait_message(self, words: str, limit: float = 30) -> str:
        """Return the first message with these words; a failure lists the messages."""
        try:
            wait_for(lambda: any(words in s for s in self.said), limit, f"“{words}”")
        except AssertionError as error:
            known = self.hub.server(self.user, self.name)
            log = self.hub.log_text()[-6000:]
            raise AssertionError(f"{error} in {self.said}\n{self.answers[:4]}\n{known}\n{log}") from None
        return next(s for s in self.said if words in s)

    def __exit__(self, *_: object) -> None:
        if self.hub.server(self.user, self.name):
            self.hub.stop_server(self.user, self.name)
        self._begun.join(30)
        self._thread.join(30)
