"""The demo: the sandbox's Slurm, an image, the proxy and the hub on this machine, each a separate process."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from carme_hub.containers.images import as_setting, read_image
from carme_hub.errors import SandboxError
from carme_hub.sandbox.images.build import build_default_image, build_training_image, remove_unused
from carme_hub.sandbox.images.hub_environment import ensure_hub_environment, is_current
from carme_hub.sandbox.layout import default_state
from carme_hub.sandbox.sandbox import Sandbox
from carme_hub.sandbox.slurm.cluster import Cluster
from carme_hub.sandbox.slurm.ports import DEFAULT_PORTS, hub_ports
from carme_hub.sandbox.slurm.virtual_driver import LIBRARY
from carme_hub.spawners.hub.proxy import CERTIFICATE, certificate_in, proxy_environment

Progress = Callable[[str], None]
#: The last lines of the demo's output: a purpose, and the subcommand for it.
COMMANDS = {"what runs": "status", "end it": "down", "remove it all": "reset"}
#: A policy with limits that no first steps reach.
DEFAULT_POLICY = {
    "quotas": [
        {"id": "month", "user": "*", "gpu_time": 1000, "window": "month"},
        {"id": "owners", "account": "*", "owners_approve": 20},
    ],
    "currency": "EUR",
}


@dataclass(frozen=True)
class Demo:
    """A hub in front of a sandbox.

    Attributes:
        folder: the hub's private files. environment: its virtual environment.
    """

    sandbox: Sandbox
    cluster: Cluster
    folder: Path
    environment: Path
    images: tuple[Path, ...]
    ports: Mapping[str, int]
    user: str

    @property
    def url(self) -> str:
        """The address at which users log in."""
        return f"http://127.0.0.1:{self.ports['public']}"

    @property
    def log(self) -> Path:
        """The hub's log."""
        return self.cluster.layout.log / "hub.log"

    @property
    def config_file(self) -> Path:
        """The hub's configuration file, in the environment, which the hub's user can read."""
        return next((self.environment / "lib").glob("python3*/site-packages/carme_hub/sandbox/jupyterhub_config.py"))

    @property
    def policy_file(self) -> Path:
        """The policy of GPU time, which the administrator's page edits."""
        return self.folder / "policy.yaml"

    # -- up -----------------------------------------------------------------------------------------------------------

    @classmethod
    def prepare(cls, sandbox: Sandbox, progress: Progress) -> Demo:
        """Start the cluster and prepare everything that the hub needs, without starting the hub."""
        cluster = sandbox.up(progress)
        environment = cluster.state / "hub-environment"
        if not is_current(environment):
            if sandbox.processes.alive("hub"):
                progress("The code has changed: the hub restarts, sessions continue")
                sandbox.processes.stop("hub", within=20)
            ensure_hub_environment(environment, progress)
        images = _images(progress)
        user = cluster.hub_user
        folder = cluster.state / "hub"
        folder.mkdir(mode=0o700, exist_ok=True)
        _chown(folder, user)
        demo = cls(sandbox, cluster, folder, environment, images, _ports(cluster, folder), user)
        demo._write_facts()
        return demo

    def _write_facts(self) -> None:
        rest = not self.cluster.rootless
        facts = {
            "folder": str(self.folder),
            "policy": str(self.policy_file),
            "ports": dict(self.ports),
            "cluster": self.cluster.name,
            "slurm_prefix": str(self.cluster.bin.parent),
            "slurm_conf": str(self.cluster.hub_slurm_conf),
            "submit_via": "rest" if rest else "direct",
            "rest_url": f"unix://{self.cluster.rest_socket}" if rest else "",
            "token_command": list(self.cluster.token_argv) if rest else [],
            "tail_command": list(self.cluster.tail_argv) if rest else [],
            "jobs_command": [str(self.cluster.jobs_helper)] if rest else [],
            "folders": str(self.cluster.layout.folders),
            "folders_command": list(self.cluster.folders_argv) if rest else [],
            "login": "pam" if rest else "dummy",
            "group": "carme-users" if rest else pwd.getpwuid(os.geteuid()).pw_name,
            "images": [as_setting(read_image(image)) for image in self.images],
            "scratch": str(self.cluster.layout.scratch) if rest else "",
            "nvml_library": str(self.cluster.layout.dev / LIBRARY),
        }
        _write_private(self.folder / "facts.json", json.dumps(facts, indent=1), self.user)
        if not self.policy_file.exists():
            self.set_policy(DEFAULT_POLICY)
        if not (self.folder / "secrets.json").exists():
            keys = {"CONFIGPROXY_AUTH_TOKEN": secrets.token_hex(32), "CARME_SANDBOX_PASSWORD": secrets.token_urlsafe(9)}
            _write_private(self.folder / "secrets.json", json.dumps(keys), self.user)

    def set_policy(self, policy: Mapping[str, object]) -> None:
        """Replace the policy of GPU time; hub and service reload it by themselves."""
        _write_private(self.policy_file, json.dumps(policy, indent=1), self.user)  # JSON is YAML

    def secrets(self) -> dict[str, str]:
        """Return the proxy's token and, in a sandbox of one ordinary user, the password."""
        return dict(json.loads((self.folder / "secrets.json").read_text()))

    def start(self, progress: Progress, extra: Mapping[str, str] | None = None) -> None:
        """Start proxy and hub where they do not run, and wait until users can log in."""
        processes = self.sandbox.processes
        if not (self.folder / "internal-ssl" / "certipy.json").exists():
            progress("Making certificates for the hub, the proxy and the servers")
            self._hub_command("--generate-certs")
        if not processes.alive("proxy"):
            progress("Starting the proxy")
            processes.stop("proxy")
            self._start_proxy()
        if not processes.alive("hub"):
            progress("Starting the hub")
            processes.stop("hub")
            self.start_hub(extra)
        self.wait_ready()

    def start_hub(self, extra: Mapping[str, str] | None = None) -> None:
        """Start the hub; ``extra`` is added to its environment."""
        groups = ("shadow",) if os.geteuid() == 0 else ()  # PAM needs group shadow to check other users' passwords
        self.sandbox.processes.start(
            "hub",
            [f"{self.environment}/bin/python", "-m", "jupyterhub", "-f", str(self.config_file)],
            log=self.log,
            env={**self._environment(), **(extra or {})},
            user=self.user,
            extra_groups=groups,
            cwd=self.folder,
            umask=0o077,
        )

    def wait_ready(self, within: float = 180.0) -> None:
        """Wait until the hub and the quotas service answer through the proxy.

        The reservations service is ready once slurmctld has answered; a hub starts without it, too.
        """
        deadline = time.monotonic() + within
        hub = "hub/health"
        for path in (hub, "services/quotas/api/v1/health"):
            while not self._answers(path):
                if not self.sandbox.processes.alive("hub"):
                    if path != hub:
                        return  # it did start; some tests make it end soon after that
                    raise SandboxError(f"The hub ended at its start. The end of {self.log}:\n{_tail(self.log)}")
                if time.monotonic() > deadline:
                    raise SandboxError(f"{path} does not answer. The end of {self.log}:\n{_tail(self.log)}")
                time.sleep(0.25)  # each question costs the starting hub a redirect and a page of an error

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/{path}", timeout=2) as answer:  # noqa: S310  our own
                # Before the service has read Slurm's accounting once, the hub admits nobody with GPUs.
                return answer.status == 200 and b'"settling": false' not in answer.read()
        except (urllib.error.URLError, OSError):
            return False

    def _start_proxy(self) -> None:
        certs = self.folder / "internal-ssl"
        argv = [f"{self.environment}/bin/node", f"{self.environment}/bin/configurable-http-proxy"]
        argv += ["--ip", "127.0.0.1", "--port", str(self.ports["public"])]
        argv += ["--api-ip", "127.0.0.1", "--api-port", str(self.ports["proxy_api"])]
        hub = f"https://127.0.0.1:{self.ports['hub']}"
        fragment = CERTIFICATE + certificate_in(certs / "hub-internal" / "hub-internal.crt")
        argv += [
            "--default-target",
            hub + fragment,
            "--error-target",
            f"{hub}/hub/error{fragment}",
            "--log-level",
            "warn",
        ]
        for role in ("api", "client"):
            component = f"proxy-{role}"
            argv += [f"--{role}-ssl-key", str(certs / component / f"{component}.key")]
            argv += [f"--{role}-ssl-cert", str(certs / component / f"{component}.crt")]
            argv += [f"--{role}-ssl-ca", str(certs / f"{component}-ca_trust.crt")]
            argv += [f"--{role}-ssl-request-cert", f"--{role}-ssl-reject-unauthorized"]
        self.sandbox.processes.start(
            "proxy",
            argv,
            log=self.cluster.layout.log / "proxy.log",
            env=proxy_environment(self._environment(), self.environment / "share" / "carme_hub"),
            user=self.user,
            cwd=self.folder,
            umask=0o077,
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.ports["proxy_api"])) == 0:
                    return
            time.sleep(0.05)
        raise SandboxError(f"The proxy does not listen:\n{_tail(self.cluster.layout.log / 'proxy.log')}")

    def _environment(self) -> dict[str, str]:
        entry = pwd.getpwnam(self.user)
        return {
            "PATH": f"{self.environment}/bin:/usr/bin:/bin:/usr/sbin",
            "HOME": str(self.folder),
            "USER": entry.pw_name,
            "LOGNAME": entry.pw_name,
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "CARME_SANDBOX_HUB": str(self.folder / "facts.json"),
            **self.secrets(),
        }

    def _hub_command(self, *words: str) -> None:
        argv = [f"{self.environment}/bin/python", "-m", "jupyterhub", "-f", str(self.config_file), *words]
        from carme_hub.sandbox.processes import identity

        done = subprocess.run(  # type: ignore[call-overload]
            argv,
            env=self._environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            umask=0o077,
            **identity(self.user if os.geteuid() == 0 else None),
        )
        if done.returncode:
            raise SandboxError(f"jupyterhub {' '.join(words)} failed:\n{done.stderr[-2000:]}")

    def hub_ssl(self) -> ssl.SSLContext:
        """Return a context for requests directly to the hub, as the proxy sends them."""
        certs = self.folder / "internal-ssl"
        context = ssl.create_default_context(cafile=str(certs / "proxy-client-ca_trust.crt"))
        context.load_cert_chain(
            certs / "proxy-client" / "proxy-client.crt", certs / "proxy-client" / "proxy-client.key"
        )
        return context


def _images(progress: Progress) -> tuple[Path, ...]:
    """Return the images of the demo: the default one, and the training image where it can be built."""
    images = [build_default_image(progress=progress)]
    try:
        images.append(build_training_image(progress=progress))
    except SandboxError as error:
        progress(f"There is no training image: {error}")
        progress("Only the default image is offered. To try again: carme-hub image build --training")
    for image in images:
        remove_unused(image)
    return tuple(images)


def run_demo(sandbox: Sandbox, progress: Progress) -> Demo:
    """Start everything."""
    started = time.monotonic()
    demo = Demo.prepare(sandbox, progress)
    # Sandboxes of tests start without the service of shared folders, which most tests do not need.
    demo.start(progress, {} if demo.cluster.rootless else {"CARME_SANDBOX_FOLDERS": "1"})
    progress(f"Ready after {time.monotonic() - started:.0f} s")
    return demo


def usage_text(demo: Demo) -> str:
    """Return the text that the demo prints at its end."""
    command, layout = Path(sys.argv[0]), demo.cluster.layout
    label = command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command
    passwords = demo.cluster.passwords or {demo.user: demo.secrets()["CARME_SANDBOX_PASSWORD"]}
    roles = {"tina": "teacher", "ada": "administrator"}
    lines = [
        "",
        f"  Carme Hub runs at  {demo.url}",
        "",
        *(f"    {name:<8} {word:<16} {roles.get(name, 'user')}" for name, word in passwords.items()),
        "",
        "  Everything is real (Slurm, containers, JupyterHub) except the hardware: nodes and GPUs are virtual.",
        "  Try: log in as alice, choose “A100” with 2 GPUs, and run in a cell",
        '       !hostname; id; echo "$CUDA_VISIBLE_DEVICES"; echo "$SLURMD_NODENAME"',
        "       Start a second server as bob and see in the form which GPUs are free.",
        "       Choose the image “training”, and open “New from template” in JupyterLab’s launcher.",
        *([] if demo.cluster.rootless else ["       Open Services, folders: make one as alice, and invite bob."]),
        "",
        *(f"    {what:<15} {layout.command(verb, str(label))}" for what, verb in COMMANDS.items()),
        f"    hub's log       {demo.log}",
        "",
    ]
    return "\n".join(lines)


def _ports(cluster: Cluster, folder: Path) -> dict[str, int]:
    """Return the hub's ports: the same every time; only the machine's main sandbox takes the default ones."""
    file = folder / "ports.json"
    saved = dict(json.loads(file.read_text())) if file.exists() else {}
    if saved.keys() >= DEFAULT_PORTS.keys():
        return saved
    ports = {**hub_ports(cluster.ports, usual=cluster.state == default_state()), **saved}
    file.write_text(json.dumps(ports))
    return ports


def _write_private(path: Path, text: str, user: str) -> None:
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    _chown(new, user)
    new.replace(path)  # a concurrent reader gets the old file or the new one


def _chown(path: Path, user: str) -> None:
    if os.geteuid() == 0:
        shutil.chown(path, user, pwd.getpwnam(user).pw_gid)


def _tail(path: Path, lines: int = 25) -> str:
    if not path.exists():
        return "(no log)"
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
