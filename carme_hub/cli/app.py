"""The `carme-hub` command: a traitlets Application with one subcommand per task. ``setup.cfg`` names ``main``."""

from __future__ import annotations

import sys

from traitlets.config import Application

from carme_hub import __version__

from .broken_pipe import EXIT_SIGPIPE, stdout_is_closed


class CarmeHubApp(Application):
    """The root of the command; each subcommand is an Application of its own."""

    name = "carme-hub"
    version = __version__
    description = "Carme Hub: JupyterHub on a Slurm GPU cluster."
    subcommands: dict[str, tuple[str, str]] = {
        "sandbox": ("carme_hub.cli.sandbox.SandboxApp", "A real Slurm with virtual GPUs on this machine"),
        "setup": ("carme_hub.cli.setup.command.SetupApp", "Write what a site needs, start it, and try each partition"),
        "init": ("carme_hub.cli.init.InitApp", "Create the secrets and certificates that a configuration names"),
        "proxy": ("carme_hub.cli.proxy.ProxyApp", "Run the hub's proxy as a process of its own"),
        "standby": ("carme_hub.cli.standby.command.StandbyApp", "Run the hub on one of two hosts at a time"),
        "upgrade": ("carme_hub.cli.upgrade.command.UpgradeCheckApp", "Say what this release changes for a site"),
        "image": (
            "carme_hub.cli.images.command.ImageApp",
            "The store of container images: add, update, check, collect",
        ),
        "db": ("carme_hub.cli.db.DbApp", "Upgrade, copy and check Carme Hub's own database"),
        "backup": (
            "carme_hub.cli.backup.command.BackupApp",
            "Write one file with all that the hub needs, while it runs",
        ),
        "restore": ("carme_hub.cli.backup.restore.RestoreApp", "Restore a backup, or find sessions again from Slurm"),
        "quotas": (
            "carme_hub.cli.quotas.command.QuotasApp",
            "GPU time: balances, grants, reports, and the ledger against Slurm",
        ),
        "idle": ("carme_hub.cli.idle.command.IdleApp", "Rules on idle sessions: try them, and what they gave back"),
        "disk": ("carme_hub.cli.disk.command.DiskApp", "Show how full your places are, and the largest folders"),
        "session": ("carme_hub.cli.session.SessionApp", "Start, stop and list sessions through the hub's REST API"),
        "console": (
            "carme_hub.cli.console.command.ConsoleApp",
            "What administrators do: messages, nodes, new starts, through the hub's REST API",
        ),
        "users": ("carme_hub.cli.users.command.UsersApp", "People who leave, and users who may not log in"),
        "nodes": ("carme_hub.cli.nodes.command.NodesApp", "Update nodes in turn, and check whether they are well"),
        "reservations": (
            "carme_hub.cli.reservations.command.ReservationsApp",
            "Book GPUs, through the hub's REST API",
        ),
        "activity": ("carme_hub.cli.activity.command.ActivityApp", "What jobs used of what they asked for"),
        "folders": ("carme_hub.cli.folders.command.FoldersApp", "Make and share folders, find datasets"),
        "train": ("carme_hub.cli.train.TrainApp", "Run a script as many ranks, in a session or a Slurm job"),
        "runs": ("carme_hub.cli.train.RunsApp", "List runs, read their logs, end them"),
        "scaling": ("carme_hub.cli.train.ScalingApp", "Measure how a training scales"),
        "templates": ("carme_hub.cli.train.TemplatesApp", "List the templates of distributed trainings"),
        "staging": (
            "carme_hub.cli.staging.command.StagingApp",
            "Data that sessions copy to nodes, and results that are still there",
        ),
        "kernels": ("carme_hub.cli.kernels.KernelsApp", "Install Jupyter's kernels"),
        "convert": (
            "carme_hub.cli.convert.command.ConvertApp",
            "Convert a configuration of batchspawner, jupyterhub_moss, ProfilesSpawner or Open OnDemand",
        ),
        "slo": ("carme_hub.cli.slo.SloApp", "Show what became of the starts and sessions of a month"),
        "doctor": ("carme_hub.cli.doctor.command.DoctorApp", "Name unsafe settings and how to mend them"),
        "support-bundle": (
            "carme_hub.cli.support.command.SupportBundleApp",
            "Pack what somebody else needs to help, without secrets",
        ),
        "explain": (
            "carme_hub.cli.explain.command.ExplainApp",
            "Tell the whole story of one session, in order of time",
        ),
    }

    def start(self) -> None:
        """Run the subcommand, or print the help."""
        if self.subapp is None:
            self.print_help()
            self.exit(1)
        super().start()


def main() -> None:
    """Run the command line. A reader of the output may close it before the end, as head(1) does: no error."""
    try:
        try:
            CarmeHubApp.launch_instance()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not stdout_is_closed():
            raise  # another connection broke
        sys.exit(EXIT_SIGPIPE)
