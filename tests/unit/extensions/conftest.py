"""Tests here have the package of another author installed."""

from rig.extension import extension, installed_extension

__all__ = ["extension", "installed_extension"]
