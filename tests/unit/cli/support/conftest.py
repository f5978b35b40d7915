"""A site for bundles."""

from __future__ import annotations

from rig.command_line import line

__all__ = ["line"]
