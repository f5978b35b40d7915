"""``carme-hub console``: the console for administrators from a terminal or a script, through the hub's REST API."""

from __future__ import annotations

from typing import Any

from carme_hub.cli.base import CommandGroup


class ConsoleApp(CommandGroup):
    """The commands of the console."""

    name = "carme-hub console"
    description = """See all sessions, jobs and nodes, stop sessions, write to users, drain nodes and stop new starts.
    --hub is the hub's address as in a browser. The token needs a scope: custom:carme:console:read to look, message to
    write, operate for nodes and new starts; and delete:servers to stop sessions. Each act needs --reason, and is in the
    audit log. Exit status: 0 done, 1 refused, 2 the hub did not answer."""

    subcommands: Any = {
        "sessions": ("carme_hub.cli.console.show.SessionsApp", "List open sessions of all users"),
        "jobs": ("carme_hub.cli.console.show.JobsApp", "List all jobs of the cluster"),
        "nodes": ("carme_hub.cli.console.show.NodesApp", "List nodes, and how much is on them"),
        "messages": ("carme_hub.cli.console.show.MessagesApp", "List messages and announcements"),
        "starts": ("carme_hub.cli.console.show.StartsApp", "List what new starts are stopped"),
        "acts": ("carme_hub.cli.console.show.ActsApp", "List what administrators have done"),
        "stop": ("carme_hub.cli.console.act.StopApp", "Stop a session"),
        "message": ("carme_hub.cli.console.act.MessageApp", "Write to a user, a node, a group or everybody"),
        "announce": ("carme_hub.cli.console.act.AnnounceApp", "Announce something, or maintenance, to everybody"),
        "withdraw": ("carme_hub.cli.console.act.WithdrawApp", "Take back a message or an announcement"),
        "drain": ("carme_hub.cli.console.act.DrainApp", "Let nothing new start on a node"),
        "resume": ("carme_hub.cli.console.act.ResumeApp", "Let jobs start on a node again"),
        "stop-starts": ("carme_hub.cli.console.act.StopStartsApp", "Let nothing new start"),
        "allow-starts": ("carme_hub.cli.console.act.AllowStartsApp", "Allow new starts again"),
    }
