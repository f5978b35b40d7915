"""The traits for the hub's access to Slurm; ``client()`` and ``watcher()`` build the configured objects."""

from __future__ import annotations

from pathlib import Path

from traitlets import Bool, Enum, Float, Integer, List, TraitError, Unicode, validate
from traitlets.config import LoggingConfigurable

from carme_hub.errors import ConfigError
from carme_hub.slurm.cli.client import SlurmCli
from carme_hub.slurm.owner.jobs import OwnJobs
from carme_hub.slurm.owner.ways import HelperOwner, NoOwner, Owner, TokenOwner
from carme_hub.slurm.pyslurm.client import ReservationsNative, SlurmNative, check
from carme_hub.slurm.pyslurm.process import NativeProcess
from carme_hub.slurm.submit.slurmrestd import RestSubmitter
from carme_hub.slurm.submit.submitters import DirectSubmitter, Submitter, SudoSubmitter

from .client import SlurmClient
from .command import Commands
from .nodes import NodesCli
from .reservations import ReservationsCli
from .state_save import StartSaver
from .watcher import SlurmWatcher, WatcherSettings


class CarmeSlurm(LoggingConfigurable):
    """The hub's access to Slurm."""

    cluster = Unicode(
        "cluster",
        help="""Name of the cluster, as in slurm.conf's ClusterName. A job is identified by cluster, name, user and
        submit time, so keep it when the hub moves. Example: ``c.CarmeSlurm.cluster = "ada"``.""",
    ).tag(config=True)

    slurm_prefix = Unicode(
        "",
        help="""Folder whose ``bin`` contains Slurm's commands. The default "" means PATH. Set it if several releases
        are installed: an older client cannot communicate with a newer controller.
        Example: ``c.CarmeSlurm.slurm_prefix = "/opt/slurm"``.""",
    ).tag(config=True)

    slurm_conf = Unicode(
        "",
        help="""Client configuration for the hub's own commands (SLURM_CONF). The default "" means Slurm's own.
        A copy of slurm.conf with a lower MessageTimeout detects an outage sooner: commands wait for
        MessageTimeout - 1 seconds. Example: ``c.CarmeSlurm.slurm_conf = "/etc/carme/slurm.conf"``.""",
    ).tag(config=True)

    ask_via = Enum(
        ("command", "pyslurm"),
        default_value="command",
        help="""How the hub queries Slurm. ``command``, the default: squeue, scontrol and sacct of any release.
        ``pyslurm``: jobs, nodes, reservations and job records through that library, which uses libslurm and starts no
        process for each query; the rest through the commands. It needs the extra ``pyslurm`` and Slurm 25.11, no other
        release: the hub does not start if library and commands differ.
        Example: ``c.CarmeSlurm.ask_via = "pyslurm"``.""",
    ).tag(config=True)

    submit_via = Enum(
        ("rest", "sudo", "direct"),
        default_value="direct",
        help="""How jobs are submitted as their user. ``rest``: slurmrestd with a short-lived token per user (least
        privilege; needs ``rest_url`` and ``token_command``). ``sudo``: ``sudo -n -u USER`` and ``submit_command``.
        ``direct``: the hub runs as root, or as the only user it serves.
        Example: ``c.CarmeSlurm.submit_via = "rest"``.""",
    ).tag(config=True)

    rest_url = Unicode(
        "",
        help="""Address of slurmrestd: ``unix:///run/slurmrestd/rest.sock`` or ``http://127.0.0.1:6820``.
        The API version is detected. Needed with ``submit_via = "rest"``; no default.""",
    ).tag(config=True)

    token_command = List(
        Unicode(),
        help="""Command that prints a Slurm token (JWT) for one user; the user name is appended. It runs as the hub,
        usually through one sudo rule, and decides itself for which users it prints one. Needed with
        ``submit_via = "rest"``; empty by default.
        Example: ``c.CarmeSlurm.token_command = ["sudo", "-n", "/usr/local/libexec/carme-token"]``.""",
    ).tag(config=True)

    token_lifetime = Integer(
        300,
        min=90,
        help="""Seconds for which a token of ``token_command`` is valid, if the token itself has no expiry. A new one is
        fetched 60 seconds before its expiry.""",
    ).tag(config=True)

    submit_command = List(
        Unicode(),
        help="""The fixed submit helper for ``submit_via = "sudo"``; it runs as ``sudo -n -u USER HELPER``. Needed with
        ``sudo``; empty by default.
        Example: ``c.CarmeSlurm.submit_command = ["/usr/local/libexec/carme-submit"]``.""",
    ).tag(config=True)

    tail_command = List(
        Unicode(),
        help="""Command that prints the last lines of a session's ``job.log``; user name and session UUID are appended.
        Empty, the default: the hub shows no job output when a start fails, and cannot read the end mark while
        accounting is down.
        Example: ``c.CarmeSlurm.tail_command = ["sudo", "-n", "/usr/local/libexec/carme-token", "tail"]``.""",
    ).tag(config=True)

    jobs_command = List(
        Unicode(),
        help="""The fixed helper by which the hub acts on jobs of users as those users (cancel, hold, submit again) and
        reads their output files; it runs as ``sudo -n -u USER HELPER``. With ``submit_via = "sudo"`` nothing of that is
        possible without it; with ``rest`` the output of jobs cannot be read without it; ``direct`` does not use it.
        Empty by default.
        Example: ``c.CarmeSlurm.jobs_command = ["/usr/local/libexec/carme-jobs"]``.""",
    ).tag(config=True)

    submit_again = Bool(
        True,
        help="""Whether users may submit a job that they have submitted by sbatch once more from the hub's page. It is a
        job like that of sbatch: Slurm's own limits hold for it, and Carme Hub's ledger does not charge it.
        Example: ``c.CarmeSlurm.submit_again = False``.""",
    ).tag(config=True)

    node_command = List(
        Unicode(),
        help="""Command that changes the state of nodes for administrators' pages, in place of scontrol: it gets
        ``update NodeName=NAME State=…`` and a reason as its arguments. The default, empty, runs scontrol as the hub's
        user, which Slurm refuses to an Operator: that user needs AdminLevel=Administrator.
        Example: ``c.CarmeSlurm.node_command = ["sudo", "-n", "-u", "slurm", "/usr/bin/scontrol"]``.""",
    ).tag(config=True)

    command_timeout = Float(
        10.0,
        min=0.1,
        help="""Seconds after which a Slurm command is killed with its whole process group, and a request to slurmrestd
        is abandoned. The hub then looks up whether it had an effect.""",
    ).tag(config=True)

    fast_interval = Float(
        1.0,
        min=0.1,
        help="""Seconds between two polls of the queue while something is starting or ending. One poll serves all
        sessions; it costs the controller about 5 ms.""",
    ).tag(config=True)

    slow_interval = Float(
        15.0,
        min=0.1,
        help="""Seconds between two polls of the queue at rest, and the longest pause while Slurm does not answer.
        The number of polls does not depend on the number of sessions.""",
    ).tag(config=True)

    nodes_interval = Float(
        10.0,
        min=0.1,
        help="Seconds for which an answer about nodes (free GPUs on the form) is reused.",
    ).tag(config=True)

    breaker_failures = Integer(
        3,
        min=1,
        help="Consecutive failed polls after which the watcher polls less and less often, down to ``slow_interval``.",
    ).tag(config=True)

    max_answer_bytes = Integer(
        100_000_000,
        min=64 * 1024,
        help="The hub does not read an answer of a command beyond this length, and treats it as no answer.",
    ).tag(config=True)

    _native: NativeProcess | None = None

    @validate("slurm_prefix", "slurm_conf")
    def _absolute(self, proposal: dict[str, object]) -> str:
        value = str(proposal["value"])
        if value and not Path(value).is_absolute():
            raise TraitError(f"CarmeSlurm: {value!r} must be an absolute path")
        return value

    def commands(self) -> Commands:
        """Return the runner of Slurm's commands."""
        return Commands(
            prefix=self.slurm_prefix,
            conf=self.slurm_conf,
            timeout=self.command_timeout,
            max_bytes=self.max_answer_bytes,
        )

    def client(self) -> SlurmClient:
        """Return the configured client; ``ConfigError`` names what is missing."""
        commands = self.commands()
        submitter, tail = self._submitter(commands), tuple(self.tail_command)
        if self.ask_via == "command":
            return SlurmCli(cluster=self.cluster, commands=commands, submitter=submitter, tail_command=tail)
        check(commands)
        return SlurmNative(
            cluster=self.cluster,
            commands=commands,
            submitter=submitter,
            controller=self._controller(),
            accounting=NativeProcess(commands),
            tail_command=tail,
        )

    def own_jobs(self) -> OwnJobs:
        """Return what acts on jobs of users as those users; ``ConfigError`` names what is missing."""
        commands, helper = self.commands(), tuple(self.jobs_command)
        owner: Owner = NoOwner()
        if self.submit_via == "rest":
            submitter = self._submitter(commands)
            if isinstance(submitter, RestSubmitter):
                owner = TokenOwner(submitter, commands, HelperOwner(helper, commands) if helper else None)
        elif self.submit_via == "direct":
            owner = HelperOwner((), commands)
        elif helper:
            owner = HelperOwner(helper, commands)
        return OwnJobs(commands, owner)

    def reservations(self) -> ReservationsCli:
        """Return the client for Slurm's reservations."""
        if self.ask_via == "command":
            return ReservationsCli(self.commands())
        return ReservationsNative(self.commands(), self._controller())

    def node_control(self, client: SlurmClient) -> NodesCli:
        """Return what drains and resumes nodes."""
        return NodesCli(self.commands(), client, tuple(self.node_command))

    def _controller(self) -> NativeProcess:
        """Return the one process that queries the controller, shared by all users of these settings."""
        if self._native is None:
            self._native = NativeProcess(self.commands())
        return self._native

    def watcher(self, client: SlurmClient) -> SlurmWatcher:
        """Return the hub's watcher over a client; ``start()`` it on the event loop."""
        return SlurmWatcher(
            client,
            WatcherSettings(
                fast_interval=self.fast_interval,
                slow_interval=self.slow_interval,
                nodes_interval=self.nodes_interval,
                breaker_failures=self.breaker_failures,
                poll_timeout=2 * self.command_timeout,
            ),
            log=self.log,
            saver=StartSaver(client, self.log),
        )

    def _submitter(self, commands: Commands) -> Submitter:
        if self.submit_via == "rest":
            if not self.rest_url or not self.token_command:
                raise ConfigError("CarmeSlurm.submit_via is 'rest': set CarmeSlurm.rest_url and .token_command too")
            return RestSubmitter(
                self.rest_url,
                token_command=tuple(self.token_command),
                token_lifetime=self.token_lifetime,
                commands=commands,
            )
        if self.submit_via == "sudo":
            if not self.submit_command:
                raise ConfigError("CarmeSlurm.submit_via is 'sudo': set CarmeSlurm.submit_command too")
            return SudoSubmitter(tuple(self.submit_command), commands)
        return DirectSubmitter(commands)
