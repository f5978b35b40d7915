"""The site as its administrator built it, before anybody thought of a hub; and the hub, as the docs say in either way.

Machines: portal (for the hub), controller (slurmctld, slurmdbd, MariaDB, slapd), gpu01 and gpu02 (slurmd). Users are in
LDAP alone. /home, /opt/images and /etc/slurm are folders of this machine, bound in the place of NFS. A GPU is a device
file without a driver: what a job may open is real, what is behind it is nothing.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from machines import PREFIX, STATE, Machine, Network, remove_all, wait_for
from rig.documented import BY_HAND, BY_SETUP, Instructions, Step, read, set_in
from trees import NPM, OUR_WHEEL, WHEELS, layers, npm_packages, run, say, wheel, wheels

FILES = Path(__file__).parent / "administrator"
ADDRESSES = {"portal": "10.0.0.1", "controller": "10.0.0.2", "gpu01": "10.0.0.11", "gpu02": "10.0.0.12"}
VISITOR, VISITOR_ADDRESS = "visitor", "10.0.0.100"
#: The hub's name in browsers, where it has one.
NAME = "hub.example.org"
USERS = {"alice": 5001, "pierre": 5002}
#: Major number of character devices for local use (Linux's devices.txt).
LOCAL_USE = 120


@dataclass
class SecondSite:
    """The running site.

    Attributes:
        by_hand, by_setup: what the docs say. done: what of it was done. url: the hub's.
        machines: by name. password: of all users. seconds: how long each part took.
    """

    by_hand: Instructions = field(default_factory=lambda: read(BY_HAND))
    by_setup: Instructions = field(default_factory=lambda: read(BY_SETUP))
    done: list[Step] = field(default_factory=list)
    url: str = f"https://{ADDRESSES['portal']}"
    machines: dict[str, Machine] = field(default_factory=dict)
    password: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def hub(self) -> Machine:
        return self.machines["portal"]

    @property
    def controller(self) -> Machine:
        return self.machines["controller"]

    @property
    def nodes(self) -> list[Machine]:
        return [self.machines["gpu01"], self.machines["gpu02"]]

    def of(self, kind: str) -> list[Machine]:
        """Return the machines that the docs mean."""
        return [machine for machine in self.machines.values() if machine.role == kind]

    # -- the administrator ----------------------------------------------------------------------------------------

    def build(self) -> None:
        """Make the site, without a hub."""
        remove_all()
        STATE.mkdir(parents=True)
        began = time.monotonic()
        binds = self._shared()
        network = Network()
        network.up()
        network.join(VISITOR, VISITOR_ADDRESS)
        for name, address in ADDRESSES.items():
            role = "hub" if name == "portal" else "controller" if name == "controller" else "nodes"
            machine = Machine(role, name, network.join(name, address), self._layers(role), binds[role])
            machine.make()
            self.machines[name] = machine
        self._settings()
        self.seconds["trees and packages"] = time.monotonic() - began
        began = time.monotonic()
        say("booting four machines")
        for machine in self.machines.values():
            machine.boot()
        self.seconds["boot"] = time.monotonic() - began
        began = time.monotonic()
        self._start_controller()
        for machine in self.machines.values():
            machine.run("chown munge: /etc/munge/munge.key; systemctl restart munge nslcd")
        self._start_slurm()
        self.seconds["the administrator's Slurm"] = time.monotonic() - began

    def _layers(self, role: str) -> list[Path]:
        return layers(role, self._documented(role, "apt-get"))

    def _documented(self, role: str, command: str) -> list[str]:
        """Return what the docs write after ``COMMAND install`` for a kind of machine, in either way."""
        steps = [step for step in (*self.by_hand.steps, *self.by_setup.steps) if role in step.machines]
        lines = [line for step in dict.fromkeys(steps) for line in step.text.splitlines()]
        return [line.removeprefix(f"{command} install ") for line in lines if line.startswith(f"{command} install ")]

    def _shared(self) -> dict[str, dict[Path, str]]:
        """Make what the machines share, and return what each kind binds."""
        homes, images, slurm = STATE / "home", STATE / "images", STATE / "slurm"
        for folder in (homes, images, slurm):
            folder.mkdir()
            folder.chmod(0o755)
        for user, uid in USERS.items():
            (homes / user).mkdir(mode=0o700)
            os.chown(homes / user, uid, 6001)
        for name in ("slurm.conf", "gres.conf", "cgroup.conf", "slurmdbd.conf"):
            text = (FILES / name).read_text().replace("@password@", secrets.token_urlsafe(12))
            (slurm / name).write_text(text)
        devices: dict[Path, str] = {}
        for number in (0, 1):
            device = STATE / f"nvidia{number}"
            os.mknod(device, stat.S_IFCHR, os.makedev(LOCAL_USE, number))
            device.chmod(0o666)
            devices[device] = f"+/dev/nvidia{number}"
        ours = STATE / "wheel"
        ours.mkdir()
        built = wheel(ours)
        npm = STATE / "npm"
        packages = npm_packages(self._documented("hub", "npm"), self._layers("hub"))
        shutil.copytree(packages, npm)  # npm writes into its cache
        packages = {wheels(built): WHEELS, ours: OUR_WHEEL, npm: f"+{NPM}"}
        say(f"the package is {built.name}")
        everywhere = {homes: "+/home"}
        return {
            "hub": {**everywhere, images: "+/opt/images", slurm: "/etc/slurm", **packages},
            "controller": {**everywhere, slurm: "+/etc/slurm"},
            "nodes": {**everywhere, images: "/opt/images", slurm: "/etc/slurm", **devices},
        }

    def _settings(self) -> None:
        """Write the administrator's files into the trees, before they boot."""
        key = secrets.token_bytes(128)
        for machine in self.machines.values():
            machine.write("/etc/hosts", (FILES / "hosts").read_text())
            machine.write("/etc/nslcd.conf", (FILES / "nslcd.conf").read_text(), 0o640)
            file = machine.root / "etc/munge/munge.key"
            file.write_bytes(key)
            file.chmod(0o400)
        hub, controller = self.hub.root, self.controller.root
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", STATE / "key")
        for tree in (hub, controller):
            (tree / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
        shutil.copy(STATE / "key", hub / "root/.ssh/id_ed25519")
        shutil.copy(STATE / "key.pub", controller / "root/.ssh/authorized_keys")
        public = (controller / "etc/ssh/ssh_host_ed25519_key.pub").read_text()
        (hub / "root/.ssh/known_hosts").write_text(f"controller {public}")
        (hub / "etc/carme-hub").mkdir()
        subject = ("-subj", "/CN=portal", "-addext", f"subjectAltName=IP:10.0.0.1,DNS:{NAME}")
        certificate, secret = hub / "etc/carme-hub/hub.pem", hub / "etc/carme-hub/hub.key"
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
        run("openssl", "req", "-x509", *kind, *subject, "-keyout", secret, "-out", certificate)
        secret.chmod(0o600)
        pip = f"[global]\nno-index = true\nfind-links = {OUR_WHEEL} {WHEELS}\ndisable-pip-version-check = true\n"
        self.hub.write("/etc/pip.conf", pip)
        registry = (STATE / "npm/registry").read_text()
        npm = f"cache={NPM}\nregistry={registry}\noffline=true\naudit=false\nfund=false\nupdate-notifier=false\n"
        self.hub.write("/root/.npmrc", npm)

    def _start_controller(self) -> None:
        """Start the directory, the database and Slurm's own daemons."""
        controller = self.controller
        people = (FILES / "people.ldif").read_text().replace("@password@", self.password)
        controller.write("/root/people.ldif", people, 0o600)
        controller.run(
            "systemctl stop slapd; slapadd -n 1 -l /root/people.ldif\n"
            "chown -R openldap: /var/lib/ldap; systemctl start slapd mariadb"
        )
        conf = (STATE / "slurm/slurmdbd.conf").read_text()
        password = conf.partition("StoragePass=")[2].splitlines()[0]
        controller.run(
            "mysql <<'END'\ncreate database slurm_acct_db; "
            f"create user slurm@localhost identified by '{password}'; "
            "grant all on slurm_acct_db.* to slurm@localhost;\nEND\n"
            "chown slurm: /etc/slurm/slurmdbd.conf; chmod 600 /etc/slurm/slurmdbd.conf\n"
            "install -d -o slurm -g slurm /var/lib/slurm /var/lib/slurm/slurmctld /var/log/slurm"
        )

    def _start_slurm(self) -> None:
        controller = self.controller
        controller.run("systemctl restart slurmdbd")
        controller.run("until sacctmgr -i add cluster mycluster; do sleep 1; done", limit=90)
        controller.run("sacctmgr -i add account physics; sacctmgr -i add user name=alice account=physics")
        controller.run("systemctl restart slurmctld")
        for node in self.nodes:
            node.run("install -d /var/lib/slurm/slurmd /var/log/slurm; systemctl restart slurmd")
        wait_for(self.nodes_are_idle, 90, "the nodes to be idle", lambda: controller.run("sinfo -N -l; sinfo -R"))
        ids = {machine.name: machine.run("id -u alice; id -Gn alice") for machine in self.machines.values()}
        assert len(set(ids.values())) == 1, ids

    def nodes_are_idle(self) -> bool:
        """Return whether both nodes can run jobs."""
        return self.controller.try_run("sinfo -h -N -o %T").stdout.split() == ["idle", "idle"]

    # -- the docs -------------------------------------------------------------------------------------------------

    def follow(self, instructions: Instructions) -> None:
        """Do what the docs say, and nothing else; what was done already is not done again."""
        for step in instructions.steps:
            if step in self.done:
                continue
            began = time.monotonic()
            first = step.text.strip().splitlines()[0]
            say(f"{step.place} on {' and '.join(step.machines)}: {step.path or first[:70]}")
            for kind in step.machines:
                for machine in self.of(kind):
                    self._do(step, machine)
            self.done.append(step)
            self.seconds[step.place] = time.monotonic() - began

    def begin_again(self) -> None:
        """Have the hub's machine as it was prepared, and the hub under its name."""
        self.hub.run(
            "systemctl disable --now carme-hub carme-hub-proxy\n"
            "rm /etc/systemd/system/carme-hub*.service /etc/sudoers.d/carme-hub /etc/carme-hub/jupyterhub_config.py\n"
            "rm -r /usr/local/libexec /usr/local/etc/carme-* /var/lib/carme-hub\n"
            "chown root: /etc/carme-hub/hub.key; chmod 600 /etc/carme-hub/hub.key; systemctl daemon-reload"
        )
        self.done = [step for step in self.done if step in self.by_setup.steps]
        self.url = f"https://{NAME}"

    def said(self, machine: Machine) -> str:
        """Return what the documented commands printed on a machine."""
        return (STATE / machine.name / "installation.log").read_text()

    def _do(self, step: Step, machine: Machine) -> None:
        if step.way == "run":
            said = machine.run(step.text, step.user, limit=600)
            with (STATE / machine.name / "installation.log").open("a") as log:
                log.write(f"# {step.place}\n{step.text}{said}\n")
            return
        # An editor: it makes no folder. Through the machine's own eyes, in whose tree other folders are mounted.
        at = Path(f"/proc/{machine.leader}/root") / step.path.lstrip("/")
        there = at.read_text() if at.exists() else ""
        text = {"file": "", "add to": there}.get(step.way, "") + step.text
        if step.way == "set in":
            text = set_in(there, step.text)
        new = not at.exists()
        at.write_text(text)
        if new:
            at.chmod(0o440 if "/sudoers.d/" in step.path else 0o644)  # as visudo does
        if "/sudoers.d/" in step.path:
            machine.run("visudo -c")

    # -- people ---------------------------------------------------------------------------------------------------

    def visit(self, *argv: str, token: str = "") -> str:
        """Run the visitor's program in the visitor's network, and return what it prints."""
        authority = str(self.hub.root / "etc/carme-hub/hub.pem")
        namespace = f"--net=/run/netns/{PREFIX}{VISITOR}"
        environ = {"PATH": os.environ["PATH"], "PASSWORD": self.password, "TOKEN": token}
        environ[NAME] = ADDRESSES["portal"]
        program = Path(__file__).with_name("visitor.py")
        argv = ("nsenter", namespace, sys.executable, str(program), self.url, authority, *argv)
        return run(*argv, env=environ, timeout=300)

    def token(self, user: str) -> str:
        """Return a token of a user, who logs in by the page as soon as that is there."""
        self.wait_for_page()
        answer = json.loads(self.visit("token", user))
        assert set(answer) == {"token"}, (answer, self.journal())
        return str(answer["token"])

    def wait_for_page(self) -> None:
        """Wait until people can log in."""
        fetch = "import ssl, urllib.request as u; c = ssl.create_default_context(cafile='/etc/carme-hub/hub.pem'); "
        fetch += f"print(u.urlopen('{self.url}/hub/login', context=c).read().decode())"

        def is_there() -> bool:
            done = self.hub.try_run(f'/opt/carme-hub/bin/python -c "{fetch}"')
            return done.returncode == 0 and "<form" in done.stdout

        wait_for(is_there, 60, "the login page", self.journal)

    def journal(self) -> str:
        """Return the end of what hub and proxy said."""
        return self.hub.try_run("journalctl --no-pager -n 60 -u carme-hub -u carme-hub-proxy").stdout

    # -- the end --------------------------------------------------------------------------------------------------

    def tear_down(self) -> None:
        """Shut the machines down and remove everything."""
        say("shutting down")
        for machine in reversed(self.machines.values()):
            machine.shut_down()
        remove_all()
