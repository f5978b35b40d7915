"""Fixtures of the tests of people who leave."""

from __future__ import annotations

from leaving_user import leaving
from rig.command_line import line

__all__ = ["leaving", "line"]
