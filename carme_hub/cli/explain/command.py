"""``carme-hub explain SESSION|JOB|USER/SERVER``: the whole story of one session, in order of time."""

from __future__ import annotations

import shutil
import textwrap
from datetime import tzinfo
from typing import Any

from traitlets import Integer, List, Unicode

from carme_hub.cli.base import ConfiguredApp, positional_arguments
from carme_hub.domain.timeline.happened import Known, all_lines, what_happened
from carme_hub.domain.timeline.lines import OUTPUT, Line, clock, line_json, printable
from carme_hub.domain.timeline.session_lines import session_json

from .subject import subject_of

#: Exit status: told, and something that would belong to it could not be read.
EXIT_UNKNOWN = 3
_NOT_NAMED = "The hub's log was not read: name it with --log FILE, or its unit with --unit carme-hub."


class ExplainApp(ConfiguredApp):
    """Tell the story of one session."""

    name = "carme-hub explain"
    description = """Tell the whole story of one session in order of time: rows of the database, Slurm's queue and
    accounting, the ledger, the calendar, messages, what it used, the hub's log and the end of the job's own output,
    each line with its time and its source; at the end what happened, in one paragraph.

    Name the session by its id (or the first eight characters of it), by the number of its job, or as USER/SERVER, the
    newest session of that server (alice/ for the default one). Run it as the hub's user, on the hub's machine. Nothing
    is changed.

    A source that gives no answer does not end the command: it is said what was not read. Exit status: 0 told, 1 there
    is no such session, 2 the command line or the configuration is wrong, 3 told, and something was not read."""
    examples = """carme-hub explain 4711
carme-hub explain alice/train --log /var/log/carme-hub/hub.log
carme-hub explain 1b2c3d4e --unit carme-hub --json"""

    log_files = List(
        Unicode(), help="A log file of the hub or of a service, also packed (.gz); may be given several times."
    ).tag(config=True)
    units = List(
        Unicode(), help="A unit of systemd whose journal is read, such as carme-hub; may be given several times."
    ).tag(config=True)
    log_lines = Integer(200, min=1, help="Records of each log that are shown; the default is the newest 200.").tag(
        config=True
    )
    aliases: Any = {
        **ConfiguredApp.aliases,
        "log": "ExplainApp.log_files",
        "unit": "ExplainApp.units",
        "log-lines": "ExplainApp.log_lines",
    }

    async def work(self) -> int:
        """Ask every source, and print the story."""
        (word,) = positional_arguments(self, "SESSION|JOB|USER/SERVER")
        subject = subject_of(word)
        from .reader import Logs, SessionReader  # here: it brings JupyterHub, and --help need not wait

        reader = SessionReader(self.configuration(), Logs(self.log_files, self.units, self.log_lines))
        known = await self.with_progress("asking the database and Slurm", reader.read(subject))
        if self.as_json:
            self.print_json(story_json(known, reader.zone))
        else:
            print(story_text(known, reader.zone))
            if not self.log_files and not self.units:
                self.note(_NOT_NAMED)
        return EXIT_UNKNOWN if known.unread else 0


def story_json(known: Known, zone: tzinfo) -> dict[str, Any]:
    """Return a story for programs."""
    return {
        "session": session_json(known.session) if known.session is not None else None,
        "id": known.id or None,
        "asked_at": known.now,
        "lines": [line_json(line) for line in all_lines(known, zone)],
        "not_read": [{"source": each.source, "why": each.why} for each in known.unread],
        "happened": what_happened(known, zone),
    }


def story_text(known: Known, zone: tzinfo) -> str:
    """Return a story for people."""
    width = max(80, min(140, shutil.get_terminal_size((120, 24)).columns))
    lines = all_lines(known, zone)
    output = [line for line in lines if line.source == OUTPUT]
    parts = [_title(known), ""]
    parts += [_row(line, zone, width) for line in lines if line.source != OUTPUT]
    for line in output:
        parts += ["", *(f"    {each}" if number else each for number, each in enumerate(line.text.splitlines()))]
    if known.unread:
        parts += ["", "Not read:"]
        parts += [f"  {each.source}: {each.why}" for each in known.unread]
    parts += ["", "What happened", *textwrap.wrap(what_happened(known, zone), width)]
    return printable("\n".join(parts))


def _title(known: Known) -> str:
    session = known.session
    if session is None:
        return f"Session {known.id}, without a row in the database" if known.id else "A job that is none of the hub's"
    server = f", server {session.server_name}" if session.server_name else ""
    job = f", job {session.job_id}" if session.job_id else ""
    return f"Session {session.id} of {session.user}{server}{job} on cluster {session.cluster}: {session.state.value}"


def _row(line: Line, zone: tzinfo, width: int) -> str:
    when = clock(line.at, zone) if line.at else "time not known"
    head = f"{when:19}  {line.source:14}  "
    first, *more = line.text.splitlines() or [""]
    found = textwrap.wrap(first, width, initial_indent=head, subsequent_indent=" " * len(head)) or [head]
    return "\n".join([*found, *(f"{' ' * len(head)}{each}" for each in more)])
