"""The images of the sandbox, built from PyPI and Debian packages."""
