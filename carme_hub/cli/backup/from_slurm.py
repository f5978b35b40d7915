"""``carme-hub restore --from-slurm``: sessions and charges that the databases do not know, found again.

A job named ``carme-UUID`` is a session's; its data document and its log are in the session folder, read as their user
in the way in which the hub reads users' files. The certificate in the document proves that this hub has issued it for
that user. What accounting has since the database's last settlement is charged by the settlement itself, so a second
run, and the quotas service, find nothing left to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from traitlets.config import Config

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.activity.settings import CarmeActivity
from carme_hub.booking.settings import CarmeReservations
from carme_hub.cli.base import ConfiguredApp
from carme_hub.cli.hub_config import homes_of, hub_of
from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.sessions.recovered import (
    PORT_WORDS,
    NotADocument,
    SessionDocument,
    port_of,
    read_document,
    recovered,
    session_of,
)
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.errors import CarmeError, Refused, SlurmError
from carme_hub.slurm.owner.ways import HelperOwner, NoOwner, Owner
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.spawners.hub.probe import fingerprint
from carme_hub.spawners.hub.tls import AUTHORITY
from carme_hub.spawners.job_script import Owner as SystemUser
from carme_hub.spawners.job_script import session_folder
from carme_hub.spawners.slurm.spawner import SlurmContainerSpawner
from carme_hub.store.backup import database_file, give_away, schema_of
from carme_hub.store.check import reservation_stems
from carme_hub.store.engine import CarmeStore
from carme_hub.store.sessions import SessionStore

from .charges import charge_again, since_of
from .findings import Act, Findings, Found, print_findings
from .hub_rows import HubRows
from .sources import HUB_DATABASE, OUR_DATABASE, VERSION_TABLES, addresses_of, refuse_beside_a_hub

#: A data document has the texts of all programs of a session, mostly less than a quarter of this.
_LONGEST_DOCUMENT = 4 << 20
#: Files that are read at the same time, each by a process of its user.
_AT_ONCE = 4
_LIVE = (Phase.WAITING, Phase.ACTIVE, Phase.ENDING)


async def find_again(app: ConfiguredApp, since: str, *, dry_run: bool) -> int:
    """Find sessions and charges again, write what is missing, and print what was found.

    Returns 0, or 1 where Slurm did not answer each question, so that nothing was charged, or bookings are not known.

    Args:
        since: as ``RestoreApp.since``.

    Raises:
        Refused: a hub runs. SlurmUnreachable: Slurm does not say which jobs there are; nothing is written then.
    """
    config = app.configuration()
    hub = hub_of(config)
    if not issubclass(hub.spawner_class, SlurmContainerSpawner):
        raise Refused("This hub's sessions are no Slurm jobs: a backup is all that it can be restored from.")
    slurm, store = CarmeSlurm(config=config), CarmeStore(config=config)
    urls = {HUB_DATABASE: str(hub.db_url), OUR_DATABASE: str(store.url)}
    refuse_beside_a_hub([addresses_of(hub)], urls, slurm.cluster)
    start = since_of(config, since)
    snapshot = await app.with_progress("asking Slurm for its queue", slurm.client().snapshot())
    schemas = {role: schema_of(url, VERSION_TABLES[role]) for role, url in urls.items()}
    findings = Findings(dry_run=dry_run, new_database=not schemas[OUR_DATABASE])
    if dry_run:
        store.upgrade = False
        if not all(schemas.values()):
            raise Refused("--dry-run needs the databases, and one is missing: restore a copy, or leave --dry-run out.")
    files = [Path(each) for each in map(database_file, urls.values()) if each is not None]
    owners = {file: (file if file.exists() else file.absolute().parent).stat() for file in files}
    engine = store.open()
    rows = HubRows(
        hub, quotas=CarmeQuotas(config=config).enabled, reservations=CarmeReservations(config=config).enabled
    )
    findings.new_hub_database = rows.is_new
    findings.measures = CarmeActivity(config=config).enabled
    try:
        search = _Search(hub, config, slurm, SessionStore(engine), rows)
        found = await app.with_progress("reading session folders", search.sessions(snapshot))
        findings.sessions = [each if dry_run else search.write(each) for each in found]
        try:
            await charge_again(app, config, findings, start, search.reported_port, dry_run=dry_run)
        except CarmeError as error:  # what was written of sessions stays, and is reported
            findings.problem = str(error)
        try:
            findings.bookings = await _lost_bookings(config, slurm, store.url)
        except SlurmError as error:
            findings.bookings_problem = str(error)
    finally:
        rows.close()
        engine.dispose()
        for file, owner in owners.items():
            _give_database(file, owner)
    if app.as_json:
        app.print_json(findings.document())
    else:
        print_findings(findings)
    return 1 if findings.problem or findings.bookings_problem else 0


class _Search:
    """Looks up the sessions of live jobs, and writes their rows."""

    def __init__(self, hub: Any, config: Config, slurm: CarmeSlurm, store: SessionStore, rows: HubRows) -> None:
        self._hub, self._store, self._rows, self._cluster = hub, store, rows, str(slurm.cluster)
        self._homes = homes_of(config)
        self._owner, self._at_once = _owner(slurm), asyncio.Semaphore(_AT_ONCE)

    async def sessions(self, snapshot: Snapshot) -> list[Found]:
        """Return what is known of each session whose job has not ended, oldest first; nothing is written."""
        jobs = [(job, id) for job in snapshot.ours if (id := session_of(job)) and job.phase in _LIVE]
        jobs.sort(key=lambda each: (each[0].submitted, each[0].id))
        found = await asyncio.gather(*(self._found(job, id) for job, id in jobs))
        return [self._with_parent(each, found) for each in _one_server_each(found)]

    def _with_parent(self, found: Found, every: Sequence[Found]) -> Found:
        """Return a companion as left where its session is not one of this user: the hub would cancel it at its start.

        A batch job outlives its session, and so needs none; but it must not be in another user's list.
        """
        row = found.row
        if row is None or found.act is not Act.MADE or row.parent in ("", row.id):
            return found
        live = next((each.row for each in every if each.session == row.parent and each.act is not Act.LEFT), None)
        parent = live or self._store.get(row.parent)
        if parent is not None and parent.user != row.user:
            return found.left("it names a session of somebody else as its own")
        if live is None and not row.request.batch:
            return found.left("the session that it belongs to is not found")
        return found

    async def _found(self, job: Job, id: str) -> Found:
        try:
            return await self._session(job, id)
        except (NotADocument, CarmeError) as error:
            return Found(Act.LEFT, job, id, why=str(error))
        except Exception as error:  # noqa: BLE001
            # What a user has put into a session folder must not keep the sessions of others from being found.
            return Found(Act.LEFT, job, id, why=f"its files cannot be understood ({type(error).__name__})")

    async def _session(self, job: Job, id: str) -> Found:
        known = self._store.get(id)
        if known is not None and (known.user != job.user or known.cluster != self._cluster):
            return Found(Act.LEFT, job, id, why="the session of that number is another user's or cluster's")
        if known is not None and known.state is SessionState.ENDED:
            return Found(Act.LEFT, job, id, why="its session has ended in the database: the hub cancels the job")
        if known is not None and known.parent:
            return Found(Act.KNOWN, job, id, known)
        if known is not None and self._rows.has_session(known) and not _proved_since(known, job):
            return Found(Act.KNOWN, job, id, known)
        folder = session_folder(self._system_user(job.user), id)
        port = (await self.reported_port(job.user, id) or 0) if job.phase is Phase.ACTIVE else 0
        if known is not None and self._rows.has_session(known):
            if not port:
                return Found(Act.KNOWN, job, id, known)
            started = known.replace(
                **{"state": SessionState.RUNNING, "port": port, "node": job.nodes[0], "started": job.start},
                **{"job_id": job.id, "submitted": job.submitted},
            )
            return Found(Act.COMPLETED, job, id, started)
        document = await self._document(job, id, folder)
        certificate = self._certificate(job.user, document)
        name = document.server.name if document.server else ""
        profile = self._rows.profile_of(job.user, name, id)
        session, doubts = recovered(
            job,
            document,
            self._cluster,
            port=port,
            certificate=certificate,
            profile=profile,
            now=time.time(),
        )
        if known is not None:
            kept = {"state": session.state, "port": session.port, "node": session.node, "started": session.started}
            if known.state is SessionState.RUNNING:
                kept = {}
            session, doubts = known.replace(**kept, job_id=job.id, submitted=job.submitted), ()
        act = Act.MADE if known is None else Act.COMPLETED
        return Found(act, job, id, session, doubts, server=document.server)

    def write(self, found: Found) -> Found:
        """Write the rows of a session; return what has become of it."""
        session = found.row
        if session is None or found.act in (Act.KNOWN, Act.LEFT):
            return found
        try:
            if found.server is not None and not found.replaced:
                # First: where this command ends in between, the next run finds the token, and writes the row.
                token = self._rows.put_server(session, found.server, session.node, session.port)
                session = session.replace(token_id=token)
            self._store.add(session) if found.act is Act.MADE else self._store.save(session)
        except CarmeError as error:
            return found.left(str(error))
        return found.with_row(session)

    def _certificate(self, user: str, document: SessionDocument) -> str:
        """Return the fingerprint of a server's certificate, once it is proved to be this hub's for this user."""
        if document.server is None or not self._hub.internal_ssl:
            return ""
        file = Path(self._hub.internal_certs_location) / AUTHORITY / f"{AUTHORITY}.crt"
        try:
            authority = x509.load_pem_x509_certificate(file.read_bytes())
            theirs = x509.load_pem_x509_certificate(document.server.certificate.encode())
            theirs.verify_directly_issued_by(authority)
            names = [str(each.value) for each in theirs.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        except OSError as error:
            raise NotADocument(f"the hub's authority for servers cannot be read: {error}") from error
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as error:
            raise NotADocument("its certificate is not one of this hub's") from error
        if names != [f"user-{user}"]:
            raise NotADocument("its certificate was issued for somebody else")
        return fingerprint(theirs.public_bytes(Encoding.DER))

    def _system_user(self, name: str) -> SystemUser:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise NotADocument(f"this host has no user {name}") from None
        home = self._homes.format(username=name) if self._homes else entry.pw_dir
        return SystemUser(name, entry.pw_uid, entry.pw_gid, home)

    async def _document(self, job: Job, id: str, folder: str) -> SessionDocument:
        request = {"path": f"{folder}/data.json", "offset": 0, "length": _LONGEST_DOCUMENT}
        try:
            _, text = await self._read(job.user, request, "its data document")
        except NotADocument as error:
            if job.phase is Phase.WAITING:
                # slurmrestd gets it in the job's environment; the batch script writes it once it runs.
                raise NotADocument(f"{error}; it waits, and may have none before it starts") from error
            raise
        return read_document(text, id)

    async def reported_port(self, user: str, id: str) -> int | None:
        """Return the port that a session's log names, 0 if it names none, None if there is no log that can be read."""
        try:
            path = f"{session_folder(self._system_user(user), id)}/job.log"
            about, _ = await self._read(user, {"path": path, "find": PORT_WORDS, "most": 100}, "its log")
            return port_of([str(each["text"]) for each in about["lines"]])
        except (NotADocument, KeyError, TypeError):
            return None

    async def _read(self, user: str, request: Mapping[str, object], what: str) -> tuple[dict[str, Any], bytes]:
        try:
            async with self._at_once:
                return await self._owner.file(user, request)
        except SlurmError as error:
            raise NotADocument(f"{what} cannot be read: {error}") from error


def _owner(slurm: CarmeSlurm) -> Owner:
    """Return what reads files of users: the site's helper, or root itself."""
    if os.geteuid() == 0 or slurm.submit_via == "direct":
        return HelperOwner((), slurm.commands())
    return HelperOwner(tuple(slurm.jobs_command), slurm.commands()) if slurm.jobs_command else NoOwner()


def _proved_since(known: Session, job: Job) -> bool:
    """Return whether the server may have reported its port after this row was copied."""
    return known.state is not SessionState.RUNNING and job.phase is Phase.ACTIVE and bool(job.nodes)


def _one_server_each(found: Sequence[Found]) -> Iterator[Found]:
    """Mark the sessions that a newer one of the same server has replaced: the server is the newer one's."""
    newest = {
        (each.row.user, each.row.server_name): each.session
        for each in found
        if each.row is not None and not each.row.parent
    }
    for each in found:
        row = each.row
        replaced = row is not None and not row.parent and newest[row.user, row.server_name] != each.session
        yield each.as_replaced() if replaced else each


async def _lost_bookings(config: Config, slurm: CarmeSlurm, url: str) -> list[str]:
    """Return the names of Slurm's reservations that a calendar of this hub made, and that the database lacks."""
    if not CarmeReservations(config=config).enabled:
        return []
    present = await slurm.reservations().show()
    stems, now = reservation_stems(url, slurm.cluster), time.time()
    return [each.name for each in present if each.ours and each.stem not in stems and each.period.end > now]


def _give_database(file: Path, like: os.stat_result) -> None:
    """Give a database that root may have made, or files beside it, to whom it belonged, or to whom its folder does."""
    for end in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            give_away(file.with_name(file.name + end), like.st_uid, like.st_gid)
