"""The docs say what is there: settings, commands, links, examples."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rig.extension import extension, installed_extension
from traitlets.config import PyFileConfigLoader

from carme_hub.auth.authenticator import CarmeAuthenticator
from carme_hub.config import ROLES
from carme_hub.spawners.slurm.batchspawner_names import KEPT, REPLACED, BatchSpawnerBase

__all__ = ["extension", "installed_extension"]
ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md"), *ROOT.glob("*.md")])


@pytest.fixture(scope="module")
def traits() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_traits", DOCS / "traits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_what_the_classes_say(traits: ModuleType) -> None:
    for name, text in traits.pages().items():
        page = DOCS / "reference" / name
        assert page.exists(), f"run: python docs/traits.py ({name} is missing)"
        assert page.read_text() == text, f"run: python docs/traits.py ({name} is old)"


def test_every_setting_of_ours_has_help_and_is_documented(traits: ModuleType) -> None:
    text = "\n".join(page for name, page in traits.pages().items() if name != "cli.md")
    undocumented = []
    for cls in traits.configurables():
        for name, trait in traits.own_traits(cls):
            assert len(trait.help) > 20, f"{cls.__name__}.{name} has no help worth the name"
            if f".{name}\n" not in text and f".{name}`" not in text:
                undocumented.append(f"{cls.__name__}.{name}")
    assert undocumented == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{target}"
        if anchor:
            assert anchor in anchors(found), f"{target}"


def anchors(page: Path) -> set[str]:
    """Return the anchors that a Markdown page's headings make."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_page_can_be_reached_from_the_index() -> None:
    seen: set[Path] = set()
    ahead = [DOCS / "index.md"]
    while ahead:
        page = ahead.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        ahead += [(page.parent / link).resolve() for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())]
    of_the_site = {DOCS / "site.md", *DOCS.glob("*/index.md")}  # Sphinx's tree of the same pages
    assert sorted(set(DOCS.rglob("*.md")) - seen - of_the_site) == []


def test_every_name_of_batchspawner_that_the_hub_reads_is_in_the_table_of_names() -> None:
    read = {name for name in BatchSpawnerBase.class_traits(config=True) if name.startswith("req_")}
    assert read == KEPT.keys() | {name for name in REPLACED if name.startswith("req_")}


def test_every_role_and_its_scopes_are_in_the_reference() -> None:
    page = (DOCS / "reference" / "roles.md").read_text()
    for role in ROLES:
        (row,) = re.findall(rf"^\| `{role['name']}` \|.*$", page, flags=re.MULTILINE)
        assert set(re.findall(r"`([a-z:\-]+)`", row.split("|")[3])) == set(role["scopes"])


CONFIGURATIONS = [ROOT / "jupyterhub_config.py", *sorted((ROOT / "examples").rglob("jupyterhub_config.py"))]


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: file.parent.name)
def test_every_example_can_be_read_and_names_only_settings_that_exist(
    file: Path, traits: ModuleType, extension: Path
) -> None:
    config: Any = PyFileConfigLoader(file.name, str(file.parent)).load_config()
    known = {cls.__name__: cls for cls in traits.public_classes()}
    for section, values in config.items():
        for name in values:
            if section in known:
                assert name in known[section].class_trait_names(config=True), f"{section}.{name}"
    assert not CarmeAuthenticator(config=without_login(config)).allow_all


def without_login(config: Any) -> Any:
    """Leave out the login class: single sign-on is an extra."""
    config = config.copy()
    config.CarmeAuthenticator.pop("authenticator_class", None)
    return config


def test_each_journey_names_at_most_nine_files_that_are_there() -> None:
    text = (DOCS / "explanation/journeys.md").read_text()
    journeys = {
        part.split("\n", 1)[0]: re.findall(r"^\d+\. `([^`]+)`", part, re.MULTILINE) for part in text.split("\n## ")[1:]
    }
    assert len(journeys) == 5
    for name, files in journeys.items():
        assert 1 < len(files) <= 9, name
        assert [file for file in files if not (ROOT / file).is_file()] == [], name


def test_the_crash_points_of_the_reference_are_those_of_the_code() -> None:
    code = "\n".join(
        file.read_text() for top in ("carme_hub", "spawners") for file in sorted((ROOT / top).rglob("*.py"))
    )
    labels = set(re.findall(r'crash_point\("([a-z-]+)"\)', code))
    page = (ROOT / "docs" / "reference" / "crash-points.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, flags=re.MULTILINE)) == labels
