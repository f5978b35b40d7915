"""The one-machine cluster: a real Slurm with virtual nodes and virtual GPUs. ``carme-hub sandbox`` and tests use it."""

from carme_hub.sandbox.processes import Processes
from carme_hub.sandbox.sandbox import Sandbox
from carme_hub.sandbox.slurm.cluster import Cluster

__all__ = ["Cluster", "Processes", "Sandbox"]
