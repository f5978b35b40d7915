"""``carme-hub idle``: the group of commands."""

from __future__ import annotations

from typing import Any

from carme_hub.cli.base import CommandGroup


class IdleApp(CommandGroup):
    """Rules on idle sessions: try them, and see what they have given back."""

    name = "carme-hub idle"
    description = """Rules on idle sessions: try a policy on the sessions of the last month before it is in force, and
    see what the rules in force have given back. Run it on the hub's machine as the hub's user or as root, with the
    hub's configuration. Exit status: 0 done, 2 the command could not run."""

    subcommands: Any = {
        "replay": ("carme_hub.cli.idle.replay.ReplayApp", "Try rules on idle sessions on past sessions"),
        "report": ("carme_hub.cli.idle.report.ReportApp", "Show what was given back, by month"),
    }
