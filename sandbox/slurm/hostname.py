"""Run processes under the host name ``localhost``, so that Slurm's daemons and srun listen on 127.0.0.1.

With ``NoInAddrAny`` (slurm.conf(5)) they listen on the one address to which the machine's own name resolves. That
differs between machines: 127.0.1.1, as Debian's installer writes it into /etc/hosts, an address of the network, or
none. So the sandbox's processes get the name ``localhost`` in a UTS namespace (uts_namespaces(7)); the machine keeps
its name.
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
    """Give processes that this thread starts the host name ``localhost``; other threads are not affected.

    This needs root: for others, and in a container without CAP_SYS_ADMIN, the name stays unchanged; see ``check``.

    Raises:
        SandboxError: this thread could not restore its own host name.
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
    """Check that the host name of the sandbox's processes resolves to 127.0.0.1.

    Raises:
        SandboxError: it does not; the message says what to do.
    """
    with as_localhost():
        name = socket.gethostname()
        try:
            found = socket.gethostbyname(name)
        except OSError:
            found = "no address"
    if found != ADDRESS:
        raise SandboxError(
            f"Slurm's daemons listen on the address of their host name, and {name} resolves to {found}. Add a line to "
            f"/etc/hosts, before others with this name: {ADDRESS} {name}"
        )
