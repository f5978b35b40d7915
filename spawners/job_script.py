"""Renders a request to a job: the constant batch script, and the data document with what differs between sessions.

Pure, except that the programs' texts are read once. The plan and the job's environment hold no secrets: tokens and keys
are in the data document only (docs/explanation/architecture.md). The Slurm spawner and companions call ``render``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePosixPath

from carme_hub._version import __version__
from carme_hub.activity.settings import MINUTES_PATH
from carme_hub.containers.build.layer import layer_environ, layer_path, with_layers
from carme_hub.containers.image_environ import DEFAULT_NAMES, image_path, image_variables
from carme_hub.containers.runtime import Bind, ContainerRequest, Image, Plan, Runtime
from carme_hub.domain.calendar.licenses import license_argument
from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, JobSpec
from carme_hub.domain.sessions.profile import field_variable
from carme_hub.domain.sessions.session import Request
from carme_hub.node import program
from carme_hub.spawners.full_home import full_home_part
from carme_hub.spawners.staging.job_part import STAGING, comment, scratch_bind, stage_part

#: The version of the data document and of what its programs say to the hub. A hub understands sessions with the
#: documents of the last two releases (tests/unit/spawners/test_earlier_documents.py).
DATA_VERSION = 1
#: The batch script: the same bytes for every session of every user.
LAUNCH = program("batch_script")
#: The supervisor of the container and of each rank; part of the data document.
SUPERVISE = program("supervisor")
#: Starts a session whose home is full, with its files on the node; part of the data document.
FULL_HOME = program("batch_parts/full_home")
#: Tells the hub of the end of a server; part of the data document.
END_REPORT = program("batch_parts/end_report")
#: Keeps a job within its memory where Slurm does not; part of the data document.
MEMORY = program("memory")
#: Becomes the server inside the container; part of the data document.
SINGLEUSER = program("singleuser")
#: Starts ranks, outside of the container; part of the data document.
STEPS = program("steps")
#: The Slurm commands of that program; part of the data document.
SRUN = program("srun")
#: Runs as a task of a step on its node; part of the data document.
RANK = program("rank")

#: Measures what a job uses and reports it, with the programs that it loads; part of the data document.
REPORT = {f"carme-{name}": program(name) for name in ("report", "minutes", "usage", "nvml")}

#: Variables of Slurm about the job that are passed into the container.
PASS_ENV = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
    "SLURM_CLUSTER_NAME",
    "SLURM_CPUS_ON_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_ACCOUNT",
    "SLURM_JOB_END_TIME",
    "SLURM_JOB_GPUS",
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_QOS",
    "SLURM_JOB_START_TIME",
    "SLURM_MEM_PER_NODE",
    "SLURMD_NODENAME",
    "TZ",
)
#: Further variables of Slurm for a task of a step (srun(1), OUTPUT ENVIRONMENT VARIABLES).
RANK_ENV = (
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_STEP_GPUS",
    "SLURM_STEP_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_TASKS_PER_NODE",
    "CARME_SLOT",
)
#: Placeholders that carme-rank replaces by the rank's command and by the rank's own name in paths.
RANK_ARGV, RANK_NAME = "@CARME_ARGV@", "@CARME_RANK@"
#: What the ranks of one step on one node share memory by (NCCL, for one); it is made and removed by carme-rank.
RANK_SHM = "/dev/shm/carme-@CARME_STEP@"  # noqa: S108  the step's name cannot be foreseen
PATH = "/opt/venv/bin:/opt/conda/bin:/usr/local/bin:/usr/bin:/bin"
TLS_FILES = {"keyfile": "tls.key", "certfile": "tls.crt", "cafile": "tls.ca"}


@dataclass(frozen=True, slots=True)
class Owner:
    """The system user to whom a session belongs."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str = "/bin/bash"


@dataclass(frozen=True, slots=True)
class Server:
    """The parameters of the single-user server. ``environ`` and ``nonce`` are secret.

    Attributes:
        callback: URL to which the port is sent. ports: lowest and highest port to use. bind: address to listen on.
        tls: key, certificate and authority as PEM, by JupyterHub's names for them; empty = plain HTTP.
        files: further files of the session folder, name to text; not secret.
        stage_nonce: proves to the hub that the session's node reports what it copies; "" where it copies nothing.
    """

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    callback: str
    nonce: str
    bind: str = "0.0.0.0"  # noqa: S104  the hub connects from another machine; internal_ssl guards the port
    ports: tuple[int, int] = (32768, 60999)
    tls: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    stage_nonce: str = ""


#: That of a job without a server.
NOBODY = Server(argv=(), environ={}, callback="", nonce="")


@dataclass(frozen=True, slots=True)
class Reporting:
    """Where the reporters of jobs send what the jobs use (``CarmeActivity``).

    Attributes:
        url: of the activity service, as nodes reach it. token: returns that of a session, which is secret.
        ca_file, nvml: paths on the nodes, "" for the node's own. interval: seconds.
        before_end: the command that runs before an idle session is ended, as a variable's JSON; not secret.
    """

    url: str
    token: Callable[[str], str]
    ca_file: str = ""
    interval: float = 10.0
    nvml: str = ""
    before_end: str = ""

    def part(self, session: str, request: Request, *, virtual: bool) -> dict[str, object]:
        """Return the data document's part for the reporter."""
        return {
            "url": self.url + MINUTES_PATH.format(session=session),
            "token": self.token(session),
            "ca_file": self.ca_file,
            "interval": self.interval,
            "nvml": self.nvml,
            "virtual": virtual,
            "memory_limit": request.memory_mib,
            "cpus": request.cpus,
        }


@dataclass(frozen=True, slots=True)
class Site:
    """The site's settings for all containers.

    Attributes:
        bind_roots: folders inside which the resolved source of a bind must be on the node.
        environ: variables for the inside of every container; not secret.
        image_environ: names, with ``*``, of variables that an image sets and sessions get.
        licenses: the Slurm license by which each GPU type is counted, {} without licenses.
        virtual: the GPUs are a sandbox's virtual GPUs, and programs of a session that name GPUs label them so.
        grace: seconds between TERM and KILL.
        images: names of the site's images by backend that they have.
        keeps_memory: whether supervisors keep a job within its memory where the node does not confine it.
        reporting: where jobs report what they use; None = they do not.
        scratch: folder of the nodes with the scratch folders of sessions, "" for none. copies: how data is copied,
            as ``CarmeStaging`` says.
    """

    runtime: Runtime
    binds: tuple[Bind, ...] = ()
    bind_roots: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    image_environ: Sequence[str] = DEFAULT_NAMES
    extra: Mapping[str, str] = field(default_factory=dict)
    root: str = "layer"
    tmp_mib: int = 0
    grace: int = 10
    licenses: Mapping[str, str] = field(default_factory=dict)
    virtual: bool = False
    images: Mapping[str, Sequence[str]] = field(default_factory=dict)
    keeps_memory: bool = True
    reporting: Reporting | None = None
    scratch: str = ""
    copies: Mapping[str, object] = field(default_factory=dict)

    def supervised(self, plan: Plan, request: Request) -> dict[str, object]:
        """Return a plan as the supervisor takes it, with the grace time and the memory that it sees to, 0 = none."""
        return {**asdict(plan), "grace": self.grace, "memory_mib": request.memory_mib if self.keeps_memory else 0}


def session_folder(owner: Owner, session: str) -> str:
    """Return the folder of a session on the compute node."""
    return f"{owner.home}/.carme/sessions/{session}"


def working_folder(owner: Owner, request: Request) -> str:
    """Return the folder in which the server starts; a relative folder is below the user's home."""
    return str(PurePosixPath(owner.home) / request.working_folder)


def tls_paths(folder: str) -> dict[str, str]:
    """Return the paths of the server's key, certificate and authority."""
    return {name: f"{folder}/{file}" for name, file in TLS_FILES.items()}


def packages_folder(owner: Owner, session: str) -> str:
    """Return the folder of the packages that people install in a session; its ranks and companions see it too."""
    return f"{session_folder(owner, session)}/packages"


def render(
    session: str, owner: Owner, request: Request, image: Image, server: Server, site: Site, packages: str = ""
) -> JobSpec:
    """Return the job of a session.

    Args:
        packages: folder of packages that are installed in the session; default: its own.

    Raises:
        ContainerError: the runtime cannot do what the request needs.
    """
    folder = session_folder(owner, session)
    packages = packages or packages_folder(owner, session)
    container = container_of(session, owner, request, image, site, packages)
    plan = with_layers(site.runtime.render(container), image.layers, owner.home)
    extra, nice = dict(site.extra), request.nice
    if nice and "nice" in extra:  # added to the site's value for all sessions; --nice without a value is 100
        nice += int(extra.pop("nice") or 100)
    exclude = ",".join(filter(None, (extra.pop("exclude", "") if request.exclude else "", request.exclude)))
    if request.stage:
        extra["comment"] = comment(session, request, extra.get("comment", ""))
    if licenses := license_argument(request, site.licenses):  # in addition to the site's licenses for all sessions
        extra["licenses"] = ",".join(filter(None, (extra.get("licenses"), licenses)))
    return JobSpec(
        name=JOB_NAME_PREFIX + session,
        user=owner.name,
        script=LAUNCH,
        data=_document(session, owner, request, plan, container, server, site),
        session_folder=folder,
        gpus=request.gpus,
        cpus=request.cpus,
        memory_mib=request.memory_mib,
        time_limit=request.time_limit,
        account=request.account,
        partition=request.partition,
        qos=request.qos,
        reservation=request.reservation,
        working_folder=owner.home,
        environment={"CARME_SESSION": session, "CARME_SESSION_FOLDER": folder},
        extra=extra,
        nice=nice,
        exclude=exclude,
        node=request.node,
    )


def container_of(
    session: str, owner: Owner, request: Request, image: Image, site: Site, packages: str
) -> ContainerRequest:
    """Return the container of a session's server; ``packages`` as for ``render``."""
    folder = session_folder(owner, session)
    scratch = scratch_bind(session, request, site.scratch)
    return ContainerRequest(
        image=image,
        argv=(f"{folder}/carme-singleuser", folder),
        home=owner.home,
        session_folder=folder,
        user=owner.name,
        uid=owner.uid,
        gid=owner.gid,
        binds=(*site.binds, *scratch),
        environ={
            "LANG": "C.UTF-8",
            **image_variables(image.environ, site.image_environ),
            "HOME": owner.home,
            "USER": owner.name,
            "LOGNAME": owner.name,
            "SHELL": owner.shell,
            "PATH": f"{packages}/bin:{layer_path(image.layers, image_path(image.environ, PATH))}",
            **layer_environ(image.layers),
            "CARME_PACKAGES": packages,
            "CARME_SESSION": session,
            "CARME_SESSION_FOLDER": folder,
            "CARME_IMAGE": request.image,
            "CARME_IMAGE_PATH": image.path,
            **({"CARME_IMAGE_DIGEST": image.digest} if image.digest else {}),
            **({"CARME_SCRATCH": scratch[0].destination} if scratch else {}),
            **({"CARME_VIRTUAL_GPUS": "1"} if site.virtual else {}),
            **({"CARME_BEFORE_END": site.reporting.before_end} if site.reporting and site.reporting.before_end else {}),
            **({"CARME_IMAGES": json.dumps(site.images)} if site.images else {}),
            **{field_variable(name): value for name, value in request.fields.items()},
            **site.environ,
        },
        pass_env=PASS_ENV,
        gpus=bool(request.gpus),
        root="ro" if site.root == "ro" else "layer",
        tmp_mib=site.tmp_mib,
    )


def rank_part(container: ContainerRequest, request: Request, site: Site) -> dict[str, object]:
    """Return the data document's part on ranks: the same container, for any command and on any node."""
    rank = replace(
        container,
        argv=(RANK_ARGV,),
        session_folder=f"{container.session_folder}/rank-{RANK_NAME}",
        # A rank's output appears at once; srun's --unbuffered would give the rank a terminal.
        environ={"PYTHONUNBUFFERED": "1", **container.environ},
        pass_env=(*container.pass_env, *RANK_ENV),
        shm=RANK_SHM,
    )
    plan = site.runtime.render(rank)
    if plan.argv[0] == "srun":  # a task of a step would have to start a step
        name = site.runtime.name.capitalize()
        return {"refused": f"{name} runs the containers of this site, and cannot run ranks. Tell the administrator."}
    return {"plan": site.supervised(plan, request), "shm": RANK_SHM}


#: The programs that start and become ranks, as files of a data document.
RANK_FILES: Mapping[str, dict[str, object]] = {
    "carme-steps": {"mode": 0o700, "text": STEPS},
    "carme-srun": {"mode": 0o600, "text": SRUN},
    "carme-rank": {"mode": 0o700, "text": RANK},
}


def _document(
    session: str,
    owner: Owner,
    request: Request,
    plan: Plan,
    container: ContainerRequest,
    server: Server,
    site: Site,
) -> bytes:
    """Return the data document; its format is in docs/explanation/architecture.md."""
    files: dict[str, dict[str, object]] = {name: {"mode": 0o600, "text": text} for name, text in server.files.items()}
    files |= {
        "carme-supervise": {"mode": 0o600, "text": SUPERVISE},
        "carme-full-home": {"mode": 0o600, "text": FULL_HOME},
        "carme-end-report": {"mode": 0o600, "text": END_REPORT},
        "carme-memory": {"mode": 0o600, "text": MEMORY},
        "carme-singleuser": {"mode": 0o700, "text": SINGLEUSER},
        **RANK_FILES,
    }
    for name, text in server.tls.items():
        files[TLS_FILES[name]] = {"mode": 0o600, "text": text}
    singleuser = {
        "callback": server.callback,
        "nonce": server.nonce,
        "ports": list(server.ports),
        "bind": server.bind,
        "argv": list(server.argv),
        "environ": dict(server.environ),
        "folder": working_folder(owner, request),
        "make_folder": request.make_folder,
    }
    files["singleuser.json"] = {"mode": 0o600, "text": json.dumps(singleuser)}  # the batch script only writes it
    document = {
        "version": DATA_VERSION,
        "release": __version__,
        "session": session,
        "user": owner.name,
        "session_folder": session_folder(owner, session),
        "request": asdict(request),  # for a hub that has lost its database (domain/sessions/recovered.py)
        "plan": site.supervised(plan, request),
        "rank": rank_part(container, request, site),
        "full_home": full_home_part(session, container, site.runtime),
        "files": files,
        "binds": [[b.source, b.destination, b.mode] for b in site.binds],
        "bind_roots": list(site.bind_roots),
        "singleuser": singleuser,
    }
    if request.stage:
        paths = tls_paths(session_folder(owner, session)) if server.tls else {}
        proofs = {name.removesuffix("file"): path for name, path in paths.items()}
        places = site.scratch, site.binds, site.copies
        document["stage"] = stage_part(request, *places, server.callback, server.stage_nonce, proofs)
        files["carme-staging"] = dict(STAGING)
    if site.reporting is not None:
        document["activity"] = site.reporting.part(session, request, virtual=site.virtual)
        files |= {name: {"mode": 0o600, "text": text} for name, text in REPORT.items()}
    return json.dumps(document, separators=(",", ":")).encode()
