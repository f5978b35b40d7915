"""Training on many GPUs from a notebook. This package runs in the user's container and imports nothing of the hub.

Public: ``distributed``, ``here``, ``sweeps``, the magic ``%%distributed`` and the command ``carme-hub``
(``command``). The other packages are parts of a run: ``launch`` starts it, ``conductor`` and ``elastic`` conduct it,
``rank`` is one of its processes, ``run`` is what they share.
"""

from __future__ import annotations

from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext carme_hub.training``: register ``%%distributed`` and the name ``distributed``."""
    from .magic import register

    register(shell)
