"""Training on many GPUs out of a notebook. Runs inside the user's container, and imports nothing of the hub."""

from __future__ import annotations

from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext carme_hub.training``: there are ``%%distributed`` and ``distributed`` from now on."""
    from .magic import register

    register(shell)
