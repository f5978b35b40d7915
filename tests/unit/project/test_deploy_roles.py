"""Parts of the Ansible roles that need no machine of their own, run by Ansible itself, twice and in check mode.

In a mount namespace with an /etc of its own, and with a systemctl and a scontrol that are forged: tests/site has
machines that boot.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rig.deploy_tools import DEPLOY, ansible

from carme_hub.node.images.store import read_settings
from carme_hub.paths import share_folder

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has an /etc of its own"),
]
FOLDER = DEPLOY / "ansible"
#: Arguments: folders for what is written to /etc, and the program. What is below /etc goes to the first at the end.
NAMESPACE = r"""
set -e
mount -t tmpfs changes "$2"; mkdir "$2/upper" "$2/work"
cp -a "$1/." "$2/upper/"
mount -t overlay etc -o "lowerdir=/etc,upperdir=$2/upper,workdir=$2/work" /etc
kept=$1 changes=$2; shift 2
status=0; "$@" || status=$?
for name in carme-hub systemd/system; do
    mkdir -p "$kept/$name"
    [ ! -d "$changes/upper/$name" ] || cp -a "$changes/upper/$name/." "$kept/$name/"
done
exit $status
"""
SHOWN = "LoadState=loaded\\nActiveState=active\\nSubState=waiting\\nUnitFileState=enabled\\n"


class Site:
    """A machine that is hub, controller and node, as far as files are concerned."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.etc, self.changes = folder, folder / "etc", folder / "changes"
        for each in (self.etc, self.changes, folder / "bin", folder / "release/bin", folder / "release/share"):
            each.mkdir(parents=True)
        (folder / "release/bin/carme-hub").symlink_to(Path(sys.executable).with_name("carme-hub"))
        (folder / "release/share/carme_hub").symlink_to(share_folder())
        self._forge("systemctl", f"case \"$*\" in *show*) printf '{SHOWN}' ;; *is-enabled*) echo enabled ;; esac")
        self._forge("scontrol", "echo Slurmctld is UP")
        self.conf = folder / "slurm.conf"
        self.conf.write_text("ClusterName=mycluster\nSlurmdTimeout=300\n")
        self.variables: dict[str, Any] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": "/usr/bin/python3",
            "hub_share": str(folder / "release/share/carme_hub"),
            "hub_answers": {
                **{"host": "hub.example.org", "image_store": str(folder / "store"), "folders": str(folder / "folders")},
                **{"scratch": str(folder / "scratch"), "node_images": str(folder / "copies")},
            },
            "controller_slurm_conf": str(self.conf),
            "controller_slurmdbd_conf": str(folder / "slurmdbd.conf"),
            "controller_gpu_types": ["a100"],
            "controller_programs": str(folder / "node/libexec"),
            "controller_node_parts": ["scratch", "images"],
            "node_programs": str(folder / "node/libexec"),
            "node_scratch": str(folder / "scratch"),
            "node_scratch_settings": {"max_gib": 7},
            "node_images": str(folder / "copies"),
            "node_images_token": "canary-of-the-nodes",
        }

    def _forge(self, name: str, does: str) -> None:
        program = self.folder / "bin" / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.folder}/asked\n{does}\n')
        program.chmod(0o755)

    def say(self, role: str, file: str, variable: str) -> Any:
        """Return the value of a role's variable, with a file of its variables."""
        variables = FOLDER / "roles" / role / "vars"
        tasks: list[dict[str, Any]] = [
            {"name": "Read", "ansible.builtin.include_vars": str(variables / name)} for name in (file, "main.yml")
        ]
        tasks.append({"name": "Say", "ansible.builtin.debug": {"msg": f"=={{{{ {variable} | to_json }}}}=="}})
        _, said = self._run(tasks)
        found = re.search(r"==(.*)==", said)
        assert found is not None
        return json.loads(found[1].replace('\\"', '"'))

    def play(self, *argv: str) -> tuple[int, str]:
        """Run the parts; return how many tasks changed something, and what was said."""
        parts = (("hub", "settings"), ("controller", "conf"), ("node", "scratch"), ("node", "images"))
        tasks = [
            {"name": part, "ansible.builtin.include_role": {"name": f"carme.hub.{role}", "tasks_from": part}}
            for role, part in parts
        ]
        return self._run(tasks, *argv)

    def _run(self, tasks: list[dict[str, Any]], *argv: str) -> tuple[int, str]:
        play = [{"name": "All", "hosts": "hub", "gather_facts": False, "tasks": tasks}]
        (self.folder / "play.yml").write_text(yaml.safe_dump(play))
        (self.folder / "inventory.json").write_text(
            json.dumps({"all": {"children": {"hub": {"hosts": {"here": self.variables}}}}})
        )
        done = ansible(
            "ansible-playbook",
            *("-i", str(self.folder / "inventory.json"), str(self.folder / "play.yml"), *argv),
            within=["unshare", "-m", "bash", "-c", NAMESPACE, "site", str(self.etc), str(self.changes)],
            PATH=f"{self.folder}/bin:{os.environ['PATH']}",
        )
        assert done is not None
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        counts = re.search(r"changed=(\d+)", done.stdout)
        assert counts is not None
        return int(counts[1]), done.stdout


def test_nodes_get_programs_settings_and_units_once(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.play("--check")[0] > 0
    assert not site.etc.joinpath("carme-hub/node-images.conf").exists(), "check mode writes nothing"
    assert site.conf.read_text() == "ClusterName=mycluster\nSlurmdTimeout=300\n"
    first, said = site.play()
    assert first > 10
    assert "canary-of-the-nodes" not in said
    programs = tmp_path / "node/libexec"
    lines = site.conf.read_text().splitlines()
    assert f"Prolog={programs}/carme-*-prolog" in lines
    assert f"Epilog={programs}/carme-stage-epilog" in lines
    assert {"carme-stage-out", "carme-image-prolog", "carme-node-images"} <= {each.name for each in programs.iterdir()}
    assert json.loads((tmp_path / "node/etc/carme-stage-out.json").read_text()) == {
        "root": str(tmp_path / "scratch"),
        "max_gib": 7,
    }
    found = read_settings(str(site.etc / "carme-hub/node-images.conf"), True)
    assert found["images"]["stores"] == str(tmp_path / "store")
    assert found["service"]["url"] == "https://hub.example.org/services/images/"
    token = site.etc / "carme-hub/node-images.token"
    assert (token.read_text(), token.stat().st_mode & 0o777) == ("canary-of-the-nodes\n", 0o600)
    for name, verb in (("carme-stage-out", "sweep"), ("carme-node-images", "sync")):
        assert f"\nExecStart={programs}/{name} {verb}\n" in (site.etc / f"systemd/system/{name}.service").read_text()
        assert (site.etc / f"systemd/system/{name}.timer").exists()
    for name in ("store", "folders", "scratch", "copies"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o755
    assert "systemctl restart slurmctld" in (tmp_path / "asked").read_text()
    again, said = site.play()
    assert again == 0, said
    assert site.play("--check", "--diff")[0] == 0


def test_packages_of_nodes_are_those_that_are_asked_for(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.variables |= {"node_runtimes": ["bubblewrap", "podman"], "node_further_packages": ["buildah"]}
    said = site.say("node", "Debian.yml", "node_all_packages")
    assert said == ["python3", "bubblewrap", "podman", "rclone", "fuse3", "buildah"]


def test_a_prolog_of_the_sites_own_is_not_replaced(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.conf.write_text("Prolog=/etc/slurm/prolog.sh\n")
    with pytest.raises(AssertionError, match=r"carme-image-prolog, as docs/howto/offer-images\.md says"):
        site.play()
    assert site.conf.read_text() == "Prolog=/etc/slurm/prolog.sh\n"
