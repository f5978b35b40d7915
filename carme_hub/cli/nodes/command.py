"""``carme-hub nodes``: rolling updates of nodes, and their health checks."""

from __future__ import annotations

from typing import Any

from carme_hub.cli.base import CommandGroup


class NodesApp(CommandGroup):
    """The commands on nodes."""

    name = "carme-hub nodes"
    description = """Update nodes in turn while people work on the others, and check whether a node is well. An update
    drains, writes and resumes through the hub's REST API, so each act is in the audit log; the site's own command runs
    on this machine."""

    subcommands: Any = {
        "update": ("carme_hub.cli.nodes.update.UpdateApp", "Update nodes in turn, by a plan"),
        "check": ("carme_hub.cli.nodes.check.CheckApp", "Check whether this node, or others, are well"),
        "install-check": (
            "carme_hub.cli.nodes.check.InstallCheckApp",
            "Write the health check for compute nodes into a folder",
        ),
        "install-images": (
            "carme_hub.cli.nodes.install_images.InstallImagesApp",
            "Write the program that keeps images on nodes into a folder",
        ),
    }
