"""A session: one server of one user, from the click to the end of its job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX
from carme_hub.domain.cluster.resources import NO_GPUS, Gpus

#: Beginning of the cancel reason of a session that its user stopped for maintenance; only the hub writes it, after it
#: has checked that the maintenance affects the session.
MAINTENANCE_STOP = "Stopped for maintenance of "


#: Exit status of a batch job whose run has saved its work because its time was nearly over
#: (``carme_hub.training.conduct_batch``).
CONTINUES = 85


@dataclass(frozen=True, slots=True)
class Request:
    """User options after validation: what a session asks of the cluster.

    Attributes:
        profile: slug of the profile.
        image: name of the container image, a key of the site's image list. image_digest: what the name stood for when
            the session began, "" where that is not known.
        gpus: in total, the same number on each node. cpus: CPUs on each node. memory_mib: MiB on each node.
        time_limit: minutes.
        account, partition, qos, reservation: as Slurm's manual pages use them; empty = Slurm's default.
        working_folder: where the notebook starts; empty = the user's home. make_folder: make it if it is missing.
        nice: sbatch's ``--nice``, by which Slurm lowers the job's priority.
        nodes: more than one only for companions. purpose: the short purpose of a companion.
        exclude: names of nodes that a companion must not get, separated by commas, as sbatch's ``--exclude``.
        node: name of the only node on which the session may run, as sbatch's ``--nodelist``; "" = any.
        batch: id of the run that a batch job conducts; it outlives the session that it came from, its parent.
        python: path of the Python in the image that conducts it. requeue: whether another job continues the run of a
            batch job that ended with ``CONTINUES``.
        fields: values of the profile's fields of installed packages, by name.
        folders: shared folders that are mounted, each with ``id`` and ``mode`` ("ro" or "rw").
        stage: what is copied to the node before the start and from it after the end, as
            ``domain.staging.entries.stage_of`` returns it, of a companion with ``run``; {} for nothing, and no scratch.
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
    exclude: str = ""
    node: str = ""
    batch: str = ""
    python: str = ""
    requeue: bool = False
    make_folder: bool = False
    image_digest: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[Mapping[str, str], ...] = ()
    stage: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gpus.per_node(self.nodes)

    def on_one_node(self) -> Request:
        """Return the part of the request on each of its nodes."""
        return replace(self, nodes=1, gpus=self.gpus.per_node(self.nodes))


class SessionState(Enum):
    """The state of a session. ``ENDED`` is final."""

    INTENDED = "intended"  # the row is written; it is unknown whether a job exists
    SUBMITTED = "submitted"  # Slurm returned a job id
    RUNNING = "running"  # the job runs and its server has proved itself
    ENDED = "ended"  # the job was seen terminal, or it is proved that it never existed


@dataclass(frozen=True, slots=True)
class Session:
    """One row of the session table. Times are UTC epoch seconds; 0 and "" mean not yet.

    A job is identified by cluster, job name (which contains the UUID), user and submit time;
    ``job_id`` alone is never trusted, since Slurm may reuse ids after a crash.
    ``saved`` is when the job was first known to be in the controller's saved state: after that no crash loses it.
    ``certificate`` is the fingerprint of the certificate issued for its server; "" without ``internal_ssl``.
    ``parent`` is the session of a companion (``companions.py``), "" for a session with a server of its own.
    ``server_ended`` is when the job's supervisor reported the end of the server, with ``server_exit`` as its status
    (128 + n for signal n). The session stays open until its job is seen terminal: only then is its cost known.
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
        """Whether the session certainly ends: its cancel is wanted, or its server has ended."""
        return bool(self.cancel_wanted or self.server_ended)

    @property
    def job_name(self) -> str:
        """The job's name in Slurm."""
        return JOB_NAME_PREFIX + self.id

    def replace(self, **changes: object) -> Session:
        """Return a copy with changes."""
        return replace(self, **changes)  # type: ignore[arg-type]
