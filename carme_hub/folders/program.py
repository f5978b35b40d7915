"""Calls carme-folders, the root-owned program, and reads its answers.

No answer, or one that cannot be read, means that it is not known what was done: the reconciler does it again, since
every act of the program may be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from carme_hub.domain.folders.reconciliation import Found
from carme_hub.errors import CarmeError, SlurmError
from carme_hub.slurm.command import Answer

#: Seconds of an act on one inode; of a walk through all files of a folder, which ends by itself after 240; and of the
#: one that nobody waits for, which ends by itself after 3000.
_QUICK, _WALK, _LONG = 30.0, 300.0, 3100.0
_SECONDS = {**dict.fromkeys(("scan", "repair", "remove", "list"), _WALK), "spread": _LONG}


class FolderError(CarmeError):
    """The program could not do it.

    Attributes:
        reason: its slug; "unknown" = it is not known what was done. unchanged: it said that nothing is changed.
    """

    def __init__(self, message: str, reason: str, *, unchanged: bool = False) -> None:
        super().__init__(message)
        self.message, self.reason, self.unchanged = message, reason, unchanged


class Runs(Protocol):
    """The used part of ``slurm.command.Commands``."""

    async def run(self, argv: Sequence[str], *, timeout: float | None = None) -> Answer:
        """Run a command."""
        ...


class FolderProgram:
    """The program, with its argv from the settings."""

    def __init__(self, argv: Sequence[str], commands: Runs) -> None:
        self._argv, self._commands = tuple(argv), commands

    async def make(self, root: str, id: str) -> None:
        """Make a folder that nobody may enter yet."""
        await self._call("make", root, id)

    async def set_role(self, root: str, id: str, user: str, role: str) -> int:
        """Let a user read or write, or ("") shut them out; return the user's number. ``user`` may be +NUMBER then."""
        words = ("grant", root, id, user, role) if role else ("revoke", root, id, user)
        return int((await self._call(*words))["uid"])

    async def publish(self, root: str, id: str, published: bool) -> None:
        """Let everybody read it, or the members only."""
        await self._call("publish", root, id, "yes" if published else "no")

    async def spread(self, root: str, id: str, uids: Sequence[int]) -> Mapping[str, Any]:
        """Write who writes into all that is inside; return the counts."""
        return await self._call("spread", root, id, ",".join(map(str, uids)) or "-")

    async def scan(self, root: str, id: str) -> Mapping[str, Any]:
        """Count what members cannot use."""
        return await self._call("scan", root, id)

    async def repair(self, root: str, id: str, user: str) -> Mapping[str, Any]:
        """Mend what belongs to a user, and count the rest."""
        return await self._call("repair", root, id, user)

    async def remove(self, root: str, id: str) -> None:
        """Delete a folder."""
        await self._call("remove", root, id)

    async def check(self, root: str) -> None:
        """Find out whether folders can be made in a root."""
        await self._call("check", root)

    async def project(self, root: str, id: str) -> int:
        """Return the project id by which quotas count a folder, 0 where it has none."""
        return int((await self._call("show", root, id)).get("project", 0))

    async def every(self, root: str) -> dict[str, Found]:
        """Return what the file system says of all folders of a root, by id."""
        answer = await self._run("list", root)
        try:
            rows = [json.loads(line) for line in answer.splitlines()]
            return {str(row["id"]): found(row) for row in rows}
        except (ValueError, KeyError, TypeError) as error:
            raise FolderError(f"carme-folders list: the answer is not understood: {error}", "unknown") from error

    async def _call(self, *words: str) -> dict[str, Any]:
        answer = await self._run(*words)
        try:
            return dict(json.loads(answer))
        except ValueError as error:
            raise FolderError(f"carme-folders {words[0]}: the answer is not understood", "unknown") from error

    async def _run(self, *words: str) -> str:
        try:
            answer = await self._commands.run([*self._argv, *words], timeout=_SECONDS.get(words[0], _QUICK))
        except SlurmError as error:  # the runner's word for a command without an answer
            raise FolderError(f"carme-folders {words[0]} gave no answer: {error}", "unknown") from error
        if answer.code == 0:
            return answer.out
        try:
            said = json.loads(answer.err)
            raise FolderError(str(said["error"]), str(said["reason"]), unchanged=answer.code == 1)
        except (ValueError, KeyError, TypeError) as error:
            raise FolderError(f"carme-folders {words[0]}: {answer.message}", "unknown") from error


def found(row: Mapping[str, Any]) -> Found:
    """Return what carme-folders prints of a folder."""
    if "problem" in row:
        return Found({}, problem=str(row["problem"]))
    return Found(
        members={int(uid): str(role) for uid, role in row["members"].items()},
        published=bool(row["published"]),
        writers_outside=tuple(int(uid) for uid in row["writers_outside"]),
        odd=tuple(str(each) for each in row["odd"]),
    )
