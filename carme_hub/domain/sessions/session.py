"""A session: one server of one user, from the click to the end of its job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX
from carme_hub.domain.cluster.resources import NO_GPUS, Gpus

#: How the reason of a cancel begins by which its user made way for maintenance; the hub alone writes it, once it has
#: seen that the session is in the way of one.
MAINTENANCE_STOP = "Stopped for maintenance of "


@dataclass(frozen=True, slots=True)
class Request:
    """User options after validation: what a session asks of the cluster.

    Attributes:
        profile: slug of the administrator's offer it was made from.
        image: name of the container image, a key of the site's image list.
        gpus: in all, the same number on each node. cpus: CPUs on each node. memory_mib: MiB on each node.
        time_limit: minutes.
        account, partition, qos, reservation: as Slurm's manual pages use them; empty = Slurm's default.
        working_folder: where the notebook starts; empty = the user's home. make_folder: whether it is made if missing.
        nice: by how much Slurm lowers the job's priority (sbatch's ``--nice``).
        nodes: more than one for companions alone. purpose: what a companion is for, in a word.
    """

    profile: str
    image: str
    gpus: Gpus = NO_GPUS
    cpus: int = 1
    memory_mib: int = 1024
    time_limit: int = 60
    account: str = ""
    partition: str = ""
    qos: str = ""
    reservation: str = ""
    working_folder: str = ""
    nice: int = 0
    nodes: int = 1
    purpose: str = ""
    make_folder: bool = False

    def __post_init__(self) -> None:
        self.gpus.per_node(self.nodes)

    def on_one_node(self) -> Request:
        """Return the part of it that each of its nodes gives."""
        return replace(self, nodes=1, gpus=self.gpus.per_node(self.nodes))


class SessionState(Enum):
    """Where a session stands. ``ENDED`` is final."""

    INTENDED = "intended"  # the row is written; whether a job exists is not known yet
    SUBMITTED = "submitted"  # Slurm gave a job id
    RUNNING = "running"  # the job runs and its server has proved itself
    ENDED = "ended"  # the job was seen terminal, or was proved never to have existed


@dataclass(frozen=True, slots=True)
class Session:
    """One row of the session table. Times are UTC epoch seconds; 0 and "" mean not yet.

    A job is known by cluster, job name (which carries the UUID), user and submit time;
    ``job_id`` alone is never trusted, since Slurm gives ids twice after a crash.
    ``saved`` is when the job was first known to be in the controller's saved state: from then on no crash forgets it.
    ``certificate`` is the fingerprint of the certificate issued for its server; "" without ``internal_ssl``.
    ``parent`` is the session whose companion it is (``companions.py``), "" for one with a server of its own.
    ``server_ended`` is when the job's supervisor said that the server has ended, with ``server_exit`` as its status
    (128 + n for signal n). The session goes on until its job is seen terminal: only then is it known what it costs.
    """

    id: str
    cluster: str
    user: str
    server_name: str
    request: Request
    state: SessionState
    created: float
    nonce_hash: str = ""
    port: int = 0
    node: str = ""
    job_id: int = 0
    submitted: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    end_reason: str = ""
    cancel_wanted: float = 0.0
    cancel_reason: str = ""
    token_id: int = 0
    certificate: str = ""
    saved: float = 0.0
    parent: str = ""
    server_ended: float = 0.0
    server_exit: int = 0

    @property
    def is_ending(self) -> bool:
        """Whether its end is certain: it is wanted, or its server has ended."""
        return bool(self.cancel_wanted or self.server_ended)

    @property
    def job_name(self) -> str:
        """The name under which Slurm knows the job."""
        return JOB_NAME_PREFIX + self.id

    def replace(self, **changes: object) -> Session:
        """Return a copy with changes."""
        return replace(self, **changes)  # type: ignore[arg-type]
