"""An error in an installed package names the setting, the package and what to do, and loosens no limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.extension import reread
from traitlets import Integer
from traitlets.config import Config, LoggingConfigurable

from carme_hub import entry_points
from carme_hub.accounting import policy_rules
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.auth import login_policies
from carme_hub.containers import registry
from carme_hub.containers.registry import RUNTIMES, runtime
from carme_hub.containers.runtime import ContainerRequest, Image
from carme_hub.entry_points import ExtensionPoint
from carme_hub.errors import ConfigError, ContainerError
from carme_hub.services import notice_channels
from carme_hub.sessions import profile_fields
from carme_hub.sessions.profile_fields import profile_field
from carme_hub.spawners.apps import settings as apps
from carme_hub.spawners.apps.settings import CarmeApps
from carme_hub.training.templates import TemplateError, find_template, installed, templates
from carme_hub.training.templates.gallery import Gallery

POINTS = (
    *(apps.POINT, login_policies.POINT, notice_channels.POINT),
    *(policy_rules.POINT, profile_fields.POINT, registry.POINT),
)
Add = Callable[..., None]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Add a package with one entry point, by the files that an installer writes."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def added(package: str, group: str, name: str, value: str, **modules: str) -> None:
        info = tmp_path / f"{package.replace('-', '_')}-2.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.1\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
        for module, text in modules.items():
            (tmp_path / f"{module}.py").write_text(text)
        reread()

    yield added
    entry_points.installed.cache_clear()


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.group)
def test_a_name_that_no_package_has_is_said_with_those_that_there_are(point: ExtensionPoint, add: Add) -> None:
    add("site-things", point.group, "there", "nowhere:thing")
    with pytest.raises(ConfigError) as raised:
        point.load("thare")
    said = str(raised.value)
    assert said.startswith(f"c.{point.setting} names 'thare', and no installed package has it.")
    assert f"packages have there (entry points {point.group})" in said
    for ours in point.ours:
        assert ours in said


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.group)
def test_a_package_that_cannot_be_imported_is_named_with_its_error(point: ExtensionPoint, add: Add) -> None:
    add("site-things", point.group, "gone", "carme_test_gone:thing", carme_test_gone="import no_such_library")
    with pytest.raises(ConfigError) as raised:
        point.load("gone")
    assert str(raised.value) == (
        f"c.{point.setting}: 'gone' of the package site-things 2.1 (carme_test_gone:thing) cannot be imported: "
        "ModuleNotFoundError: No module named 'no_such_library'. Install what it requires or another version of it, or "
        "remove the name from the setting."
    )


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.group)
def test_a_thing_of_another_kind_is_refused_with_what_it_must_be(point: ExtensionPoint, add: Add) -> None:
    add("site-things", point.group, "odd", "carme_test_odd:THING", carme_test_odd="THING = 7")
    with pytest.raises(ConfigError) as raised:
        point.load("odd")
    said = str(raised.value)
    assert "site-things 2.1 (carme_test_odd:THING) is of the type int, which is not " in said
    assert point.what in said


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.group)
def test_two_packages_of_one_name_are_both_named_and_neither_is_taken(point: ExtensionPoint, add: Add) -> None:
    add("things-one", point.group, "both", "carme_test_one:thing", carme_test_one="raise SystemExit")
    add("things-two", point.group, "both", "carme_test_two:thing", carme_test_two="raise SystemExit")
    with pytest.raises(ConfigError, match="Uninstall all but one") as raised:
        point.load("both")
    assert "things-one 2.1 (carme_test_one:thing) and things-two 2.1 (carme_test_two:thing)" in str(raised.value)


def test_a_class_that_cannot_be_set_up_is_named_with_its_error(add: Add) -> None:
    text = "class Rule:\n    def __init__(self): raise ValueError('no clock')"
    add("site-things", "carme_hub.policy_rules", "rule", "carme_test_rule:Rule", carme_test_rule=text)
    with pytest.raises(ConfigError, match=r"site-things 2\.1 .* cannot be created: ValueError: no clock"):
        policy_rules.policy_rules(CarmeQuotas(policy_rules=["rule"]))


def test_a_setting_that_names_one_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="names 'print' twice"):
        policy_rules.policy_rules(CarmeQuotas(policy_rules=[print, print]))


def test_a_class_with_traits_has_settings_of_its_own() -> None:
    class Limit(LoggingConfigurable):
        most = Integer(1).tag(config=True)

        def __call__(self, _request: Any) -> None:
            """Never called here."""

    parent = CarmeQuotas(config=Config(Limit={"most": 5}))
    [made] = policy_rules.POINT.load_all([Limit], parent).values()
    assert made.most == 5


def test_no_package_takes_the_place_of_what_is_ours(add: Add) -> None:
    add("evil", "carme_hub.runtimes", "bubblewrap", "carme_test_evil:Runtime", carme_test_evil="raise SystemExit")
    assert runtime("bubblewrap") is RUNTIMES["bubblewrap"]
    add("evil-app", "carme_hub.apps", "tensorboard", "carme_test_evil:APP")
    assert [app["title"] for app in CarmeApps().entries()] == [
        "TensorBoard",
        "MLflow",
        "Optuna",
        "VS Code",
        "New from template",
    ]


RUNTIME = "class R:\n    name = 'r'\n    formats = frozenset({'FORMAT'})\n    def render(self, request): return None"


def test_a_runtime_of_a_format_that_there_is_not_is_refused(add: Add) -> None:
    add("site-things", "carme_hub.runtimes", "tar", "carme_test_tar:R", carme_test_tar=RUNTIME.replace("FORMAT", "tar"))
    with pytest.raises(ConfigError, match=r"whose objects are not a container runtime: .* frozenset of dir, sqfs"):
        runtime("tar")


def test_a_runtime_that_renders_no_plan_is_refused_when_it_is_used(add: Add) -> None:
    add("site-things", "carme_hub.runtimes", "none", "carme_test_r:R", carme_test_r=RUNTIME.replace("FORMAT", "dir"))
    request = ContainerRequest(Image("lab", "/opt/lab"), ("true",), "/home/alice", "/home/alice/.carme/sessions/u")
    with pytest.raises(ContainerError, match="none rendered a NoneType instead of a Plan"):
        runtime("none").render(request)


def test_an_app_of_a_package_is_held_to_the_rules_of_apps(add: Add) -> None:
    text = "APP = {'command': ['serve', '--port', '80']}"
    add("site-things", "carme_hub.apps", "open", "carme_test_app:APP", carme_test_app=text)
    with pytest.raises(ConfigError, match=r"'open' of the package site-things 2\.1: neither .* has \{unix_socket\}"):
        CarmeApps(config=Config(CarmeApps={"offered": ["open"]})).files()


def test_a_field_must_have_the_name_of_its_entry_point(add: Add) -> None:
    text = "from carme_hub.domain.sessions.profile import ProfileField\nF = ProfileField('other', 'Other')"
    add("site-things", "carme_hub.profile_fields", "field", "carme_test_field:F", carme_test_field=text)
    with pytest.raises(ConfigError, match=r"site-things 2\.1 has a field with the name 'other'; both names must be"):
        profile_field(None)("field")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ddp", "carme_test_script", "Carme Hub has a template of this name"),
        ("mine", "no_such_module", "no_such_module is not a Python file"),
        ("mine", "carme_test_raises.inner", "cannot be found: ZeroDivisionError"),
        ("mine", "carme_test_wrong", "is not a template: invalid syntax"),
        ("Mine!", "carme_test_script", "must have only lower-case letters"),
    ],
)
def test_a_broken_template_is_told_in_its_place_and_hides_no_other(
    add: Add, name: str, value: str, said: str, tmp_path: Path
) -> None:
    modules = {"carme_test_script": '"""T"""', "carme_test_raises": "1 / 0", "carme_test_wrong": "def ("}
    before = [each.name for each in templates()]
    add("site-things", installed.GROUP, name, value, **modules)
    found = templates()
    assert sorted(each.name for each in found) == sorted([*before, name])
    [broken] = [each for each in found if each.broken]
    assert said in broken.broken
    assert broken.broken.endswith("(package site-things 2.1)")
    page = Gallery("/user/alice/templates", tmp_path).page()
    assert "It cannot be used: " in page
    assert page.count("<button") == 2 * len(before)
    if name == "ddp":
        assert not find_template("ddp").broken
    if name == "mine":
        with pytest.raises(TemplateError, match="The template mine cannot be copied"):
            find_template("mine")


def test_two_templates_of_one_name_are_both_named(add: Add) -> None:
    for number in ("one", "two"):
        add(f"things-{number}", installed.GROUP, "mine", "carme_test_script", carme_test_script='"""T"""')
    [broken] = [each.broken for each in templates() if each.name == "mine"]
    assert broken == (
        "More than one package has it. Uninstall all but one. (package things-one 2.1 and package things-two 2.1)"
    )
