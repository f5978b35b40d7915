"""Ask every source about one session. A source that gives no answer is noted, and the others are asked nevertheless."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from pathlib import Path
from typing import Any, TypeVar

from dateutil.tz import tzlocal
from traitlets import TraitError
from traitlets.config import Config

from carme_hub.cli.hub_config import homes_of
from carme_hub.domain.cluster.end_mark import end_mark
from carme_hub.domain.cluster.history import PastJob
from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job
from carme_hub.domain.sessions.session import Session
from carme_hub.domain.support.redaction import Redactor
from carme_hub.domain.timeline.happened import Known
from carme_hub.domain.timeline.lines import (
    ACCOUNTING,
    ACTIVITY,
    ADMINISTRATION,
    CALENDAR,
    DATABASE,
    IDLE,
    LEDGER,
    LOG,
    MESSAGES,
    OUTPUT,
    QUEUE,
    Line,
    Unread,
)
from carme_hub.domain.timeline.log_lines import Marks, marks_of
from carme_hub.errors import CarmeError, Refused
from carme_hub.slurm.cli.client import SlurmCli
from carme_hub.slurm.cli.history import history
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.slurm.submit.submitters import DirectSubmitter
from carme_hub.store.engine import CarmeStore

from . import job_log, logs
from .daemon_thread import in_daemon_thread
from .database import During, SessionRows
from .subject import Subject

T = TypeVar("T")
#: Seconds for one source, and for a log, which may be long. Slurm's commands have limits of their own.
LIMIT, LOG_LIMIT = 20.0, 600.0
#: Lines of a job's output that are shown.
OUTPUT_LINES = 40


@dataclass(frozen=True, slots=True)
class Logs:
    """Where the hub's log is: files, units of systemd, and how many records of each are shown."""

    files: Sequence[str] = ()
    units: Sequence[str] = ()
    most: int = 200


class SessionReader:
    """Reads what is known of sessions of one site.

    Args:
        config: the hub's configuration. clock: returns UTC epoch seconds.
    """

    def __init__(
        self,
        config: Config,
        where: Logs | None = None,
        *,
        clock: Callable[[], float] = time.time,
        zone: tzinfo | None = None,
    ) -> None:
        self._slurm = CarmeSlurm(config=config)
        self._url, self._homes = str(CarmeStore(config=config).url), homes_of(config)
        self._commands = self._slurm.commands()
        self._logs = where or Logs()
        self._clock = clock
        self.zone = zone or tzlocal()
        self._rows: SessionRows | None = None
        self._unread: list[Unread] = []

    async def read(self, subject: Subject) -> Known:
        """Return what is known of a session or job.

        Raises:
            Refused: every source answered, and there is no such session or job; or several may be meant.
        """
        self._unread, now = [], self._clock()
        self._rows = await self._ask(DATABASE, in_daemon_thread(SessionRows, self._url, self._slurm.cluster))
        try:
            found = await self._in_rows(DATABASE, lambda rows: rows.find(subject))
            session, lines = next(iter(found or ()), None), _others(found or [], subject)
            known = Known(session.id if session else subject.id, now, rows_read=found is not None, session=session)
            known = await self._with_slurm(known, subject)
            if known.session is None and known.id and known.rows_read and not subject.id:
                # The name of the job has the session's id; its row is not there under the job's number.
                again = await self._in_rows(DATABASE, lambda rows: rows.find(Subject(known.id, id=known.id)))
                known = replace(known, session=next(iter(again or ()), None))
            self._refuse_nothing(known, subject)
            known, more = await self._with_rows(known, subject)
            lines += [*more, *await self._log_lines(known, subject)]
            known = await self._with_output(known)
        finally:
            rows, self._rows = self._rows, None
            if rows is not None:
                rows.close()
        return replace(known, lines=tuple(lines), unread=tuple(self._unread))

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _ask(self, source: str, question: Awaitable[T], limit: float = 0.0) -> T | None:
        """Return an answer; None where there is none, which is noted."""
        limit = limit or LIMIT
        try:
            async with asyncio.timeout(limit):
                return await question
        except Refused:
            raise
        except TimeoutError:
            self._unread.append(Unread(source, f"no answer in {limit:g} s"))
        except (CarmeError, TraitError, OSError, ValueError, TypeError, LookupError) as error:
            # Rows of another release, or a damaged one, must not hide what the other sources say.
            why = str(error) or type(error).__name__
            while why.startswith(f"{source}: "):
                why = why.removeprefix(f"{source}: ")
            self._unread.append(Unread(source, why))
        return None

    async def _in_rows(self, source: str, question: Callable[[SessionRows], T]) -> T | None:
        """Return an answer of the database; None where there is none, which is noted.

        A database that has not answered once in time is not asked again: each further question would take as long.
        """
        rows, before = self._rows, len(self._unread)
        found = None if rows is None else await self._ask(source, in_daemon_thread(question, rows))
        if len(self._unread) > before and self._unread[-1].why.startswith("no answer in "):
            self._rows = None
        return found

    def _refuse_nothing(self, known: Known, subject: Subject) -> None:
        nothing = known.session is None and not known.queue and not known.past
        in_rows_alone = subject.user or (subject.beginning and not subject.job)
        if nothing and known.rows_read and (in_rows_alone or None not in (known.queue, known.past)):
            raise Refused(
                f"There is no session or job {subject.word!r}, in the database or in Slurm.", reason="unknown"
            )

    # -- Slurm --------------------------------------------------------------------------------------------------------

    async def _with_slurm(self, known: Known, subject: Subject) -> Known:
        session, job = known.session, subject.job
        if session is None and not known.id and not job:
            return known  # only the database could say whose session that is
        name = session.job_name if session else f"{JOB_NAME_PREFIX}{known.id}" if known.id else ""
        since = session.created if session else 0.0
        past, queue = await asyncio.gather(
            self._ask(ACCOUNTING, history(self._commands, name=name, job=job, since=since)),
            self._ask(QUEUE, self._queue(session, name, job)),
        )
        if session is not None and past is not None:
            past = tuple(each for each in past if each.record.user == session.user)  # anybody may give a job that name
        id = known.id or _id_in_name(past, queue)
        return replace(known, id=id, past=past, queue=queue)

    async def _queue(self, session: Session | None, name: str, job: int) -> tuple[Job, ...]:
        slurm = commands_client(self._slurm)
        if session is not None:
            return await slurm.find(session.job_name, session.user)
        snapshot = await slurm.snapshot()
        if name:
            return tuple(each for each in snapshot.ours if each.name == name)
        found = snapshot.jobs.get(job)
        return () if found is None else (found,)

    # -- rows, logs and output ----------------------------------------------------------------------------------------

    async def _with_rows(self, known: Known, subject: Subject) -> tuple[Known, list[Line]]:
        session, lines = known.session, list[Line]()
        number = session.job_id if session else subject.job
        jobs = sorted({number, *(each.record.id for each in known.past or ())} - {0})
        if session is None and not jobs:
            return known, lines
        entries = await self._in_rows(LEDGER, lambda rows: rows.entries(session, number))
        known = replace(known, entries=entries)
        sources: list[tuple[str, Callable[[SessionRows], list[Line]]]] = [
            (LEDGER, lambda rows: rows.anomalies(jobs)),
            (ACTIVITY, lambda rows: rows.finished(jobs, session.created if session else 0.0)),
        ]
        if session is not None:
            during, targets = During.of(session, known.now), [session.id, *([session.node] if session.node else [])]
            known = replace(
                known,
                companions=await self._in_rows(DATABASE, lambda rows: rows.companions(session)) or (),
                bookings=await self._in_rows(CALENDAR, lambda rows: rows.bookings(session)) or (),
            )
            sources += [
                (IDLE, lambda rows: rows.idle_events(session)),
                (MESSAGES, lambda rows: rows.notices(during)),
                (MESSAGES, lambda rows: rows.messages(during)),
                (ADMINISTRATION, lambda rows: rows.acts(targets, during)),
                (ACTIVITY, lambda rows: rows.use(session)),
            ]
        for source, question in sources:
            lines += await self._in_rows(source, question) or []
        return known, lines

    async def _log_lines(self, known: Known, subject: Subject) -> list[Line]:
        marks, lines = self._marks(known, subject), list[Line]()
        for file in self._logs.files:
            reading = in_daemon_thread(logs.from_file, Path(file), marks, self.zone, self._logs.most)
            lines += await self._ask(f"{LOG} {file}", reading, LOG_LIMIT) or []
        for unit in self._logs.units:
            reading = logs.from_journal(self._commands, unit, marks, self.zone, self._logs.most)
            lines += await self._ask(f"journal of {unit}", reading, LOG_LIMIT) or []
        return lines

    def _marks(self, known: Known, subject: Subject) -> Marks:
        if known.session is not None:
            return marks_of(known.session, known.companions, known.now)
        jobs = {subject.job, *(each.record.id for each in known.past or ())} - {0}
        return Marks(ids=frozenset({known.id} - {""}), jobs=frozenset(jobs))

    async def _with_output(self, known: Known) -> Known:
        user = known.session.user if known.session else known.past[-1].record.user if known.past else ""
        if not known.id or not user:
            return known
        text, at = "", 0.0
        argv = tuple(self._slurm.tail_command)
        if argv:
            text = await self._ask(OUTPUT, job_log.by_command(self._commands, argv, user, known.id)) or ""
        else:
            text, at = await self._ask(OUTPUT, in_daemon_thread(job_log.by_file, user, known.id, self._homes)) or (
                "",
                0.0,
            )
        number = known.session.job_id if known.session else known.past[-1].record.id if known.past else 0
        shown = Redactor().text("\n".join(text.rstrip().splitlines()[-OUTPUT_LINES:]))
        return replace(known, output=shown, output_at=at, mark=end_mark(text, number))


def commands_client(settings: CarmeSlurm) -> SlurmCli:
    """Return a client over Slurm's commands, whatever the hub queries Slurm through; it submits nothing."""
    commands = settings.commands()
    return SlurmCli(cluster=settings.cluster, commands=commands, submitter=DirectSubmitter(commands))


def _others(found: Sequence[Session], subject: Subject) -> list[Line]:
    """Return a line on each older session whose job had the same number."""
    return [
        Line(
            each.created, DATABASE, f"Slurm has used the number {subject.job} before: session {each.id} of {each.user}."
        )
        for each in found[1:]
    ]


def _id_in_name(past: Sequence[PastJob] | None, queue: Sequence[Job] | None) -> str:
    """Return the id of the session whose job's name Slurm shows, "" for a job that is none of ours."""
    names: list[Any] = [each.record.name for each in past or ()] + [each.name for each in queue or ()]
    return next((name.removeprefix(JOB_NAME_PREFIX) for name in names if name.startswith(JOB_NAME_PREFIX)), "")
