"""``carme-hub quotas``: GPU time on the command line, for the administrator on the hub's machine."""

from __future__ import annotations

from typing import Any

from carme_hub.cli.base import CommandGroup


class QuotasApp(CommandGroup):
    """GPU time: who has how much, and does the ledger agree with Slurm."""

    name = "carme-hub quotas"
    description = """GPU time: balances, grants, reports, and the ledger against Slurm. Run it on the hub's machine as
    the hub's user or as root, with the hub's configuration; what is written bears the name of who runs it (of who
    called sudo, for root). Exit status: 0 done, 1 the answer is no or something differs, 2 it could not be asked."""

    subcommands: Any = {
        "show": ("carme_hub.cli.quotas.show.ShowApp", "Balances of all accounts, or where one account or user stands"),
        "grant": ("carme_hub.cli.quotas.grants.GrantApp", "Give an account GPU time"),
        "transfer": ("carme_hub.cli.quotas.grants.TransferApp", "Move GPU time from one account to another"),
        "correct": ("carme_hub.cli.quotas.grants.CorrectApp", "Put a mistake right"),
        "request": ("carme_hub.cli.quotas.requests.RequestApp", "Ask for more GPU time, or list what was asked for"),
        "approve": ("carme_hub.cli.quotas.requests.ApproveApp", "Approve a request"),
        "deny": ("carme_hub.cli.quotas.requests.DenyApp", "Deny a request"),
        "report": (
            "carme_hub.cli.quotas.show.ReportApp",
            "What was used in a month, by account, user, group or GPU type",
        ),
        "replay": ("carme_hub.cli.quotas.policy.ReplayApp", "Try a policy on past jobs"),
        "mirror": ("carme_hub.cli.quotas.policy.MirrorApp", "Let Slurm keep the policy's limits by itself"),
        "settle": ("carme_hub.cli.quotas.slurm.SettleApp", "Charge what has ended, now"),
        "reconcile": ("carme_hub.cli.quotas.slurm.ReconcileApp", "Compare the ledger with Slurm's accounting"),
        "anomalies": ("carme_hub.cli.quotas.slurm.AnomaliesApp", "What looks wrong and waits for a person"),
    }
