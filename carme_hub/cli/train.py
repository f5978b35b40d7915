"""``carme-hub train``, ``runs``, ``scaling``, ``templates``, ``kernels``: commands of sessions, also on this machine.

They call ``carme_hub.training.command``, which inside a session is the whole of ``carme-hub``.
"""

from __future__ import annotations

from traitlets.config import Application

from carme_hub.training import command


class DelegatedCommand(Application):
    """A command that passes its arguments on unchanged."""

    command_name = ""

    def initialize(self, argv: list[str] | None = None) -> None:
        """Keep the arguments; none of them is a trait."""
        self.arguments = list(argv or ())

    def start(self) -> None:
        """Run the command."""
        self.exit(command.main([self.command_name, *self.arguments]))


class TrainApp(DelegatedCommand):
    """Run a script as many ranks."""

    name, command_name = "carme-hub train", "train"
    description = """Run a script as many ranks, in a session or in your own Slurm job: `carme-hub train -n 4
    script.py`. Its options are [those of %%distributed](distributed.md#options); `carme-hub train --help` prints
    them."""


class RunsApp(DelegatedCommand):
    """List runs, read their logs, end them."""

    name, command_name = "carme-hub runs", "runs"
    description = """List runs, read their logs, end them: `carme-hub runs`, `runs log RUN`, `runs watch RUN`,
    `runs stop RUN`, `runs resize RUN +2`, `runs rm RUN`, `runs restore RUN`,
    `runs keep`. [Their options](distributed.md#commands-in-a-session)."""


class ScalingApp(DelegatedCommand):
    """Measure how a training scales."""

    name, command_name = "carme-hub scaling", "scaling"
    description = """Measure how a script scales, and show it again: `carme-hub scaling run script.py`,
    `carme-hub scaling report`. Of `run`: `--ranks`, `--batch`, `--mode`, `--function`, `--repeats`, `--steps`,
    `--blocks`, `--warmup`, `--epoch`, `--name`, `--backend`, `--gpus-per-task`, `--per-node`, `--time` and `-o`; of
    `report`: `--format` and `-o`. [Their meaning](../howto/scaling-curve.md#options)."""


class TemplatesApp(DelegatedCommand):
    """List the templates."""

    name, command_name = "carme-hub templates", "templates"
    description = """List the [templates](../howto/kernels-and-templates.md) of distributed trainings, with the paths of
    their scripts: `carme-hub templates`. The list includes templates of other packages."""
