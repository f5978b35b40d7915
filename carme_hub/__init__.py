"""Carme Hub: JupyterHub on a Slurm GPU cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from carme_hub._version import __version__

if TYPE_CHECKING:
    from carme_hub.config import configure

__all__ = ["__version__", "configure"]


def __getattr__(name: str) -> Any:
    """Import ``configure`` on first use, so that ``import carme_hub`` stays cheap on a compute node."""
    if name == "configure":
        from carme_hub.config import configure

        return configure
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
