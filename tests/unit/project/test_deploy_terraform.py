"""A cluster in the cloud: names fit, and its user data says what the docs say; Terraform renders it by night."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from rig import real_site
from rig.deploy_tools import DEPLOY, cloud_config_schema, terraform

import carme_hub
from carme_hub.cli.setup.questions import TEXTS
from carme_hub.spawners.staging.programs import node_texts

FOLDER = DEPLOY / "terraform"
MODULE = FOLDER / "cloud-init"
FILES = MODULE / "files"
#: OpenStack's metadata service gives 65,535 bytes at most, encoded by base64.
MOST_USER_DATA = 65_535 * 3 // 4
USERS = {"alice": {"uid": 10001, "password_hash": "$6$salt$hash"}, "bob": {"uid": 10002}}
GIVEN = {
    "cluster": "carme",
    "hub": "carme-hub",
    "controller": "carme-controller",
    "nodes": ["carme-node-001", "carme-node-002"],
    "addresses": {
        "carme-hub": "10.20.0.10",
        "carme-controller": "10.20.0.11",
        "carme-node-001": "10.20.0.20",
        "carme-node-002": "10.20.0.21",
    },
    "subnet_cidr": "10.20.0.0/24",
    "cpus": 16,
    "memory_mib": 65536,
    "gpu_type": "a100",
    "gpus_per_node": 2,
    "volume_id": "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9",
    "host": "hub.example.org",
    "users": USERS,
    "hub_package": "carme-hub",
    "answers": {"quotas": "yes", "folders": "/shared/folders", "scratch": "/scratch"},
    "node_commands": "echo driver",
}


def text_of(folder: Path) -> str:
    return "\n".join(file.read_text() for file in sorted(folder.glob("*.tf")))


def declared(folder: Path, what: str) -> set[str]:
    return set(re.findall(rf'^{what} "(\w+)"', text_of(folder), re.MULTILINE))


@pytest.mark.parametrize("folder", [FOLDER, MODULE], ids=["openstack", "cloud-init"])
def test_every_variable_is_declared_described_and_used(folder: Path) -> None:
    variables = declared(folder, "variable")
    assert set(re.findall(r"\bvar\.(\w+)", text_of(folder))) == variables
    blocks = re.findall(r'^(?:variable|output) "\w+" \{\n(.*?)\n\}$', text_of(folder), re.MULTILINE | re.DOTALL)
    assert all(re.search(r'description = ".{8,}"', block) for block in blocks)


def test_the_module_gets_its_variables_and_all_resources_are_there() -> None:
    text = text_of(FOLDER)
    call = re.search(r'module "cloud_init" \{\n(.*?)\n\}', text, re.DOTALL)
    assert call is not None
    assert set(re.findall(r"^  (\w+) +=", call[1], re.MULTILINE)) - {"source"} == declared(MODULE, "variable")
    there = {f"{kind}.{name}" for kind, name in re.findall(r'^resource "(\w+)" "(\w+)"', text, re.MULTILINE)}
    data = {f"data.{kind}.{name}" for kind, name in re.findall(r'^data "(\w+)" "(\w+)"', text, re.MULTILINE)}
    assert set(re.findall(r"(?<!data\.)\b(openstack_\w+\.\w+)", re.sub(r"data\.openstack", "data_", text))) <= there
    assert set(re.findall(r"data\.openstack_\w+\.\w+", text)) == data
    assert set(re.findall(r"module\.cloud_init\.(\w+)", text)) == declared(MODULE, "output")
    locals_ = set(re.findall(r"^  (\w+) += ", text[text.index("locals {") :], re.MULTILINE))
    assert set(re.findall(r"\blocal\.(\w+)", text)) <= locals_


def test_the_table_of_variables_is_what_is_declared() -> None:
    page = (FOLDER / "README.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", page.partition("## Variables")[2], re.MULTILINE))
    assert set(rows) == declared(FOLDER, "variable")
    text = text_of(FOLDER)
    for name, default in rows.items():
        block = re.search(rf'^variable "{name}" \{{\n(.*?)\n\}}$', text, re.MULTILINE | re.DOTALL)
        assert block is not None
        found = re.search(r"^  default +=\s*(.+)$", block[1], re.MULTILINE)
        assert default == (f"`{found[1]}`" if found else "required"), name
    example = set(re.findall(r"^(\w+) +=", (FOLDER / "terraform.tfvars.example").read_text(), re.MULTILINE))
    required = {name for name, default in rows.items() if default == "required"}
    assert required <= example <= set(rows)
    assert f'"carme-hub=={carme_hub.__version__}"' in text


def test_names_in_templates_are_those_that_they_are_given() -> None:
    text = (MODULE / "main.tf").read_text()
    calls = re.findall(r'templatefile\("\$\{path\.module\}/files/([\w.-]+)", \{\n(.*?)\n\s*\}\)', text, re.DOTALL)
    assert {name for name, _ in calls} == {file.name for file in FILES.glob("*.tftpl")}
    for name, body in calls:
        given = set(re.findall(r"^\s*(\w+) +=", body, re.MULTILINE))
        template = (FILES / name).read_text()
        parts = re.findall(r"(?<!\$)\$\{([^}]+)\}", template) + re.findall(
            r"%\{ (?:if|for \w+ in) (.+?) ~?\}", template
        )
        loops = set(re.findall(r"%\{ for (\w+) in", template))
        used = {
            word
            for part in parts
            for word in re.findall(r"(?<![.\w\"])[a-z_]\w*(?!\w*\()", re.sub('"[^"]*"', "", part))
        }
        assert used - loops == given, name


def test_settings_packages_and_user_are_those_of_the_docs() -> None:
    template = (FILES / "slurm.conf.tftpl").read_text().replace("${gpu_type}", "a100").splitlines()
    assert [f"{k}={v}" for k, v in real_site.settings("slurm.conf").items() if f"{k}={v}" not in template] == []
    template = (FILES / "slurmdbd.conf.tftpl").read_text().splitlines()
    assert [f"{k}={v}" for k, v in real_site.settings("slurmdbd.conf").items() if f"{k}={v}" not in template] == []
    text = (MODULE / "main.tf").read_text()
    client = listed(text, "client_packages =")
    assert real_site.packages("hub") <= client | listed(text, "packages = concat(local.client_packages, [\n")
    assert real_site.packages("nodes") <= client
    assert real_site.hub_user() in (FILES / "common.sh").read_text()


def listed(text: str, after: str) -> set[str]:
    part = text[text.index(after) + len(after) :]
    return set(re.findall(r'"([\w.-]+)"', part[: part.index("]")]))


@pytest.mark.parametrize("name", ["common.sh", "controller.sh.tftpl", "node.sh.tftpl", "hub.sh.tftpl"])
def test_the_scripts_of_first_boots_are_bash(name: str) -> None:
    script = re.sub(r"^%\{.*\}\n", "", (FILES / name).read_text(), flags=re.MULTILINE)
    script = re.sub(r"(?<!\$)\$\{\w+\}", "value", script).replace("$${", "${")
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module", params=["caddy", "nginx"])
def user_data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str] | None:
    """Return the user data of each machine, rendered by Terraform; None where there is none."""
    folder = tmp_path_factory.mktemp("module")
    # The module reads job_submit.lua of the repository it is in.
    place = folder / "deploy/terraform/cloud-init"
    shutil.copytree(MODULE, place, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
    (folder / "share").symlink_to(DEPLOY.parent / "share")
    (place / "given.auto.tfvars.json").write_text(json.dumps({**GIVEN, "web_server": request.param}))
    for command in (
        ["init", "-input=false", "-no-color"],
        ["validate", "-no-color"],
        ["apply", "-auto-approve", "-no-color"],
    ):
        done = terraform(place, *command)
        if done is None:
            logging.getLogger(__name__).info("no terraform here")
            return None
        assert done.returncode == 0, done.stdout + done.stderr
    state = json.loads((place / "terraform.tfstate").read_text())["outputs"]
    found = {"controller": state["controller"]["value"], "hub": state["hub"]["value"], **state["nodes"]["value"]}
    assert set(found) == {"controller", "hub", *GIVEN["nodes"]}
    return found


def test_rendered_user_data_is_what_cloud_init_takes(user_data: dict[str, str] | None) -> None:
    for name, text in (user_data or {}).items():
        assert text.startswith("#cloud-config\n"), name
        assert len(text) < MOST_USER_DATA, name
        document = yaml.safe_load(text)
        if schema := cloud_config_schema():
            jsonschema.validate(document, schema)
        for file in document["write_files"]:
            if file["content"].startswith("#!/bin/bash") or file["path"].endswith(".sh"):
                done = subprocess.run(["bash", "-n"], input=file["content"], capture_output=True, text=True, timeout=20)
                assert done.returncode == 0, f"{name} {file['path']}: {done.stderr}"


def test_rendered_files_fit_the_cluster(user_data: dict[str, str] | None) -> None:
    if user_data is None:
        return
    controller, hub = contents(user_data["controller"]), contents(user_data["hub"])
    conf = controller["/etc/carme/slurm.conf"]
    for key, value in real_site.settings("slurm.conf").items():
        assert f"{key}={value}\n" in conf
    assert (
        "NodeName=carme-node-002 NodeAddr=10.20.0.21 CPUs=16 RealMemory=60948 Gres=gpu:a100:2 State=UNKNOWN\n"
        "PartitionName=main"
    ) in conf
    assert controller["/etc/carme/gres.conf"] == "Name=gpu Type=a100 File=/dev/nvidia[0-1]\n"
    assert 'local DEFAULT_GPU_TYPE = "a100"\n' in controller["/etc/carme/job_submit.lua"]
    answers = yaml.safe_load(hub["/etc/carme/answers.yaml"])
    assert set(answers) <= set(TEXTS)
    assert answers["quotas"] == "yes"
    assert (answers["image_store"], answers["folders"], answers["scratch"]) == (
        *("/shared/images", "/shared/folders"),
        "/scratch",
    )
    assert hub["/etc/carme/passwords"] == "alice:$6$salt$hash\nbob:!\n"
    others = [text for name, text in user_data.items() if name != "hub"]
    assert all("$6$salt" not in text for text in others)
    exports = controller["/etc/carme/exports"].splitlines()
    assert exports[-1].split()[0] == "/etc/munge"
    assert all(re.search(r"\(ro,no_root_squash", each) for each in exports[-1].split()[1:])


def test_rendered_machines_have_what_the_answers_ask_for(user_data: dict[str, str] | None) -> None:
    if user_data is None:
        return
    first_boot = {name: contents(text)["/usr/local/sbin/carme-first-boot"] for name, text in user_data.items()}
    controller, node = contents(user_data["controller"]), contents(user_data["carme-node-001"])
    programs = "/shared/node/libexec"
    assert (
        f"Prolog={programs}/carme-stage-prolog\nEpilog={programs}/carme-stage-epilog\n"
        in (controller["/etc/carme/slurm.conf"])
    )
    assert "install -d -m 755 /shared/folders\n" in first_boot["controller"]
    for name in ("hub", *GIVEN["nodes"]):  # type: ignore[misc]
        assert "mount_with_acls carme-controller /shared/folders\n" in first_boot[name], name
    assert f"carme-hub staging install {programs}\n" in first_boot["hub"]
    assert """echo '{"root": "/scratch"}' >/shared/node/etc/carme-stage-out.json""" in first_boot["hub"]
    assert f"ExecStart={programs}/carme-stage-out sweep\n" in node["/etc/systemd/system/carme-stage-out.service"]
    assert "systemctl enable --now carme-stage-out.timer\n" in first_boot["carme-node-001"]
    assert {"rclone", "fuse3"} <= set(yaml.safe_load(user_data["carme-node-001"])["packages"])
    assert {"skopeo", "umoci", "squashfs-tools", "bubblewrap"} <= set(yaml.safe_load(user_data["hub"])["packages"])


def test_the_programs_of_nodes_are_whole_when_the_last_one_is_there(tmp_path: Path) -> None:
    """Nodes wait for it before slurmd starts."""
    waited = re.search(r"until \[ -x /shared/node/libexec/([\w-]+) \]", (FILES / "node.sh.tftpl").read_text())
    assert waited is not None
    assert list(node_texts(tmp_path))[-1] == waited[1]


def contents(text: str) -> dict[str, Any]:
    return {file["path"]: file["content"] for file in yaml.safe_load(text)["write_files"]}


def test_terraform_finds_the_files_in_its_own_form() -> None:
    done = terraform(FOLDER, "fmt", "-check", "-recursive", "-diff")
    if done is None:
        logging.getLogger(__name__).info("no terraform here")
        return
    assert done.returncode == 0, done.stdout + done.stderr
