"""The version of this release, apart from the package, which also offers what is built on it."""

__version__ = "0.2.0"
