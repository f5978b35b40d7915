"""`carme-hub sandbox …`: start and stop the one-machine cluster, show its state, and run the demo on it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from traitlets import Bool, Integer, Unicode
from traitlets.config import Application

from carme_hub.cli.base import can_ask, says_yes
from carme_hub.errors import SandboxError
from carme_hub.sandbox import Sandbox
from carme_hub.sandbox.slurm.virtual_driver import CHANGES, change

CRASHED = 3


class _SandboxCommand(Application):
    """Base of the subcommands: the state folder, and errors in one line."""

    state = Unicode(
        "",
        help="""The state folder, which holds everything of the sandbox.
        Default: /var/lib/carme-hub-sandbox for root, $XDG_STATE_HOME/carme-hub/sandbox for others.""",
    ).tag(config=True)

    aliases = {"state": "_SandboxCommand.state", "log-level": "Application.log_level"}
    flags: dict[str, Any] = {}

    def folder(self) -> Path | None:
        """Return the state folder that was named, or None."""
        return Path(self.state) if self.state else None

    def progress(self, line: str) -> None:
        """Print one line of progress at once."""
        print(f"[sandbox] {line}", flush=True)

    def start(self) -> None:
        """Do the work; print an error on stderr and exit with 1."""
        super().start()
        try:
            code = self.work()
        except SandboxError as error:
            print(f"carme-hub sandbox: {error}", file=sys.stderr)
            code = 1
        except KeyboardInterrupt:
            code = 130
        self.exit(code)

    def work(self) -> int:
        """Do the work and return the exit status."""
        raise NotImplementedError


class UpApp(_SandboxCommand):
    """Start the sandbox; run it again to repair what has crashed."""

    name = "carme-hub-sandbox-up"
    description = __doc__
    examples = "carme-hub sandbox up --nodes 10"

    nodes = Integer(0, help="Number of virtual nodes, 1 to 64. 0: as many as it has, or 4.").tag(config=True)
    slurm = Unicode("", help="Prefix of another Slurm than the machine's own, as `build-slurm` prints it.").tag(
        config=True
    )
    aliases = {**_SandboxCommand.aliases, "nodes": "UpApp.nodes", "slurm": "UpApp.slurm"}

    def work(self) -> int:
        prefix = Path(self.slurm) if self.slurm else None
        Sandbox(self.folder(), self.nodes or None, prefix).up(self.progress)
        return 0


class DemoApp(UpApp):
    """Start the sandbox, an image, the proxy and the hub, and print what to try; run it again to repair."""

    name = "carme-hub-sandbox-demo"
    description = __doc__
    examples = "carme-hub sandbox demo"

    def work(self) -> int:
        # Only the demo needs these imports, which build images and use HTTP.
        from carme_hub.sandbox.demo import run_demo, usage_text

        prefix = Path(self.slurm) if self.slurm else None
        print(usage_text(run_demo(Sandbox(self.folder(), self.nodes or None, prefix), self.progress)))
        return 0


class DownApp(_SandboxCommand):
    """End everything that the sandbox started, the demo included; keep its data."""

    name = "carme-hub-sandbox-down"
    description = __doc__

    def work(self) -> int:
        Sandbox(self.folder()).down(self.progress)
        return 0


class StatusApp(_SandboxCommand):
    """Show what runs, what has crashed (exit status 3), and the virtual nodes."""

    name = "carme-hub-sandbox-status"
    description = __doc__

    as_json = Bool(False, help="Print one JSON document instead of text.").tag(config=True)
    flags = {"json": ({"StatusApp": {"as_json": True}}, "Print one JSON document.")}

    def work(self) -> int:
        status = Sandbox(self.folder()).status()
        print(json.dumps(status.document()) if self.as_json else status.text(), end="" if not self.as_json else "\n")
        return CRASHED if status.crashed else 0


class GpuApp(_SandboxCommand):
    """Have a virtual GPU say that it is used: what is asked of its driver is forged, and always labelled virtual."""

    name = "carme-hub-sandbox-gpu"
    description = __doc__
    examples = "carme-hub sandbox gpu node1 0 --utilisation 80 --memory 12000"

    utilisation = Integer(None, allow_none=True, min=0, max=100, help="Percent.").tag(config=True)
    memory = Integer(None, allow_none=True, min=0, help="MiB of its memory that are used.").tag(config=True)
    temperature = Integer(None, allow_none=True, min=0, max=150, help="°C.").tag(config=True)
    power = Integer(None, allow_none=True, min=0, max=2000, help="W.").tag(config=True)
    aliases = {**_SandboxCommand.aliases, **{name: f"GpuApp.{name}" for name in CHANGES}}

    def work(self) -> int:
        if len(self.extra_args) != 2 or not self.extra_args[1].isdigit():
            raise SandboxError("Name a node and the number of its GPU: carme-hub sandbox gpu node1 0 --utilisation 80")
        node, number = self.extra_args
        asked = {name: getattr(self, name) for name in CHANGES if getattr(self, name) is not None}
        said = change(Sandbox(self.folder()).layout.dev, node, int(number), asked)
        print("\n".join(f"{name:<12} {value}" for name, value in said.items()))
        return 0


class ResetApp(_SandboxCommand):
    """Stop the sandbox and remove all of it: state folder, users, sudoers file."""

    name = "carme-hub-sandbox-reset"
    description = __doc__

    yes = Bool(False, help="Do not ask.").tag(config=True)
    flags = {"yes": ({"ResetApp": {"yes": True}}, "Do not ask."), "y": ({"ResetApp": {"yes": True}}, "Do not ask.")}

    def work(self) -> int:
        sandbox = Sandbox(self.folder())
        if not self.yes:
            print(f"This removes {sandbox.layout.state} and, with the last sandbox, the demo users and their homes.")
            if not can_ask():
                print("carme-hub sandbox: there is no terminal to ask on: add --yes", file=sys.stderr)
                return 2
            if not says_yes("Go on? [y/N] "):
                print("Nothing was removed.")
                return 1
        sandbox.reset(self.progress)
        return 0


class BuildSlurmApp(_SandboxCommand):
    """Build another Slurm release from Debian's source archive, for `up --slurm`."""

    name = "carme-hub-sandbox-build-slurm"
    description = __doc__
    examples = "carme-hub sandbox build-slurm 24.11"

    def work(self) -> int:
        from carme_hub.sandbox.slurm.release import build

        if len(self.extra_args) != 1:
            raise SandboxError("Name the release: carme-hub sandbox build-slurm 24.11")
        prefix = build(self.extra_args[0], self.progress)
        print(prefix)
        return 0


class SandboxApp(Application):
    """A real Slurm with virtual nodes and virtual GPUs on this machine."""

    name = "carme-hub-sandbox"
    description = __doc__
    subcommands = {
        "up": (UpApp, "Start it; repeat to repair"),
        "down": (DownApp, "End everything that it started"),
        "status": (StatusApp, "Show what runs and what has crashed"),
        "gpu": (GpuApp, "Have a virtual GPU say that it is used"),
        "reset": (ResetApp, "Stop it and remove all of it"),
        "build-slurm": (BuildSlurmApp, "Build another Slurm release"),
        "demo": (DemoApp, "Run the whole of Carme Hub on the sandbox"),
    }

    def start(self) -> None:
        """Run the subcommand, or print the help."""
        if self.subapp is None:
            self.print_help()
            self.exit(1)
        super().start()
