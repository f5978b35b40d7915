"""The settings of GPU time, read by the hub (which admits) and by the quotas service (which settles)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml
from traitlets import Bool, Callable, Dict, Enum, Float, Integer, List, TraitError, Unicode, Union, validate
from traitlets.config import LoggingConfigurable

from carme_hub.domain.quotas.policy import REFUNDS, Policy, dump_policy, parse_policy
from carme_hub.domain.quotas.slurm_limits import Budgets, LimitSettings
from carme_hub.errors import ConfigError


class CarmeQuotas(LoggingConfigurable):
    """GPU time as money in a bank: who has how much, and what it costs."""

    enabled = Bool(
        False,
        help="""Keep the ledger, and check the policy before each start. The default is off. It is set by
        ``configure(c, quotas=True)``, which adds the quotas service too: without it nothing is ever charged.""",
    ).tag(config=True)

    policy = Dict(
        help="""The policy as plain data, where no ``policy_file`` is named. See docs/reference/policies.md. The default
        has no quotas: everything is admitted, and what is used is kept in the ledger. Example::

            c.CarmeQuotas.policy = {"quotas": [{"id": "week", "user": "*", "gpu_time": 20, "window": "week"}]}
        """
    ).tag(config=True)

    policy_file = Unicode(
        "",
        help="""Absolute path of a YAML file with the policy. It is read again when it changes; a wrong one is reported
        and the last good one stays in force. The administrator's page edits it where the hub's user may write its
        folder. Example: ``c.CarmeQuotas.policy_file = "/etc/carme-hub/policy.yaml"``.""",
    ).tag(config=True)

    policy_rules = List(
        Union([Unicode(), Callable()]),
        help="""Rules beside the policy's quotas: names by which installed packages add them, or callables. Each takes a
        ``carme_hub.domain.quotas.policy_rules.PolicyRequest`` and raises ``carme_hub.errors.Refused`` to refuse a
        start, more time or a booking; none can grant what the policy does not. Empty by default. See
        docs/howto/add-a-policy-rule.md. Example::

            c.CarmeQuotas.policy_rules = ["no-large-sessions-by-day"]
        """,
    ).tag(config=True)

    prices = Dict(
        help="""Price factors of GPU time, at most three decimals as texts or whole numbers, by ``gpu``, ``partition``
        and ``qos``; they are multiplied, and what is not named costs 1. Shards are the type ``shard``; where that is
        not named, a shard costs its part of the GPU, as the nodes say. What a shard costs is rounded up to three
        decimals. Example::

            c.CarmeQuotas.prices = {"gpu": {"h100": "2.5", "1g.10gb": "0.2"}, "qos": {"low": "0.5"}}
        """
    ).tag(config=True)

    prices_from = Enum(
        ("config", "slurm"),
        default_value="config",
        help="""Where price factors come from: ``config`` is ``prices`` above; ``slurm`` reads ``TRESBillingWeights`` of
        the partitions and ``UsageFactor`` of the QOS, so that Slurm's billing and the ledger follow the same weights.
        A change counts for what is charged from then on. Example: ``c.CarmeQuotas.prices_from = "slurm"``.""",
    ).tag(config=True)

    refund_node_failure = Bool(
        True,
        help="""Give GPU time back by itself when a node failed or did not start. This and the next three count where
        the policy says nothing of ``refunds``; where it does, the policy decides alone. Example, for a site whose
        users save their work: ``c.CarmeQuotas.refund_node_failure = False``.""",
    ).tag(config=True)
    refund_preemption = Bool(
        True,
        help="""Give GPU time back by itself when a job with more right to the GPUs took a job's place. Example, for a
        site where preemptible jobs are cheap for that: ``c.CarmeQuotas.refund_preemption = False``.""",
    ).tag(config=True)
    refund_start_failed = Bool(
        True,
        help="""Give GPU time back by itself when a session never became usable. Example:
        ``c.CarmeQuotas.refund_start_failed = False``.""",
    ).tag(config=True)
    refund_maintenance = Bool(
        True,
        help="""Give GPU time back by itself when a user stops a session that is in the way of maintenance, as the
        calendar offers them. All that it used comes back, also what was used after the notice. Example, for a site
        whose notice is long enough to end the work: ``c.CarmeQuotas.refund_maintenance = False``.""",
    ).tag(config=True)

    price_of_gpu_hour = Unicode(
        "",
        help="""What one GPU-hour at factor 1 costs in the policy's currency, for reports. The default "" shows no
        money. Example: ``c.CarmeQuotas.price_of_gpu_hour = "0.85"``.""",
    ).tag(config=True)

    when_service_down = Enum(
        ("closed", "open"),
        default_value="closed",
        help="""What happens to new starts with GPUs while the quotas service has not looked at Slurm's accounting for
        ``fresh_for`` seconds. ``closed``: they are refused, with the reason. ``open``: the policy is checked against
        what is known, and the hold is marked as provisional. Running sessions go on either way.""",
    ).tag(config=True)

    fresh_for = Float(
        600.0, min=60.0, help="Seconds after which the last look of the service is too old to admit anybody."
    ).tag(config=True)

    interval = Float(
        60.0, min=1.0, help="Seconds between two looks at Slurm's accounting; jobs that ended are charged then."
    ).tag(config=True)

    full_hour = Integer(
        3, min=0, max=23, help="Hour (in the policy's zone) at which the whole ledger of the last days is reconciled."
    ).tag(config=True)

    full_days = Integer(35, min=1, help="How many days back the nightly reconciliation looks.").tag(config=True)

    port = Integer(10102, min=1, max=65535, help="Loopback port of the quotas service.").tag(config=True)

    audit_file = Unicode(
        "",
        help="""Absolute path of a file to which every write of a person is appended as one line of JSON: who, for whom,
        why, by which door (the service's pages and REST, or the command line). It is created with mode 0600. The
        default "" keeps none; ``configure(c, state_folder=…, quotas=True)`` sets it to ``audit.jsonl`` there. Handlers
        in ``c.EventLogger.handlers`` get the same events. Example: ``"/var/log/carme-hub/audit.jsonl"``.""",
    ).tag(config=True)

    disk_usage_command = List(
        Unicode(),
        help="""Command (a list of words, no shell) that says how full a user's disk space is; the user's name is added
        as its last word. It runs as the hub's user, and prints one JSON object, or a list of them, such as
        ``{"path": "/home/alice", "used_bytes": 123, "limit_bytes": 456}``; ``limit_bytes`` may be left out, and
        ``"shared": true`` says that the figures are of everybody and not of the user alone. It is shown
        on "My GPU time" and by REST. The default [] shows nothing. Example:
        ``["/usr/local/bin/disk-usage", "--json"]``.""",
    ).tag(config=True)
    disk_usage_timeout = Float(
        3.0,
        min=0.1,
        max=60.0,
        help="""Seconds after which the disk_usage_command is ended, and for which a page waits for it; then it is not
        known. Four commands run at once, and waiting for a turn is part of a page's wait.""",
    ).tag(config=True)
    disk_usage_interval = Float(
        60.0, min=0.0, help="Seconds for which what the disk_usage_command said of a user is kept."
    ).tag(config=True)

    notice_channels = List(
        Union([Unicode(), Callable()]),
        help="""Further ways on which notices are sent, beside mail and the webhook: names by which installed packages
        add them, or callables. Each takes a ``carme_hub.services.notice_channels.Notice``. Empty by default. See
        docs/howto/add-a-notice-channel.md. Example::

            c.CarmeQuotas.notice_channels = ["chat"]
        """,
    ).tag(config=True)

    webhook_url_file = Unicode(
        "",
        help="""File (mode 0600) with the address that notices are sent to by POST, as JSON. An address is often a
        secret, so it is not a setting. The default "" sends none.""",
    ).tag(config=True)

    smtp_host = Unicode(
        "", help="""Mail server for notices; the default sends no mail. Example: ``"mail.example.org"``."""
    ).tag(config=True)
    smtp_port = Integer(
        0,
        min=0,
        max=65535,
        help="""Port of the mail server. The default 0 is the usual one: 465 where ``smtp_tls`` is ``implicit``, 587
        with a login, and otherwise 25.""",
    ).tag(config=True)
    smtp_tls = Enum(
        ("auto", "require", "implicit", "off"),
        default_value="auto",
        help="""How the way to the mail server is encrypted. ``auto``: STARTTLS where the server offers it, with
        whatever certificate it has; with a login as ``require``. ``require``: STARTTLS with a certificate that is good
        for ``smtp_host``, or nothing is sent. ``implicit``: TLS from the first byte, with such a certificate.
        ``off``: none; ``carme-hub doctor`` names a login without TLS.""",
    ).tag(config=True)
    smtp_ca_file = Unicode(
        "",
        help="""Absolute path of a PEM file with the authorities that may have signed the mail server's certificate. The
        default "" is those that the system trusts.""",
    ).tag(config=True)
    smtp_user = Unicode("", help="""Name to log in to the mail server with; the default "" does not log in.""").tag(
        config=True
    )
    smtp_password_file = Unicode(
        "",
        help="""Absolute path of a file (mode 0600, one line) with the password for ``smtp_user``. The default "" takes
        it from the environment variable ``CARME_SMTP_PASSWORD`` of the hub. It is read anew for each connection.
        Example: ``"/etc/carme-hub/smtp-password"``.""",
    ).tag(config=True)
    smtp_timeout = Float(
        10.0, min=0.1, max=300.0, help="Seconds for which each answer of the mail server is waited for."
    ).tag(config=True)
    mail_from = Unicode("", help="Sender of notices by mail.").tag(config=True)
    mail_domain = Unicode(
        "", help="What follows the user name in an address, such as ``example.org``; needed for mail."
    ).tag(config=True)

    @property
    def refunds(self) -> tuple[str, ...]:
        """Return for what GPU time is given back where the policy says nothing of it."""
        return tuple(name for name in REFUNDS if getattr(self, f"refund_{name.replace('-', '_')}"))

    @validate("policy_file", "webhook_url_file", "audit_file", "smtp_ca_file", "smtp_password_file")
    def _absolute(self, proposal: Mapping[str, object]) -> str:
        value = str(proposal["value"])
        if value and not Path(value).is_absolute():
            raise TraitError(f"CarmeQuotas: {value!r} must be an absolute path")
        return value


class CarmeMirror(LoggingConfigurable):
    """The second fence: which of the policy's limits Slurm keeps by itself, and where.

    The command that compares and writes is `carme-hub quotas mirror`; the page *Drift* shows what differs.
    """

    budgets = Enum(
        [each.value for each in Budgets],
        default_value=Budgets.QOS.value,
        help="""Where budgets are kept: on a QOS of its own for each account (``qos``: exact; its jobs may use no
        other), on the account's association (``association``: it decays with PriorityDecayHalfLife), or nowhere
        (``none``).""",
    ).tag(config=True)
    prefix = Unicode("carme-", help="How the QOS of accounts begin.").tag(config=True)
    keep_qos = List(
        Unicode(), help="QOS that accounts with one of their own may use beside it; their jobs are in no budget."
    ).tag(config=True)
    session_qos = Unicode(
        "", help="A QOS that only the hub's sessions use; limits of sessions are written to it. The default is none."
    ).tag(config=True)
    every_job = Bool(False, help="Limits of sessions hold for every job, also from outside the hub.").tag(config=True)

    def fence(self, least_factor: int) -> LimitSettings:
        """Return how the site wants its fence; the factor is the lowest price in thousandths."""
        return LimitSettings(
            session_qos=self.session_qos,
            every_job=self.every_job,
            budgets=Budgets(self.budgets),
            prefix=self.prefix,
            keep_qos=tuple(self.keep_qos),
            least_factor=least_factor,
        )


class PolicyInForce:
    """The policy as it is now: from the settings, or from a file that may change; call it for the newest good one."""

    def __init__(self, settings: CarmeQuotas) -> None:
        self._settings = settings
        self._stamp: tuple[int, ...] | None = None
        self._policy = self._with_settings(parse_policy(settings.policy) if not settings.policy_file else Policy())
        #: Why the file as it is now is not in force; "" when it is.
        self.problem = ""
        if settings.policy_file:
            self._policy = self._read()

    def __call__(self) -> Policy:
        """Return the policy in force. Cheap: the file is read again only when it has changed."""
        if self._settings.policy_file and self._stamp != _stamp(Path(self._settings.policy_file)):
            try:
                self._policy = self._read()
                self.problem = ""
            except ConfigError as error:
                if self.problem != str(error):
                    self._settings.log.error("The policy file is not taken, the last good one stays: %s", error)
                self.problem = str(error)
        return self._policy

    def _read(self) -> Policy:
        file = Path(self._settings.policy_file)
        self._stamp = _stamp(file)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"CarmeQuotas.policy_file {file} cannot be read: {error}") from error
        return self._with_settings(read_policy(text, str(file)))

    def _with_settings(self, policy: Policy) -> Policy:
        return replace(policy, otherwise=self._settings.refunds)


def read_policy(text: str, where: str) -> Policy:
    """Return the policy in a YAML text; ``ConfigError`` names the place of what is wrong."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not YAML: {' '.join(str(error).split())}") from error
    if document is None:
        # An editor or a full disk empties files; that must not lift every rule.
        raise ConfigError(f"{where} is empty; a policy without rules says so: quotas: []")
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: the policy is a mapping with quotas, refunds, zone, currency")
    try:
        return parse_policy(document)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def write_policy(file: Path, policy: Policy) -> None:
    """Replace the policy file by this policy, whole or not at all; ``ConfigError`` where it may not be written."""
    new = file.with_name(f".{file.name}.new")
    try:
        mode = file.stat().st_mode & 0o777 if file.exists() else 0o644
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            yaml.safe_dump(dump_policy(policy), stream, sort_keys=False, allow_unicode=True)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written by the service: {error.strerror}") from error


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino  # ctime: it may be readable now
