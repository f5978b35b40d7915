"""The traits that say how this hub speaks with Slurm; ``client()`` and ``watcher()`` build what they describe."""

from __future__ import annotations

from pathlib import Path

from traitlets import Enum, Float, Integer, List, TraitError, Unicode, validate
from traitlets.config import LoggingConfigurable

from carme_hub.errors import ConfigError
from carme_hub.slurm.cli.client import SlurmCli
from carme_hub.slurm.pyslurm.client import ReservationsNative, SlurmNative, check
from carme_hub.slurm.pyslurm.process import NativeProcess
from carme_hub.slurm.submit.slurmrestd import RestSubmitter
from carme_hub.slurm.submit.ways import DirectSubmitter, Submitter, SudoSubmitter

from .client import SlurmClient
from .command import Commands
from .reservations import ReservationsCli
from .state_save import StartSaver
from .watcher import SlurmWatcher, WatcherSettings


class CarmeSlurm(LoggingConfigurable):
    """How the hub speaks with Slurm."""

    cluster = Unicode(
        "cluster",
        help="""Name of the cluster, as in slurm.conf's ClusterName. A job is known by cluster, name, user and submit
        time, so keep it when the hub moves. Example: ``c.CarmeSlurm.cluster = "ada"``.""",
    ).tag(config=True)

    slurm_prefix = Unicode(
        "",
        help="""Folder whose ``bin`` holds Slurm's commands. The default "" means PATH. Set it where several releases
        are installed: an older client cannot speak with a newer controller.
        Example: ``c.CarmeSlurm.slurm_prefix = "/opt/slurm"``.""",
    ).tag(config=True)

    slurm_conf = Unicode(
        "",
        help="""Client configuration for the hub's own commands (SLURM_CONF). The default "" means Slurm's own.
        A copy of slurm.conf with a lower MessageTimeout makes an outage known sooner: commands wait for
        MessageTimeout - 1 seconds. Example: ``c.CarmeSlurm.slurm_conf = "/etc/carme/slurm.conf"``.""",
    ).tag(config=True)

    ask_via = Enum(
        ("command", "pyslurm"),
        default_value="command",
        help="""How Slurm is asked. ``command``, the default: squeue, scontrol and sacct, whatever their release.
        ``pyslurm``: jobs, nodes, reservations and the records of jobs through that library, which lies on libslurm and
        starts no process for each question; the rest by the commands as before. It needs the extra ``pyslurm`` and
        Slurm 25.11, no other release: the hub does not start where library and commands differ.
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
        help="""Where slurmrestd listens: ``unix:///run/slurmrestd/rest.sock`` or ``http://127.0.0.1:6820``.
        The API version is found out. Needed with ``submit_via = "rest"``; no default.""",
    ).tag(config=True)

    token_command = List(
        Unicode(),
        help="""Command that prints a Slurm token (JWT) for one user; the user name is appended. It runs as the hub,
        usually through one sudo rule, and decides itself for whom it prints one. Needed with
        ``submit_via = "rest"``; empty by default.
        Example: ``c.CarmeSlurm.token_command = ["sudo", "-n", "/usr/local/libexec/carme-token"]``.""",
    ).tag(config=True)

    token_lifetime = Integer(
        300,
        min=90,
        help="""Seconds for which a token of ``token_command`` is good, where the token itself does not say so. It is
        fetched anew 60 seconds before its end.""",
    ).tag(config=True)

    submit_command = List(
        Unicode(),
        help="""The fixed submit helper for ``submit_via = "sudo"``; ``sudo -n -u USER`` is put before it. Needed with
        that way; empty by default.
        Example: ``c.CarmeSlurm.submit_command = ["/usr/local/libexec/carme-submit"]``.""",
    ).tag(config=True)

    tail_command = List(
        Unicode(),
        help="""Command that prints the last lines of a session's ``job.log``; user name and session UUID are appended.
        Empty, the default: the hub shows no job output when a start fails, and has no end mark to read while
        accounting is down.
        Example: ``c.CarmeSlurm.tail_command = ["sudo", "-n", "/usr/local/libexec/carme-token", "tail"]``.""",
    ).tag(config=True)

    command_timeout = Float(
        10.0,
        min=0.1,
        help="""Seconds after which a Slurm command is ended with its whole process group, and a request to slurmrestd
        is given up. What it might have done is then unknown, and is looked up.""",
    ).tag(config=True)

    fast_interval = Float(
        1.0,
        min=0.1,
        help="""Seconds between two looks at the queue while something is starting or ending. One look serves all
        sessions; it costs the controller about 5 ms.""",
    ).tag(config=True)

    slow_interval = Float(
        15.0,
        min=0.1,
        help="""Seconds between two looks at the queue at rest, and the longest pause while Slurm does not answer.
        The number of looks does not depend on the number of sessions.""",
    ).tag(config=True)

    nodes_interval = Float(
        10.0,
        min=0.1,
        help="Seconds for which an answer about nodes (free GPUs on the form) is used again.",
    ).tag(config=True)

    breaker_failures = Integer(
        3,
        min=1,
        help="Failed looks in a row after which the watcher asks ever more rarely, up to ``slow_interval``.",
    ).tag(config=True)

    max_answer_bytes = Integer(
        100_000_000,
        min=64 * 1024,
        help="A command's answer longer than this is not read to its end and counts as no answer.",
    ).tag(config=True)

    _native: NativeProcess | None = None

    @validate("slurm_prefix", "slurm_conf")
    def _absolute(self, proposal: dict[str, object]) -> str:
        value = str(proposal["value"])
        if value and not Path(value).is_absolute():
            raise TraitError(f"CarmeSlurm: {value!r} must be an absolute path")
        return value

    def commands(self) -> Commands:
        """Return how Slurm's commands are run."""
        return Commands(
            prefix=self.slurm_prefix,
            conf=self.slurm_conf,
            timeout=self.command_timeout,
            max_bytes=self.max_answer_bytes,
        )

    def client(self) -> SlurmClient:
        """Return the client that these settings describe; ``ConfigError`` names what is missing."""
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

    def reservations(self) -> ReservationsCli:
        """Return what reads and writes Slurm's reservations."""
        if self.ask_via == "command":
            return ReservationsCli(self.commands())
        return ReservationsNative(self.commands(), self._controller())

    def _controller(self) -> NativeProcess:
        """Return the one process that asks the controller, for whoever uses these settings."""
        if self._native is None:
            self._native = NativeProcess(self.commands())
        return self._native

    def watcher(self, client: SlurmClient) -> SlurmWatcher:
        """Return the one watcher of the hub over that client; ``start()`` it on the event loop."""
        return SlurmWatcher(
            client,
            WatcherSettings(
                fast_interval=self.fast_interval,
                slow_interval=self.slow_interval,
                nodes_interval=self.nodes_interval,
                breaker_failures=self.breaker_failures,
                look_timeout=2 * self.command_timeout,
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
