"""Slurm's daemons and srun listen on one address (``NoInAddrAny``, slurm.conf(5)): where the machine's own name leads.

That is the machine's business: 127.0.1.1 as Debian's installer writes it into /etc/hosts, an address of the
network, or nowhere. A sandbox is to be on 127.0.0.1, whatever the name. So what it starts is given a name of its own,
``localhost``, by a UTS namespace (uts_namespaces(7)); the machine keeps its name.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
from collections.abc import Iterator

from carme_hub.errors import SandboxError

NAME, ADDRESS = "localhost", "127.0.0.1"
CLONE_NEWUTS = 0x04000000


@contextlib.contextmanager
def as_localhost() -> Iterator[None]:
    """Let what this thread starts meanwhile have the host name ``localhost``; other threads see no difference.

    Only root may: for others, and in a container without CAP_SYS_ADMIN, the name stays as it is; see ``check``.

    Raises:
        SandboxError: this thread could not get its own name back.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/uts") as before:  # noqa: PTH123  an open file is what setns takes
        if libc.unshare(CLONE_NEWUTS):
            yield
            return
        try:
            socket.sethostname(NAME)
            yield
        finally:
            if libc.setns(before.fileno(), CLONE_NEWUTS):
                raise SandboxError("This process has lost its host name: start the command again")


def check() -> None:
    """Look where the name leads that the sandbox's processes are given.

    Raises:
        SandboxError: elsewhere than to 127.0.0.1; with what to do.
    """
    with as_localhost():
        name = socket.gethostname()
        try:
            found = socket.gethostbyname(name)
        except OSError:
            found = "nowhere"
    if found != ADDRESS:
        raise SandboxError(
            f"Slurm's daemons listen where the name of their machine leads, and {name} leads to {found}. Write a line "
            f"into /etc/hosts, before others with this name: {ADDRESS} {name}"
        )
