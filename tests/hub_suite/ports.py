"""Ports for JupyterHub's own tests that the kernel gives to no other program.

JupyterHub's tests ask ``jupyterhub.utils.random_port`` for a port that is free, and listen on it seconds later. In
between the kernel may give it to whoever connects or listens without choosing, such as ``srun`` in the suites that run
beside this one; then every test of the module fails ("Address already in use"). Ports below the kernel's own range are
given only to who asks for them.

Loaded as a pytest plugin before JupyterHub's modules, which import the function by name.
"""

from __future__ import annotations

import itertools
import os
import socket

import jupyterhub.utils

#: Ports that no sandbox and no setting of ours uses, below ``net.ipv4.ip_local_port_range``.
FIRST, COUNT = 14_000, 5_000
_numbers = itertools.count(os.getpid())


def chosen_port() -> int:
    """Return a free port, another one at each call.

    Raises:
        OSError: all are taken.
    """
    for number in itertools.islice(_numbers, COUNT):
        port = FIRST + number % COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"All ports from {FIRST} to {FIRST + COUNT - 1} are taken.")


jupyterhub.utils.random_port = chosen_port
