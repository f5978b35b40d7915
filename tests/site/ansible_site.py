"""The site as its administrator built it, and a hub on it by the Ansible collection alone."""

from __future__ import annotations

import json
import re
import secrets
import time
from pathlib import Path
from typing import Any

from machines import STATE
from rig.deploy_tools import ansible
from second_site import NAME, SecondSite
from trees import BUILDING, CACHE, _inside, _install, kept, overlay, say

CONNECTION = Path(__file__).parent / "connection"
#: What Ansible needs on each machine, as images of clouds have it; and what the roles install beside what the docs do.
PYTHON = ("python3", "python3-apt")
FETCHED = {"hub": ("nginx", "skopeo", "umoci", "squashfs-tools"), "nodes": ("rclone", "fuse3")}
GROUPS = ("hub", "controller", "nodes")
ANSWERS = {
    "host": NAME,
    "web_server": "nginx",
    "tls_certificate": "/etc/carme-hub/hub.pem",
    "tls_key": "/etc/carme-hub/hub.key",
    "group": "gpu-users",
    "admin_group": "hub-admins",
    "image": "/opt/images/default",
    "test_user": "alice",
    "image_store": "/opt/images",
    "node_images": "/var/lib/carme-images",
    "folders": "/home/folders",
    "scratch": "/scratch",
}
TOKEN = secrets.token_urlsafe(16)
VARS: dict[str, Any] = {
    "hub_answers": ANSWERS,
    "hub_image_store": "/opt/images",
    "hub_secrets": {"CARME_NODE_IMAGES_TOKEN": TOKEN},
    "controller_gpu_types": ["a100"],
    "controller_programs": "/opt/carme-hub-node/libexec",
    "controller_node_parts": ["scratch", "images"],
    "node_scratch": "/scratch",
    "node_images": "/var/lib/carme-images",
    "node_images_token": TOKEN,
    "node_images_ca_file": "/etc/ssl/hub.pem",
    # The site leads nowhere else: what apt knows is in the machines.
    "hub_update_cache": False,
    "node_update_cache": False,
}


class AnsibleSite(SecondSite):
    """The running site; ``play`` runs the playbook of the collection, and ``last`` is what it said last."""

    last: str = ""

    def build(self) -> None:
        """Make the site, whose nodes trust the hub's certificate."""
        super().build()
        for node in self.nodes:
            node.write("/etc/ssl/hub.pem", (self.hub.root / "etc/carme-hub/hub.pem").read_text())

    def ask(self, path: str, token: str) -> str:
        """Return what is at an address of the hub for a user's token."""
        code = "import ssl, sys, urllib.request as u; "
        code += "asked = u.Request(sys.argv[1], headers={'Authorization': 'token ' + sys.argv[2]}); "
        code += "trusts = ssl.create_default_context(cafile='/etc/carme-hub/hub.pem'); "
        code += "print(u.urlopen(asked, context=trusts).read().decode())"
        return self.hub.run(f'/opt/carme-hub/bin/python -c "{code}" {self.url}/{path} {token}')

    def _layers(self, role: str) -> list[Path]:
        lower = super()._layers(role)
        fetched = FETCHED.get(role, ())

        def fill(tree: Path) -> None:
            with overlay(lower, tree, CACHE / f"{BUILDING}-work", CACHE / f"{BUILDING}-root") as root:
                fetch = [f"apt-get install -q -y --no-install-recommends --download-only {name}" for name in fetched]
                _inside(root, _install(PYTHON), *fetch)

        return [kept(f"ansible-{role}", [[str(folder) for folder in lower], PYTHON, fetched], fill), *lower]

    def play(self, what: str, *argv: str, **more: Any) -> dict[str, dict[str, int]]:
        """Run the playbook and return Ansible's recap, by host. All that it says is in a file of the site.

        Args:
            what: said, and measured. more: variables.

        Raises:
            AssertionError: it failed; with the end of what it said.
        """
        began = time.monotonic()
        say(f"ansible: {what}")
        inventory = STATE / "inventory.json"
        groups = {kind: {"hosts": {machine.name: None for machine in self.of(kind)}} for kind in GROUPS}
        hosts = {
            machine.name: {
                "ansible_connection": "nsenter",
                "ansible_nsenter_pid": machine.leader,
                "ansible_python_interpreter": "/usr/bin/python3",
            }
            for machine in self.machines.values()
        }
        inventory.write_text(json.dumps({"all": {"hosts": hosts, "children": groups, "vars": {**VARS, **more}}}))
        done = ansible(
            "ansible-playbook",
            *("-i", str(inventory), "carme.hub.site", *argv),
            ANSIBLE_CONNECTION_PLUGINS=str(CONNECTION),
            ANSIBLE_PIPELINING="1",
            ANSIBLE_HOST_KEY_CHECKING="0",
        )
        assert done is not None
        said = done.stdout + done.stderr
        with (STATE / "ansible.log").open("a") as log:
            log.write(f"# {what}\n{said}\n")
        self.seconds[f"ansible: {what}"] = time.monotonic() - began
        assert done.returncode == 0, said[-8000:]
        self.last = done.stdout
        rows = re.findall(r"^(\S+)\s+: (ok=.*)$", done.stdout, re.MULTILINE)
        return {host: {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", counts)} for host, counts in rows}
