"""The Ansible collection says what the docs say, and its parts fit each other; ansible itself looks at it by night."""

from __future__ import annotations

import ast
import importlib.util
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Environment, StrictUndefined
from rig import real_site
from rig.deploy_tools import DEPLOY, ansible

import carme_hub
from carme_hub.cli.doctor.images import PROGRAMS
from carme_hub.cli.setup.questions import TEXTS
from carme_hub.node.images.store import read_settings
from carme_hub.paths import share_folder
from carme_hub.spawners.staging.programs import MAIN

FOLDER = DEPLOY / "ansible"
ROLES = ("hub", "controller", "node")
PAGE = DEPLOY.parent / "docs/howto/install-by-ansible.md"
#: What a task has besides its module.
KEYWORDS = {
    *(
        "name",
        "when",
        "register",
        "changed_when",
        "failed_when",
        "check_mode",
        "loop",
        "notify",
        "no_log",
        "diff",
        "vars",
    ),
    *("block", "rescue", "ignore_errors", "delegate_to", "until", "retries", "delay"),
}


def load(role: str, file: str) -> Any:
    path = FOLDER / "roles" / role / file
    return yaml.safe_load(path.read_text()) if path.exists() else {}


def files(role: str) -> list[Path]:
    return sorted((FOLDER / "roles" / role).rglob("*.yml"))


def tasks(role: str) -> Iterator[dict[str, Any]]:
    """Yield all tasks and handlers of a role, those of blocks too."""
    ahead = [
        task
        for place in ("tasks", "handlers")
        for file in sorted((FOLDER / "roles" / role / place).glob("*.yml"))
        for task in yaml.safe_load(file.read_text())
    ]
    while ahead:
        task = ahead.pop(0)
        yield task
        ahead += [*task.get("block", []), *task.get("rescue", [])]


def module_of(task: dict[str, Any]) -> list[str]:
    return [key for key in task if key not in KEYWORDS]


def slurm_conf(text: str, wanted: dict[str, Any]) -> str:
    spec = importlib.util.spec_from_file_location("slurm_conf", FOLDER / "plugins/filter/slurm_conf.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.FilterModule().filters()["slurm_conf"](text, wanted)
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("role", ROLES)
def test_each_task_has_a_name_and_one_module_by_its_full_name(role: str) -> None:
    for task in tasks(role):
        assert task["name"], task
        modules = module_of(task)
        assert len(modules) == (0 if "block" in task else 1), task["name"]
        assert all(name.startswith("ansible.builtin.") for name in modules), task["name"]


@pytest.mark.parametrize("role", ROLES)
def test_each_command_says_when_it_changes_something(role: str) -> None:
    """So that a second run, and check mode, tell the truth."""
    for task in tasks(role):
        command = task.get("ansible.builtin.command")
        if command is not None:
            assert "changed_when" in task or "creates" in command, task["name"]
        assert "ansible.builtin.shell" not in task, task["name"]


@pytest.mark.parametrize("role", ROLES)
def test_every_variable_that_a_role_uses_is_there(role: str) -> None:
    there = {*load(role, "defaults/main.yml"), *load(role, "vars/main.yml"), *load(role, "vars/Debian.yml")}
    assert set(load(role, "vars/RedHat.yml")) == set(load(role, "vars/Debian.yml"))
    for task in tasks(role):
        there |= {task.get("register", ""), *task.get("ansible.builtin.set_fact", {}), *task.get("vars", {})}
    for file in files(role):
        if file.parent.name in ("tasks", "vars", "handlers", "defaults"):
            text = re.sub(r"(?m)#.*$|path: .*$", "", file.read_text())
            used = set(re.findall(rf"(?<![\w./'-]){role}_\w+", text))
            assert sorted(used - there - {"controller_licenses"}) == [], file


@pytest.mark.parametrize("role", ROLES)
def test_every_variable_of_a_role_is_described_with_its_default(role: str) -> None:
    defaults = load(role, "defaults/main.yml")
    specs = load(role, "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    assert set(specs) == set(defaults)
    for name, spec in specs.items():
        if "default" in spec:
            assert spec["default"] == defaults[name], name


def test_packages_are_those_of_the_docs() -> None:
    assert set(load("hub", "vars/Debian.yml")["hub_packages"]) == real_site.packages("hub")
    of_node = load("node", "vars/Debian.yml")["node_packages"]
    assert {*of_node["python"], *of_node["bubblewrap"]} == real_site.packages("nodes")


def test_what_adds_images_is_what_the_doctor_looks_for() -> None:
    for system in ("Debian", "RedHat"):
        packages = load("hub", f"vars/{system}.yml")
        assert {*packages["hub_packages"], *packages["hub_image_packages"]} >= set(PROGRAMS.values())


@pytest.mark.parametrize(
    ("parts", "prolog", "epilog"),
    [
        (["scratch"], "carme-stage-prolog", True),
        (["images"], "carme-image-prolog", False),
        (["scratch", "images"], "carme-*-prolog", True),
    ],
)
def test_slurms_prolog_is_that_of_what_nodes_have(parts: list[str], prolog: str, epilog: bool) -> None:
    found = load("controller", "vars/main.yml")
    environment = Environment(undefined=StrictUndefined)
    environment.filters["combine"] = lambda one, other: {**one, **other}
    values: dict[str, Any] = {"controller_node_parts": parts, "controller_programs": "/opt/node"}
    values["controller_prolog"] = environment.from_string(found["controller_prolog"]).render(values).strip()
    settings = environment.from_string(found["controller_prolog_settings"])
    wanted = {"Prolog": f"/opt/node/{prolog}"} | ({"Epilog": "/opt/node/carme-stage-epilog"} if epilog else {})
    assert ast.literal_eval(settings.render(values)) == wanted
    assert ast.literal_eval(settings.render({**values, "controller_programs": ""})) == {}


@pytest.mark.parametrize(("part", "program"), [("scratch", MAIN), ("images", "carme-node-images")])
def test_units_of_nodes_call_the_programs_where_the_role_puts_them(part: str, program: str) -> None:
    names = {"scratch": "carme-stage-out", "images": "carme-node-images"}
    unit = (share_folder() / "systemd" / f"{names[part]}.service").read_text()
    assert f"\nExecStart=/opt/carme-hub/node/{program} " in unit, "the role replaces that folder"
    text = (FOLDER / "roles/node/tasks" / f"{part}.yml").read_text()
    assert "replace('/opt/carme-hub/node/', node_programs ~ '/')" in text
    assert f"loop: [{names[part]}.service, {names[part]}.timer]" in text


def test_settings_of_images_are_what_the_program_of_nodes_reads(tmp_path: Path) -> None:
    (task,) = [each for each in tasks("node") if each["name"] == "Write the settings of images"]
    text = task["ansible.builtin.copy"]["content"]
    environment = Environment(undefined=StrictUndefined, trim_blocks=True)
    values = {"node_image_stores": ["/srv/images", "/srv/more"], "node_images": "/local/images"}
    values |= {"node_image_settings": {"room_gib": 500}, "node_images_url": "https://hub/services/images/"}
    values["node_images_ca_file"] = ""
    for token in ("", "secret"):
        (tmp_path / "conf").write_text(environment.from_string(text).render({**values, "node_images_token": token}))
        found = read_settings(str(tmp_path / "conf"), True)
        assert (found["images"]["stores"], found["images"]["room_gib"]) == ("/srv/images /srv/more", "500")
        assert found["images"]["into"] == "/local/images"
        assert found["service"]["url"] == (values["node_images_url"] if token else "")
        assert "secret" not in (tmp_path / "conf").read_text()


def test_settings_and_user_are_those_of_the_docs() -> None:
    defaults = load("controller", "defaults/main.yml")
    wanted = defaults["controller_slurm_settings"] | {"AccountingStorageTRES": ["gres/gpu", "gres/gpu:a100"]}
    assert slurm_conf("", wanted) == "".join(f"{k}={v}\n" for k, v in _in_order(wanted, "slurm.conf"))
    wanted = defaults["controller_slurmdbd_settings"]
    assert slurm_conf("", wanted) == "".join(f"{k}={v}\n" for k, v in _in_order(wanted, "slurmdbd.conf"))
    user = load("hub", "defaults/main.yml")
    assert f"--uid {user['hub_uid']} " in real_site.hub_user()
    assert real_site.hub_user().endswith(f" {user['hub_user']}")
    assert (defaults["controller_hub_uid"], defaults["controller_hub_user"]) == (user["hub_uid"], user["hub_user"])


def _in_order(wanted: dict[str, Any], file: str) -> list[tuple[str, str]]:
    documented = real_site.settings(file)
    assert set(documented) == set(wanted)
    return [(name, documented[name]) for name in wanted]


def test_the_example_and_the_guide_name_what_there_is() -> None:
    inventory = yaml.safe_load((FOLDER / "inventory.example.yml").read_text())["all"]["children"]
    assert set(inventory) == {"hub", "controller", "nodes"}
    assert set(inventory["hub"]["vars"]["hub_answers"]) <= set(TEXTS)
    known = {name for role in ROLES for name in load(role, "defaults/main.yml")} | {"nodes_at_once"}
    used = {name for group in inventory.values() for name in group.get("vars", {})}
    named = set(re.findall(r"`((?:hub|controller|node|nodes)_\w+)", PAGE.read_text()))
    assert used <= known
    assert named <= known
    plays = yaml.safe_load((FOLDER / "playbooks/site.yml").read_text())
    assert [play["hosts"] for play in plays] == ["hub", "controller", "nodes", "hub"]


def test_the_collection_installs_this_release() -> None:
    assert yaml.safe_load((FOLDER / "galaxy.yml").read_text())["version"] == carme_hub.__version__
    assert load("hub", "defaults/main.yml")["hub_version"] == carme_hub.__version__


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        ("SlurmdTimeout=300\n", {"SlurmdTimeout": 900}, "SlurmdTimeout=900\n"),
        ("slurmdtimeout = 3600 # long\n", {"SlurmdTimeout": 900}, "slurmdtimeout = 3600 # long\n"),
        ("#SlurmdTimeout=300\n", {"SlurmdTimeout": 900}, "#SlurmdTimeout=300\nSlurmdTimeout=900\n"),
        ("PrivateData=jobs,events\n", {"PrivateData": ["jobs", "usage"]}, "PrivateData=jobs,events,usage\n"),
        ("PrivateData=all\n", {"PrivateData": ["jobs", "usage"]}, "PrivateData=all\n"),
        (
            "AccountingStorageTRES=GRES/gpu\n",
            {"AccountingStorageTRES": ["gres/gpu"]},
            "AccountingStorageTRES=GRES/gpu\n",
        ),
        ("JobRequeue=1\nJobRequeue=1\n", {"JobRequeue": "0"}, "JobRequeue=1\nJobRequeue=0\n"),
        ("JobSubmitPlugins=throttle\n", {"JobSubmitPlugins": ["lua"]}, "JobSubmitPlugins=throttle,lua\n"),
        ("NodeName=a\n", {}, "NodeName=a\n"),
        ("SlurmdTimeoutX=1\n", {"SlurmdTimeout": 900}, "SlurmdTimeoutX=1\nSlurmdTimeout=900\n"),
    ],
)
def test_a_setting_that_is_enough_stays_and_nothing_else_is_touched(
    text: str, wanted: dict[str, Any], expected: str
) -> None:
    found = slurm_conf(text, wanted)
    assert found == expected
    assert slurm_conf(found, wanted) == found


def test_a_setting_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="write a number"):
        slurm_conf("", {"JobRequeue": False})


def test_ansible_understands_the_playbook_and_the_roles() -> None:
    done = ansible("ansible-playbook", "-i", str(FOLDER / "inventory.example.yml"), "--syntax-check", "carme.hub.site")
    if done is None:
        logging.getLogger(__name__).info("no ansible here")
        return
    assert done.returncode == 0, done.stdout + done.stderr
    done = ansible("ansible-doc", "-t", "role", "--list", "carme.hub")
    assert done is not None
    listed = set(re.findall(r"^(carme\.hub\.\w+):", done.stdout, re.MULTILINE))
    assert listed == {f"carme.hub.{role}" for role in ROLES}, done.stdout + done.stderr


@pytest.mark.nightly
def test_ansible_lint_finds_nothing() -> None:
    done = ansible("ansible-lint", "--offline", "--nocolor", "--profile=production", cwd=FOLDER)
    assert done is not None
    assert done.returncode == 0, done.stdout + done.stderr


def test_where_a_site_updates_apts_lists_itself_no_task_does() -> None:
    """``cache_valid_time`` alone means an update to Ansible's module, whatever ``update_cache`` says."""
    found = [task["ansible.builtin.apt"] for role in ROLES for task in tasks(role) if "ansible.builtin.apt" in task]
    timed = [each for each in found if "cache_valid_time" in each]
    assert timed
    for each in timed:
        switch = each["update_cache"].strip("{} ")
        assert each["cache_valid_time"].endswith(f" if {switch} else omit }}}}")
