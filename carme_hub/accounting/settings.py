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
    """The ledger of GPU time: policy, prices, refunds, the quotas service, and its notices."""

    enabled = Bool(
        False,
        help="""Keep the ledger, and check the policy before each start. The default is off.
        ``configure(c, quotas=True)`` sets it, and adds the quotas service, without which nothing is charged.""",
    ).tag(config=True)

    policy = Dict(
        help="""The policy as plain data, used if ``policy_file`` is empty. See docs/reference/policies.md. The default
        has no quotas: everything is admitted, and use is recorded in the ledger. Example::

            c.CarmeQuotas.policy = {"quotas": [{"id": "week", "user": "*", "gpu_time": 20, "window": "week"}]}
        """
    ).tag(config=True)

    policy_file = Unicode(
        "",
        help="""Absolute path of a YAML file with the policy. It is read again when it changes; an invalid one is
        reported, and the last valid one stays in force. The administrator's page edits it if the hub's user may write
        to its folder. Example: ``c.CarmeQuotas.policy_file = "/etc/carme-hub/policy.yaml"``.""",
    ).tag(config=True)

    policy_rules = List(
        Union([Unicode(), Callable()]),
        help="""Rules in addition to the policy's quotas: names of entry points of installed packages, or callables.
        Each takes a ``carme_hub.domain.quotas.policy_rules.PolicyRequest`` and raises ``carme_hub.errors.Refused`` to
        refuse a start, more time or a booking; a rule cannot grant what the policy refuses. Empty by default. See
        docs/howto/add-a-policy-rule.md. Example::

            c.CarmeQuotas.policy_rules = ["no-large-sessions-by-day"]
        """,
    ).tag(config=True)

    prices = Dict(
        help="""Price factors of GPU time by ``gpu``, ``partition`` and ``qos``: whole numbers, or texts with at most
        three decimals. They are multiplied; the factor of anything not listed is 1. Shards are the type ``shard``; if
        it is not listed, a shard costs its part of the GPU, as the nodes report it, rounded up to three decimals.
        Example::

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
        help="""Refund GPU time automatically when a node failed or did not start. This and the next three settings
        apply only if the policy has no ``refunds``. Example, for a site whose users save their work:
        ``c.CarmeQuotas.refund_node_failure = False``.""",
    ).tag(config=True)
    refund_preemption = Bool(
        True,
        help="""Refund GPU time automatically when a job was preempted. Example, for a site where preemptible jobs are
        cheap for that reason: ``c.CarmeQuotas.refund_preemption = False``.""",
    ).tag(config=True)
    refund_start_failed = Bool(
        True,
        help="""Refund GPU time automatically when a session never became usable. Example:
        ``c.CarmeQuotas.refund_start_failed = False``.""",
    ).tag(config=True)
    refund_maintenance = Bool(
        True,
        help="""Refund GPU time automatically when a user stops a session that is in the way of maintenance, as the
        calendar offers. All that the session used is refunded, also use after the notice. Example, for a site whose
        notice is long enough to finish the work: ``c.CarmeQuotas.refund_maintenance = False``.""",
    ).tag(config=True)

    price_of_gpu_hour = Unicode(
        "",
        help="""Price of one GPU-hour at factor 1 in the policy's currency, for reports. The default "" shows no
        prices. Example: ``c.CarmeQuotas.price_of_gpu_hour = "0.85"``.""",
    ).tag(config=True)

    when_service_down = Enum(
        ("closed", "open"),
        default_value="closed",
        help="""What happens to new starts with GPUs if the quotas service has not read Slurm's accounting for
        ``fresh_for`` seconds. ``closed``: they are refused, with the reason. ``open``: the policy is checked against
        the last known use, and the hold is marked as provisional. Running sessions continue in both cases.""",
    ).tag(config=True)

    fresh_for = Float(
        600.0, min=60.0, help="Seconds after which the service's last reading is too old for admission."
    ).tag(config=True)

    interval = Float(
        60.0, min=1.0, help="Seconds between two readings of Slurm's accounting; ended jobs are charged then."
    ).tag(config=True)

    full_hour = Integer(
        3, min=0, max=23, help="Hour (in the policy's zone) of the nightly reconciliation with Slurm's accounting."
    ).tag(config=True)

    full_days = Integer(35, min=1, help="Days that the nightly reconciliation covers.").tag(config=True)

    port = Integer(10102, min=1, max=65535, help="Loopback port of the quotas service.").tag(config=True)

    audit_file = Unicode(
        "",
        help="""Absolute path of a file to which every write of a person is appended as one line of JSON: who, for whom,
        why, and through which interface (the service's pages and REST, the console, or the command line). It is created
        with mode 0600. The default "" writes none; ``configure(c, state_folder=…)`` sets it to ``audit.jsonl`` in the
        state folder. Handlers in ``c.EventLogger.handlers`` get the same events. Example:
        ``"/var/log/carme-hub/audit.jsonl"``.""",
    ).tag(config=True)

    disk_usage_command = List(
        Unicode(),
        help="""Command (a list of arguments, no shell) that prints a user's disk usage; the user's name is appended
        as the last argument. It runs as the hub's user, and prints one JSON object, or a list of them, such as
        ``{"path": "/home/alice", "used_bytes": 123, "limit_bytes": 456}``; ``limit_bytes`` may be left out, and
        ``"shared": true`` means that the figures are those of all users. The page "My GPU time" and REST show it.
        The default [] shows nothing. Example:
        ``["/usr/local/bin/disk-usage", "--json"]``.""",
    ).tag(config=True)
    disk_places = List(
        Dict(),
        help="""Places whose use is read from the quotas of their file system, for each user: shown on the home page, on
        "My GPU time", by REST and by ``carme-hub disk``. Each entry has ``path`` (shown), ``reader`` (``xfs``,
        ``quota`` for ext4 and NFS, ``lustre``, ``gpfs``, ``zfs``, ``btrfs``, or ``disk`` for all of a file system), and
        may have ``file_system`` (mount point, device or dataset; the default is the path before ``{user}``), ``of``
        (``user``, ``group`` or ``project``), ``name`` (the default is ``{user}``, or ``{account}`` where the path has
        that) and ``prefix`` (words before the command, such as ``["sudo", "-n"]``). ``{user}``, ``{home}`` and
        ``{account}``, for each account of the user, stand for theirs. The default [] reads none. Example::

            c.CarmeQuotas.disk_places = [
                {"path": "/home/{user}", "reader": "xfs", "prefix": ["sudo", "-n"]},
                {"path": "/project/{account}", "reader": "lustre", "file_system": "/lustre", "of": "group"},
            ]
        """,
    ).tag(config=True)
    disk_usage_timeout = Float(
        3.0,
        min=0.1,
        max=60.0,
        help="""Seconds after which the disk_usage_command is ended, and for which a page waits for it; after that the
        usage is unknown. At most four commands run at once, and the time in their queue counts.""",
    ).tag(config=True)
    disk_usage_interval = Float(
        60.0, min=0.0, help="Seconds for which a user's answer of the disk_usage_command is cached."
    ).tag(config=True)

    notice_channels = List(
        Union([Unicode(), Callable()]),
        help="""Further channels for notices, besides mail and the webhook: names of entry points of installed
        packages, or callables. Each takes a ``carme_hub.services.notice_channels.Notice``. Empty by default. See
        docs/howto/add-a-notice-channel.md. Example::

            c.CarmeQuotas.notice_channels = ["chat"]
        """,
    ).tag(config=True)

    webhook_url_file = Unicode(
        "",
        help="""File (mode 0600) with the URL to which notices are sent by POST, as JSON. Such a URL is often a
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
        help="""How the connection to the mail server is encrypted. ``auto``: STARTTLS if the server offers it, with
        any certificate; with a login as ``require``. ``require``: STARTTLS with a certificate that is valid for
        ``smtp_host``, or nothing is sent. ``implicit``: TLS from the first byte, with such a certificate.
        ``off``: none; ``carme-hub doctor`` reports a login without TLS.""",
    ).tag(config=True)
    smtp_ca_file = Unicode(
        "",
        help="""Absolute path of a PEM file with the authorities that may sign the mail server's certificate. The
        default "" uses those that the system trusts.""",
    ).tag(config=True)
    smtp_user = Unicode("", help="""Name to log in to the mail server with; the default "" does not log in.""").tag(
        config=True
    )
    smtp_password_file = Unicode(
        "",
        help="""Absolute path of a file (mode 0600, one line) with the password for ``smtp_user``. The default "" takes
        it from the environment variable ``CARME_SMTP_PASSWORD`` of the hub. It is read again for each connection.
        Example: ``"/etc/carme-hub/smtp-password"``.""",
    ).tag(config=True)
    smtp_timeout = Float(10.0, min=0.1, max=300.0, help="Seconds to wait for each answer of the mail server.").tag(
        config=True
    )
    mail_from = Unicode("", help="Sender of notices by mail.").tag(config=True)
    mail_domain = Unicode(
        "", help="What follows the user name in an address, such as ``example.org``; needed for mail."
    ).tag(config=True)

    @property
    def refunds(self) -> tuple[str, ...]:
        """Return the kinds of refunds that apply if the policy has none."""
        return tuple(name for name in REFUNDS if getattr(self, f"refund_{name.replace('-', '_')}"))

    @validate("policy_file", "webhook_url_file", "audit_file", "smtp_ca_file", "smtp_password_file")
    def _absolute(self, proposal: Mapping[str, object]) -> str:
        value = str(proposal["value"])
        if value and not Path(value).is_absolute():
            raise TraitError(f"CarmeQuotas: {value!r} must be an absolute path")
        return value


class CarmeMirror(LoggingConfigurable):
    """The policy's limits that Slurm itself enforces, and where they are written.

    The command `carme-hub quotas mirror` compares and writes them; the page *Drift* shows differences.
    """

    budgets = Enum(
        [each.value for each in Budgets],
        default_value=Budgets.QOS.value,
        help="""Where budgets are kept: on a QOS of its own for each account (``qos``: exact; its jobs may use no
        other), on the account's association (``association``: it decays with PriorityDecayHalfLife), or nowhere
        (``none``).""",
    ).tag(config=True)
    prefix = Unicode("carme-", help="Prefix of the names of accounts' QOS.").tag(config=True)
    keep_qos = List(
        Unicode(), help="QOS that accounts with a QOS of their own may use too; their jobs count in no budget."
    ).tag(config=True)
    session_qos = Unicode(
        "", help="A QOS that only the hub's sessions use; limits of sessions are written to it. The default is none."
    ).tag(config=True)
    every_job = Bool(False, help="Limits of sessions apply to every job, also from outside the hub.").tag(config=True)

    def limit_settings(self, least_factor: int) -> LimitSettings:
        """Return these settings for the plan of Slurm's limits; the factor is the lowest price in thousandths."""
        return LimitSettings(
            session_qos=self.session_qos,
            every_job=self.every_job,
            budgets=Budgets(self.budgets),
            prefix=self.prefix,
            keep_qos=tuple(self.keep_qos),
            least_factor=least_factor,
        )


class PolicyInForce:
    """The policy in force, from the settings or from a file that may change; a call returns the last valid one."""

    def __init__(self, settings: CarmeQuotas) -> None:
        self._settings = settings
        self._stamp: tuple[int, ...] | None = None
        self._policy = self._with_settings(parse_policy(settings.policy) if not settings.policy_file else Policy())
        #: Why the file's content is not in force; "" when it is.
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
                    self._settings.log.error("The policy file is invalid, the last valid policy stays: %s", error)
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
        return replace(policy, default_refunds=self._settings.refunds)


def read_policy(text: str, where: str) -> Policy:
    """Return the policy in a YAML text; raise ``ConfigError`` with the place of an error."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not YAML: {' '.join(str(error).split())}") from error
    if document is None:
        # An editor or a full disk may empty the file; that must not remove every rule.
        raise ConfigError(f"{where} is empty; write a policy without rules as: quotas: []")
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: the policy is a mapping with quotas, refunds, zone, currency")
    try:
        return parse_policy(document)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def write_policy(file: Path, policy: Policy) -> None:
    """Replace the policy file atomically; raise ``ConfigError`` if it cannot be written."""
    new = file.with_name(f".{file.name}.new")
    try:
        mode = file.stat().st_mode & 0o777 if file.exists() else 0o644
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        if os.geteuid() == 0:  # by a command of root's: the service must be able to read it
            owner = (file if file.exists() else file.parent).stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
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
