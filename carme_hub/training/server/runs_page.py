"""The page *Runs* of a session: its data and what its buttons ask for. The script is in share/jupyter/labextensions.

- ``GET <base>/carme/runs.html``: the page. ``GET <base>/carme/runs``: ``{"runs": [row, …]}``.
- ``GET <base>/carme/comparison?run=A&run=B``: what differs, and the scalars of each.
- ``POST <base>/carme/runs/<id>``: see ``do``.
- ``GET <base>/carme/timeline/<id>/<rank>``: the page of a profile.
- ``GET <base>/carme/profile/<id>/<rank>``: its events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

#: The page; its script and style sheet are files of the extension in JupyterLab.
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Runs</title>
<link rel="stylesheet" href="{static}/runs.css">
<script type="module" src="{static}/runs.js"></script>
</head>
<body data-base="{base}">
<main id="runs"><h1>Runs</h1><p>Loading …</p><noscript>This page needs JavaScript. In a terminal:
<code>carme-hub runs</code></noscript></main>
</body>
</html>
"""
#: The profile of a rank over time, by speedscope, whose events the server has.
TIMELINE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="{static}/vendor/speedscope.min.css">
<script type="module" src="{static}/timeline.js"></script>
</head>
<body data-base="{static}" data-events="{events}" data-title="{title}">
<p role="status">Loading the profile …</p>
<noscript>This page needs JavaScript.</noscript>
</body>
</html>
"""
#: It draws by WebGL, has styles of its own and a part in WebAssembly, and gets the events as a blob.
TIMELINE_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self' blob:; font-src 'self'; img-src 'self' data:; base-uri 'none'"
)
POLICY = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; base-uri 'none'"
ACTIONS = ("mark", "repeat", "delete", "restore")


class RunsPage:
    """What the page shows and does. What it needs of ``carme_hub.training`` is imported at the first request."""

    def __init__(self) -> None:
        self._table: Any = None
        self._marking = Lock()

    def rows(self) -> dict[str, Any]:
        """Return the table."""
        from carme_hub.training.records.table import RunsTable

        self._table = self._table or RunsTable()
        return {"runs": self._table.rows()}

    def comparison(self, ids: Sequence[str], *, everything: bool = False) -> dict[str, Any]:
        """Return what differs between runs, or all of one, with their code, scalars, and what they used.

        Raises:
            NoRun: there is none with one of these ids. ValueError: there are too many, or none.
        """
        from carme_hub.training.records import comparison, record, table
        from carme_hub.training.run.run_folder import Run

        if not 1 <= len(ids) <= table.MAX_COMPARED:
            raise ValueError(f"Compare from 1 to {table.MAX_COMPARED} runs.")
        runs = [Run.by_id(id) for id in ids]
        found = comparison.Comparison(runs, everything=everything)
        return {
            "runs": [run.id for run in runs],
            "rows": [[row.group, row.name, list(row.values)] for row in found.rows],
            "difference": found.difference,
            "code": record.code_of(runs[0]) if len(runs) == 1 else "",
            "folder": str(runs[0].folder) if len(runs) == 1 else "",
            "modules": record.memory_by_module(runs[0]) if len(runs) == 1 else [],
            "profiles": record.profiled_ranks(runs[0]) if len(runs) == 1 else [],
            "curves": table.curves(runs),
            "use": table.use(runs),
        }

    def profile(self, id: str, rank: int) -> Path:
        """Return the file with the events of a rank's profile.

        Raises:
            NoRun: there is none with this id, or it has no such profile.
        """
        from carme_hub.training.records.record import profile_events
        from carme_hub.training.run.run_folder import NoRun, Run

        path = profile_events(Run.by_id(id), rank)
        if not path.is_file():
            raise NoRun(f"The run {id[:80]!r} has no profile of rank {rank}. Start it with --profile FIRST:LAST.")
        return path

    def do(self, id: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do what a button asks for, and return what to tell the user, as ``message``.

        Args:
            request: ``ask`` is one of ``ACTIONS``. "mark" takes ``star``, ``tag``, ``untag`` and ``note``; "repeat"
                lines of ``options`` and ``args`` (None = the same), ``changed_code``, and ``confirm``, where the answer
                had that and a price. The id of "restore" is what "delete" has returned as ``undo``.

        Raises:
            NoRun: there is none with this id. ValueError: the request is not allowed; the message says why.
        """
        from carme_hub.training import distributed
        from carme_hub.training.run.failures import CannotRun
        from carme_hub.training.run.run_folder import Run

        try:
            if request.get("ask") == "restore":
                return {"message": f"{distributed.restore(id).id} is restored."}
            run = Run.by_id(id)
            if request.get("ask") == "delete":
                [name] = distributed.delete(run)
                return {"message": f"{run.id} is deleted.", "undo": name}
            if request.get("ask") == "mark":
                with self._marking:
                    return {"message": "", "marks": str(distributed.mark(run, **_marks(request)))}
            return self._repeat(run, request)
        except CannotRun as error:
            raise ValueError(str(error)) from None

    def _repeat(self, run: Any, request: Mapping[str, Any]) -> dict[str, Any]:
        """Start a run again; where it needs more GPUs than the session has, only once ``confirm`` says so."""
        import shlex
        from dataclasses import replace

        from carme_hub.training.launch import price, start, submit
        from carme_hub.training.launch.new_run import given_options
        from carme_hub.training.run.run_options import InvalidOptions, parse_changes

        try:
            given = given_options(run)
            if given.pull:
                raise ValueError(f"It returns variables, so repeat it in a notebook: distributed.repeat({run.id!r})")
            words, arguments = (shlex.split(str(request.get(name) or "")) for name in ("options", "args"))
            # Nobody can be asked here whether to wait.
            options, more, _ = parse_changes(words, given, {})
            options = replace(options, detach=True, wait=True)
        except InvalidOptions as error:
            raise ValueError(str(error)) from None
        if more:
            raise ValueError(f"{more[0]!r} is no option. Write options as -n 8, and arguments in their own field.")
        if options.dry_run or (options.requeue and not options.submit):
            raise ValueError("--dry-run and --requeue are for carme-hub train in a terminal.")
        if not request.get("confirm"):
            beyond = submit.batch_job(options).price if options.submit else price.price_of(price.choose_nodes(options))
            if beyond:
                return {"message": beyond, "confirm": True}
        args = arguments if request.get("args") is not None else None
        changed, lines = bool(request.get("changed_code")), list[str]()
        new = start.begin_again(run, options, lines.append, args=args, changed_code=changed)
        done = "is submitted" if options.submit else "is started"
        return {"message": " ".join([f"{new.id} {done}.", *lines]), "run": new.id}


def _marks(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the marks of a request, checked: it is JSON of anybody who may use this server."""
    star, note = request.get("star"), request.get("note")
    tags = {name: request.get(name) or [] for name in ("tag", "untag")}
    if not isinstance(star, (bool, type(None))) or not isinstance(note, (str, type(None))):
        raise ValueError("star is true or false, and note a text.")
    for name, words in tags.items():
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"{name} is a list of words.")
    return {"star": star, "note": note, **tags}
