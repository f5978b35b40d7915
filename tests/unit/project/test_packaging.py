"""What is in the folders is in the package, a wheel works by itself, and every extra is documented."""

from __future__ import annotations

import ast
import configparser
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LINKED = ("sandbox", "services", "spawners")


@pytest.fixture(scope="module")
def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_every_package_folder_is_listed(setup_cfg: configparser.ConfigParser) -> None:
    listed = setup_cfg["options"]["packages"].split()
    folders = {
        ".".join(("carme_hub", *init.parent.relative_to(base).parts))
        for base in [ROOT / "carme_hub"]
        for init in base.rglob("__init__.py")
        if not any(part in LINKED for part in init.relative_to(base).parts)
    }
    for name in LINKED:
        for init in (ROOT / name).rglob("__init__.py"):
            folders.add(".".join(("carme_hub", *init.parent.relative_to(ROOT).parts)))
    assert sorted(listed) == sorted(folders)


def test_every_folder_with_code_is_a_package() -> None:
    for base in ("carme_hub", *LINKED):
        for file in (ROOT / base).rglob("*.py"):
            assert (file.parent / "__init__.py").exists(), f"{file.parent} has no __init__.py"


def installed(file: str) -> str:
    """Return where a file of ``share`` is installed: Jupyter looks for settings below ``etc``."""
    return re.sub("^share(?=/jupyter/jupyter_server_config.d/)", "etc", file)


def test_every_shared_file_is_listed(setup_cfg: configparser.ConfigParser) -> None:
    every = {(target, file) for target, files in setup_cfg["options.data_files"].items() for file in files.split()}
    listed = {(target, file) for target, file in every if not file.startswith("deploy/")}
    files = {str(file.relative_to(ROOT)) for file in (ROOT / "share").rglob("*") if file.is_file()}
    there = {(str(Path(installed(file)).parent), file) for file in files if "__pycache__" not in file}
    assert listed == there


def test_every_file_for_monitoring_is_listed(setup_cfg: configparser.ConfigParser) -> None:
    targets = {file: target for target, files in setup_cfg["options.data_files"].items() for file in files.split()}
    files = [file for file in (ROOT / "deploy/monitoring").rglob("*") if file.is_file() and file.suffix != ".py"]
    there = {str(file.relative_to(ROOT)): file for file in files if "__pycache__" not in file.parts}
    assert {file for file in targets if file.startswith("deploy/monitoring/")} == set(there)
    for file in there:
        assert targets[file] == f"share/carme_hub/{Path(file).parent}"


def test_every_extra_says_what_it_brings(setup_cfg: configparser.ConfigParser) -> None:
    extras = {
        extra: {re.match(r"[\w-]+", line)[0] for line in lines.split()}
        for extra, lines in setup_cfg["options.extras_require"].items()
    }
    page = (ROOT / "docs/reference/extras.md").read_text()
    rows = re.findall(r"^\| `([a-z]+)` \| [a-z]+ \| ([^|]+) \|", page, flags=re.MULTILINE)
    assert {extra: set(brings.split(", ")) for extra, brings in rows} == extras
    table = "\n".join(re.findall(r"^\| `[a-z]+`, .*$", (ROOT / "README.md").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"`([a-z]+)`", table)) == set(extras)
    text = (ROOT / "setup.cfg").read_text()
    assert [extra for extra in extras if not re.search(rf"^# .+\n{extra} =$", text, flags=re.MULTILINE)] == []


def test_the_extension_of_jupyterlab_has_our_version() -> None:
    package = json.loads((ROOT / "share/jupyter/labextensions/carme-hub/package.json").read_text())
    assert package["version"] == _version()


def test_every_package_that_the_hub_imports_is_asked_for(setup_cfg: configparser.ConfigParser) -> None:
    asked = _names(setup_cfg["options"]["install_requires"])
    for extra in ("docker", "pyslurm", "traces"):
        asked |= _names(setup_cfg["options.extras_require"][extra])
    modules = {name.replace("-", "_") for name in asked} - {"python_dateutil", "pyyaml"} | {"dateutil", "yaml"}
    # Of dockerspawner, and of the server in a user's container, where the apps' extension runs.
    modules |= (
        {"opentelemetry", "docker", "requests", "jupyter_server", "jupyter_core"}
        | sys.stdlib_module_names
        | {"carme_hub"}
    )
    imported = {
        (name.partition(".")[0], str(file.relative_to(ROOT)))
        for base in ("carme_hub", *LINKED)
        for file in (ROOT / base).rglob("*.py")
        if not {"training", "gpu"} & set(file.parts) and not file.is_relative_to(ROOT / "carme_hub" / "node")
        for node in ast.walk(ast.parse(file.read_text()))
        for name in _imports(node)
    }
    assert sorted(each for each in imported if each[0] not in modules) == []


def test_every_package_has_its_reason(setup_cfg: configparser.ConfigParser) -> None:
    page = (ROOT / "docs" / "explanation" / "libraries.md").read_text()
    rows = [line.split("|")[1] for line in page.partition("## Not used")[0].splitlines() if line.startswith("| ")]
    listed = {name.strip(" ★").lower() for row in rows for name in re.split(r",| with |\(", row)}
    asked = _names(setup_cfg["options"]["install_requires"])
    for extra in set(setup_cfg["options.extras_require"]) - {"docs", "test"}:
        asked |= _names(setup_cfg["options.extras_require"][extra])
    assert sorted(asked - listed) == []


def _names(requirements: str) -> set[str]:
    lines = (line for line in requirements.splitlines() if line and not line.startswith("#"))
    return {re.split(r"[\[<>=]", line)[0].lower() for line in lines}


def _imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []


@pytest.mark.parametrize("name", LINKED)
def test_the_links_are_links(name: str) -> None:
    link = ROOT / "carme_hub" / name
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{name}"


def run(*argv: str | Path) -> str:
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_wheel_of_a_clean_clones_sdist_works_by_itself(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    if (ROOT / ".git").exists():
        run("git", "clone", "--quiet", ROOT, clone)
        tracked = set(run("git", "-C", clone, "ls-files").split())
    else:
        shutil.copytree(ROOT, clone, symlinks=True, ignore=shutil.ignore_patterns(".venv", "build", "*.egg-info"))
        tracked = {str(file.relative_to(clone)) for file in clone.rglob("*") if file.is_file()}
    uv = Path(sys.executable).with_name("uv")
    # The sdist, and the wheel of it.
    run(uv, "build", "--quiet", "--python", sys.executable, "--out-dir", tmp_path, clone)
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    for file in sorted(tracked):
        top, _, rest = file.partition("/")
        if not rest.endswith(".py") and top != "share":
            continue
        if top == "share":
            assert any(name.endswith(f".data/data/{installed(file)}") for name in inside), file
        elif top == "carme_hub" or top in LINKED:
            name = file if top == "carme_hub" else f"carme_hub/{file}"
            assert name in inside, file
    fresh = tmp_path / "fresh"
    run(uv, "venv", "--quiet", "--python", sys.executable, fresh)
    run(uv, "pip", "install", "--quiet", "--python", fresh / "bin/python", wheel)
    assert run(fresh / "bin/carme-hub", "--version").strip() == _version()
    where = run(fresh / "bin/python", "-c", "from carme_hub.paths import share_folder as f; print(f())").strip()
    assert where == str(fresh / "share" / "carme_hub")
    code = """if True:
        from importlib.metadata import entry_points
        for group in ("jupyterhub.spawners", "jupyterhub.authenticators"):
            for point in entry_points(group=group):
                if point.name in ("carme", "carme-slurm"):
                    print(point.name, point.load().__name__)
    """
    assert set(run(fresh / "bin/python", "-c", code).splitlines()) == {
        "carme CarmeAuthenticator",
        "carme-slurm SlurmContainerSpawner",
    }


def _version() -> str:
    import carme_hub

    return carme_hub.__version__
