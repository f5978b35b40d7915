"""Pyxis, a Slurm plugin for Enroot: the container is a job step, configured by options of ``srun``.

An image's variables override the job's, so ``--container-env`` names all of ours. The step overlaps, so that a user's
own ``srun`` in the session does not wait for it. GPUs are private only with ``ConstrainDevices=yes``.
"""

from __future__ import annotations

from carme_hub.errors import ContainerError

from . import check, layout
from .enroot import nvidia
from .runtime import ContainerRequest, Format, Plan

#: Variables of the job that srun needs.
JOB_NAMES = (
    *("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NUM_NODES"),
    *("SLURM_NNODES", "SLURM_NTASKS", "SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE", "SLURM_CPUS_PER_TASK"),
    *("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CLUSTER_NAME", "SLURM_SUBMIT_DIR"),
)


class Pyxis:
    """Renders ``srun --container-…``."""

    name = "pyxis"
    formats: frozenset[Format] = frozenset({"sqfs", "ref"})

    def render(self, request: ContainerRequest) -> Plan:
        """Return the plan."""
        check.check(request)
        if request.image.format not in self.formats or request.image.base == "host":
            raise ContainerError("Pyxis runs squashfs files and references to a registry that contain a whole system")
        for bind in request.binds:
            if bind.optional:
                raise ContainerError(f"Pyxis cannot bind {bind.source} only if it exists")
        environ = layout.environ(request) | nvidia(request)
        mounts = [f"{folder}:{folder}" for folder in layout.folders(request)]
        mounts += [f"{bind.source}:{bind.destination}" + (":ro" * (bind.mode == "ro")) for bind in request.binds]
        names = dict.fromkeys((*environ, *layout.pass_env(request)))
        argv = (
            *("srun", "--nodes=1", "--ntasks=1", "--overlap", "--quiet"),
            f"--container-image={request.image.path}",
            f"--container-mounts={','.join(mounts)}",
            f"--container-workdir={layout.workdir(request)}",
            f"--container-env={','.join(names)}",
            *("--no-container-mount-home", "--no-container-remap-root", "--no-container-entrypoint"),
            "--container-writable" if request.root == "layer" else "--container-readonly",
            *request.argv,
        )
        return Plan(
            argv=argv,
            environ=environ,
            pass_env=tuple(dict.fromkeys((*layout.pass_env(request), *JOB_NAMES))),
            supervise="child",
            preflight=(request.image.path,) if request.image.format == "sqfs" else (),
        )
