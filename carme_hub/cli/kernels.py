"""``carme-hub kernels install``: Jupyter's kernels of Carme Hub, for the Python that runs this."""

from __future__ import annotations

from .train import DelegatedCommand


class KernelsApp(DelegatedCommand):
    """Install Jupyter's kernels."""

    name, command_name = "carme-hub kernels", "kernels"
    description = """Install Jupyter's kernels of Carme Hub for the Python that runs this: `carme-hub kernels install`,
    with `--user` for yourself or `--prefix FOLDER`."""
