"""Drain and resume nodes through scontrol (scontrol(1), NODES - SPECIFICATIONS FOR UPDATE COMMAND).

scontrol's messages are only for people, so the node is read again afterwards. Administrators' pages call this.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from carme_hub.domain.cluster.resources import Node
from carme_hub.errors import SlurmRejected, SlurmUnreachable

from .client import SlurmClient
from .command import Answer, Commands

#: Flags of a node on which nothing new starts because of a drain.
DRAINED = frozenset({"drain", "drained", "draining"})
#: Slurm's messages to a user who may not change nodes.
_NOT_ALLOWED = ("Invalid user id", "Access/permission denied", "a password is required")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
#: What to do about it. An Operator of Slurm may not change nodes, an Administrator may (seen on 22.05).
NO_RIGHT = (
    "Slurm does not let the hub change nodes: {said} Its user needs AdminLevel=Administrator (sacctmgr modify user), "
    "or CarmeSlurm.node_command a command that may."
)


def is_node_name(text: str) -> bool:
    """Return whether a text can be the name of one node: no list, no pattern."""
    return _NAME.fullmatch(text) is not None


class NodesCli:
    """Changes the state of nodes.

    Args:
        command: runs in place of scontrol, with the same arguments; () = scontrol as the hub's user.
    """

    def __init__(self, commands: Commands, client: SlurmClient, command: Sequence[str] = ()) -> None:
        self._commands, self._client, self._command = commands, client, tuple(command)

    async def drain(self, name: str, reason: str) -> None:
        """Let nothing new start on a node; what runs there continues.

        Raises:
            SlurmRejected: Slurm refused, or there is no such node. SlurmUnreachable: it may or may not be done.
        """
        await self._update(name, "State=DRAIN", f"Reason={reason}")
        if not DRAINED & (await self.node(name)).flags:
            raise SlurmRejected(f"Slurm still shows {name} as it was.")

    async def resume(self, name: str) -> None:
        """Let jobs start on a node again; errors as for ``drain``."""
        await self._update(name, "State=RESUME")
        if DRAINED & (await self.node(name)).flags:
            raise SlurmRejected(f"Slurm still shows {name} as drained.")

    async def node(self, name: str) -> Node:
        """Return a node as Slurm shows it now; errors as for ``drain``."""
        found = next((node for node in await self._client.nodes() if node.name == name), None)
        if found is None:
            raise SlurmRejected(f"There is no node {name[:64]}.")
        return found

    async def _update(self, name: str, *words: str) -> None:
        # Slurm would take a list or a pattern of names: one act is about one node.
        if not is_node_name(name):
            raise SlurmRejected(f"{name[:64]!r} is not the name of a node.")
        await self.node(name)
        arguments = ("update", f"NodeName={name}", *words)
        if self._command:
            answer = await self._commands.run([*self._command, *arguments])
        else:
            answer = await self._commands.query("scontrol", *arguments)
        if answer.code != 0 or answer.reports_error:
            raise _refusal(answer)


def _refusal(answer: Answer) -> SlurmRejected | SlurmUnreachable:
    said = answer.message.strip()
    said = said if said.endswith(".") else f"{said}."
    if any(words in answer.err + answer.out for words in _NOT_ALLOWED):
        return SlurmRejected(NO_RIGHT.format(said=said), code=answer.code)
    if "Unable to contact" in said or "timed out" in said:
        return SlurmUnreachable(said)
    return SlurmRejected(f"Slurm refused: {said}", code=answer.code)
