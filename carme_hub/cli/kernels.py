"""``carme-hub kernels install``: install Carme Hub's Jupyter kernels for the Python that runs this command."""

from __future__ import annotations

from .train import DelegatedCommand


class KernelsApp(DelegatedCommand):
    """Install Jupyter's kernels."""

    name, command_name = "carme-hub kernels", "kernels"
    description = """Install Carme Hub's Jupyter kernels for the Python that runs this command: `carme-hub kernels
    install`, with `--user` for yourself or `--prefix FOLDER`."""
