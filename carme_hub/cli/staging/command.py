"""``carme-hub staging``: the group of commands."""

from __future__ import annotations

from typing import Any

from carme_hub.cli.base import CommandGroup


class StagingApp(CommandGroup):
    """Data that sessions copy to their nodes, and results that are still there."""

    name = "carme-hub staging"
    description = """Data that sessions copy to their nodes, and results that are still there. `list`, `retry` and
    `discard` use the hub's REST API with one of your tokens; `install` writes the programs that nodes need."""

    subcommands: Any = {
        "list": ("carme_hub.cli.staging.kept.ListApp", "List what your sessions copied, and what is kept on nodes"),
        "retry": ("carme_hub.cli.staging.kept.RetryApp", "Have a node try again, with other targets if you name them"),
        "discard": ("carme_hub.cli.staging.kept.DiscardApp", "Have a node remove results for good"),
        "install": ("carme_hub.cli.staging.install.InstallApp", "Write the programs for nodes into a folder"),
    }
