"""The pages "Add a …" are short, show the code of the package that the tests install, and name what there is."""

from __future__ import annotations

import ast
import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from rig.extension import EXAMPLE, ROOT

from carme_hub.accounting import policy_rules
from carme_hub.auth import login_policies
from carme_hub.containers import registry
from carme_hub.services import notice_channels
from carme_hub.sessions import profile_fields
from carme_hub.spawners.apps import settings as apps
from carme_hub.training.templates import installed

GROUPS = {
    installed.GROUP,
    *(module.POINT.group for module in (apps, login_policies, notice_channels, policy_rules)),
    *(module.POINT.group for module in (profile_fields, registry)),
}
PAGES = {
    "carme_hub.runtimes": "add-a-container-runtime",
    "carme_hub.login_policies": "add-a-login-policy",
    "carme_hub.policy_rules": "add-a-policy-rule",
    "carme_hub.profile_fields": "add-a-profile-field",
    "carme_hub.apps": "add-an-app",
    "carme_hub.training_templates": "add-a-training-template",
    "carme_hub.notice_channels": "add-a-notice-channel",
}
REFERENCE = (ROOT / "docs/reference/entry-points.md").read_text()


def page(name: str) -> str:
    return (ROOT / "docs/howto" / f"{name}.md").read_text()


def code() -> list[Path]:
    return [EXAMPLE / "pyproject.toml", *EXAMPLE.rglob("*.py")]


@pytest.mark.parametrize("name", PAGES.values())
def test_a_page_fits_on_a_screen_and_its_code_is_the_packages(name: str) -> None:
    text = page(name)
    assert len(text.splitlines()) < 48
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        assert any(block in file.read_text() for file in code()), block


def test_there_is_a_page_for_each_kind_and_the_package_has_one_of_each() -> None:
    project: dict[str, Any] = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    assert set(project["entry-points"]) == GROUPS == set(PAGES)
    for group, name in PAGES.items():
        assert f'[project.entry-points."{group}"]' in page(name)
        assert re.search(rf"^\| `{group}` \|.*\(\.\./howto/{name}\.md\) \|$", REFERENCE, flags=re.MULTILINE)


def test_the_settings_that_name_extensions_are_in_the_reference() -> None:
    for module in (apps, login_policies, notice_channels, policy_rules, registry):
        [row] = re.findall(rf"^\| `{module.POINT.group}` \|.*$", REFERENCE, flags=re.MULTILINE)
        assert f"`{module.POINT.setting}`" in row


def test_the_package_imports_only_what_the_reference_lists() -> None:
    listed = REFERENCE.partition("## Names to import")[2]
    for file in EXAMPLE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if module.startswith("carme_hub.training"):
                assert "`carme_hub.training`" in listed
            elif isinstance(node, ast.ImportFrom) and module.startswith("carme_hub."):
                for name in node.names:
                    whole = f"`{module}.{name.name}`" in listed
                    assert whole or re.search(rf"`{module}` \([^)]*`{name.name}`", listed), (file, name.name)


def test_we_register_no_entry_points_of_these_groups_ourselves() -> None:
    """Ours are in the code: metadata of an installation that is old would hide what is new."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    assert GROUPS.isdisjoint(parser["options.entry_points"])
