"""``carme-hub quotas``: GPU time on the command line, for the administrator on the hub's machine."""

from __future__ import annotations

from typing import Any

from carme_hub.cli.base import CommandGroup


class QuotasApp(CommandGroup):
    """GPU time: balances, grants, reports, and the ledger against Slurm."""

    name = "carme-hub quotas"
    description = """GPU time: balances, grants, reports, and the ledger against Slurm. Run it on the hub's machine as
    the hub's user or as root, with the hub's configuration; entries carry the name of the user who runs it (for root,
    of the user who called sudo). Exit status: 0 done, 1 refused or something differs, 2 the command could not run."""

    subcommands: Any = {
        "show": ("carme_hub.cli.quotas.show.ShowApp", "Show balances of all accounts, or the limits of one"),
        "grant": ("carme_hub.cli.quotas.grants.GrantApp", "Give an account GPU time"),
        "transfer": ("carme_hub.cli.quotas.grants.TransferApp", "Move GPU time from one account to another"),
        "correct": ("carme_hub.cli.quotas.grants.CorrectApp", "Correct a mistake"),
        "request": ("carme_hub.cli.quotas.requests.RequestApp", "Request more GPU time, or list requests"),
        "approve": ("carme_hub.cli.quotas.requests.ApproveApp", "Approve a request"),
        "deny": ("carme_hub.cli.quotas.requests.DenyApp", "Deny a request"),
        "report": (
            "carme_hub.cli.quotas.show.ReportApp",
            "Show what was used in a month, by account, user, group or GPU type",
        ),
        "import": (
            "carme_hub.cli.quotas.exchange.ImportApp",
            "Take quotas and accounts from a file, or from Slurm's limits",
        ),
        "export": ("carme_hub.cli.quotas.exchange.ExportApp", "Print accounts and quotas as CSV or JSON"),
        "replay": ("carme_hub.cli.quotas.policy.ReplayApp", "Try a policy on past jobs"),
        "mirror": ("carme_hub.cli.quotas.policy.MirrorApp", "Copy the policy's limits to Slurm"),
        "settle": ("carme_hub.cli.quotas.slurm.SettleApp", "Charge ended jobs now"),
        "reconcile": ("carme_hub.cli.quotas.slurm.ReconcileApp", "Compare the ledger with Slurm's accounting"),
        "anomalies": ("carme_hub.cli.quotas.slurm.AnomaliesApp", "List or decide accounting records that look wrong"),
    }
