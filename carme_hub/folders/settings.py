"""The settings of shared folders, read by the hub, which mounts them, and by the service, which keeps them."""

from __future__ import annotations

import re

from traitlets import Bool, Dict, Float, Integer, List, TraitError, Unicode, validate
from traitlets.config import LoggingConfigurable

from carme_hub.domain.folders.folder import NOTHING, READER, WRITER, FolderState, SubjectKind, desired_roles, is_owner
from carme_hub.domain.folders.mounts import Mountable
from carme_hub.service_address import is_service_address
from carme_hub.store.folders.store import WithMembers

_ROOT = re.compile(r"[a-z][a-z0-9-]{0,31}")


class CarmeFolders(LoggingConfigurable):
    """Folders that people share: made by users, kept by the file system's own access control lists."""

    enabled = Bool(
        False,
        help="""Let users make and share folders. The default is off. ``configure(c, folders=True)`` sets it, and adds
        the folders service.""",
    ).tag(config=True)

    port = Integer(
        10106, min=1, max=65535, help="Port of the folders service on the hub's machine. Example: ``10206``."
    ).tag(config=True)

    roots = Dict(
        value_trait=Unicode(),
        key_trait=Unicode(),
        help="""Where folders are made: absolute paths by short names, the same on the hub's machine and on all compute
        nodes. They belong to root, and ``carme-folders.json`` lists the same. The first is the default. Example::

            c.CarmeFolders.roots = {"projects": "/lustre/folders"}
        """,
    ).tag(config=True)

    command = List(
        Unicode(),
        help="""The root-owned program that makes folders and changes who may enter them. Needed; empty by default.
        Example: ``["sudo", "-n", "/usr/local/libexec/carme-folders"]``.""",
    ).tag(config=True)

    max_folders = Integer(20, min=0, help="Folders of one owner, a user or an account, at most. Example: ``5``.").tag(
        config=True
    )

    interval = Float(
        20.0,
        min=1.0,
        max=60.0,
        help="""Seconds between two looks at what has to be applied: an end of a membership, a user who left a group, or
        what could not be written before. What people do is applied at once. Example: ``10``.""",
    ).tag(config=True)

    drift_interval = Float(
        300.0,
        min=10.0,
        help="""Seconds between two comparisons of all folders with the file system, in which changes by hand are found.
        Example: ``3600``.""",
    ).tag(config=True)

    end_sessions = Bool(
        False,
        help="""Whether who manages a folder may end sessions that still have it mounted after its user's access has
        ended. The default is no: those sessions go on reading it until they end. It gives the service the scope
        to stop servers, so set it before or in ``configure``. Example::

            carme_hub.configure(c, folders=True, CarmeFolders={"end_sessions": True})
        """,
    ).tag(config=True)

    disk_quotas = Dict(
        key_trait=Unicode(),
        value_trait=Dict(),
        help="""Which quota limits each folder of a root, by the root's name: ``reader`` and ``file_system`` as in
        ``CarmeQuotas.disk_places``, ``prefix`` (words in front of the command), ``of`` (``project`` by default) and
        ``name`` of the quota. In these texts ``{project}`` stands for the folder's project id, which ``carme-folders``
        gives it (``project_ids`` of its settings), ``{id}`` for its id, ``{path}`` for its place below the root. The
        default is none: then a page says how full the file system is, and how much a job has counted. Example::

            c.CarmeFolders.disk_quotas = {"projects": {"reader": "lustre", "file_system": "/lustre"}}
        """,
    ).tag(config=True)

    job_minutes = Integer(
        120,
        min=1,
        help="""Time limit in minutes of a job that measures a folder, or compares it with its checksums. Who manages
        the folder starts it, and it runs as that user. Example: ``600``.""",
    ).tag(config=True)

    job_cpus = Integer(2, min=1, help="CPUs of such a job. Example: ``4``.").tag(config=True)

    job_options = Dict(
        key_trait=Unicode(),
        value_trait=Unicode(),
        help="""Further options of sbatch for such jobs, by their long names. The default is none: the user's default
        account, and the cluster's default partition. Example: ``{"partition": "cpu", "qos": "low"}``.""",
    ).tag(config=True)

    measure_days = Float(
        0.0,
        min=0.0,
        help="""Days after which a folder without a quota is measured again by itself, by a job of its owner. The
        default is 0: it is measured when somebody asks for it. Example: ``7``.""",
    ).tag(config=True)

    url = Unicode(
        "",
        help="""Address of the folders service as compute nodes reach it, where such jobs report. The default, empty, is
        that of the hub's proxy: ``JupyterHub.public_url`` if it is set, otherwise scheme and port of
        ``JupyterHub.bind_url`` on the host by which nodes reach the hub. Example:
        ``"https://hub.example.org/services/folders/"``.""",
    ).tag(config=True)

    ca_file = Unicode(
        "",
        help="""File on the compute nodes with the authority that has signed the certificate of ``url``. The default,
        empty, is the node's own list of authorities. Example: ``"/etc/ssl/certs/site-ca.pem"``.""",
    ).tag(config=True)

    @validate("url")
    def _check_url(self, proposal: object) -> str:
        value: str = proposal["value"]  # type: ignore[index]
        if value and not is_service_address(value):
            raise TraitError(
                f"CarmeFolders.url is {value!r}; give the service's whole address, such as "
                "https://hub.example.org/services/folders/"
            )
        return value if not value or value.endswith("/") else value + "/"

    @validate("roots")
    def _roots(self, proposal: object) -> dict[str, str]:
        roots: dict[str, str] = proposal["value"]  # type: ignore[index]
        for name, path in roots.items():
            if not _ROOT.fullmatch(name) or not path.startswith("/") or ".." in path.split("/"):
                raise TraitError("roots: short names in small letters, and absolute paths")
        return roots

    def source(self, root: str, id: str) -> str:
        """Return the path of what is in a folder; "" where the root is configured no more."""
        where = self.roots.get(root, "")
        return f"{where.rstrip('/')}/{id}/data" if where else ""

    def mountable(self, found: WithMembers, user: str, now: float) -> Mountable | None:
        """Return a folder as a user may mount it, None if it may not be mounted: no access, or none on disk yet."""
        folder, source = found.folder, self.source(found.folder.root, found.folder.id)
        if folder.state is not FolderState.READY or not source:
            return None
        mine = [one for one in found.members if one.subject == user]
        role = desired_roles(mine, now).get(user, NOTHING)
        applied = {one.applied for one in mine} & {READER, WRITER}
        if role and not applied:
            role = NOTHING  # it comes within seconds
        if role == WRITER and WRITER not in applied:
            role = READER
        public = folder.published and folder.published_applied
        if not role and not public:
            return None
        kept = any(one.kind is SubjectKind.DATASET and one.state.value == "accepted" for one in mine)
        return Mountable(
            id=folder.id,
            name=folder.name,
            role=role or READER,
            source=source,
            owner=folder.owner,
            dataset=folder.dataset,
            listed=bool(role) or kept or is_owner(folder, user),
        )
