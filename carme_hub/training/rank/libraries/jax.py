"""Tells ``jax.distributed.initialize()`` the number of this rank, where it is called without arguments.

JAX finds its coordinator by ``JAX_COORDINATOR_ADDRESS``, but the number of a process only by a ``ClusterEnv``: it has
one each for Slurm, Open MPI, mpi4py, Kubernetes and Cloud TPUs, and none for torchrun's variables. Its own for Slurm
takes a port that follows from the job's number, so two runs of a session would collide.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from carme_hub.training.rank.devices import own_devices
from carme_hub.training.rank.import_hook import after_import

MODULE = "jax._src.clusters"


def install() -> None:
    """Add a ``ClusterEnv`` at the import of JAX; nothing happens where it is not imported."""
    after_import(MODULE, add_cluster)


def add_cluster(module: ModuleType) -> None:
    """Define the ``ClusterEnv`` of a run; JAX registers each subclass, and asks the first one that is present."""
    base: Any = module.ClusterEnv

    class CarmeCluster(base):  # type: ignore[misc]  # JAX is not where this is checked
        """A rank of a run."""

        name = "carme"

        @classmethod
        def is_env_present(cls) -> bool:
            return "CARME_RANK" in os.environ and "JAX_COORDINATOR_ADDRESS" in os.environ

        @classmethod
        def get_coordinator_address(cls, *_: object, **__: object) -> str:
            return os.environ["JAX_COORDINATOR_ADDRESS"]

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ["CARME_SIZE"])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ["CARME_RANK"])

        @classmethod
        def get_local_process_id(cls) -> int | None:
            # JAX before 0.5 does not read JAX_LOCAL_DEVICE_IDS, and knows only ranks of one GPU each.
            own = own_devices()
            return own[0] if len(own) == 1 else None

    kinds = base._cluster_types
    kinds.insert(0, kinds.pop(kinds.index(CarmeCluster)))
