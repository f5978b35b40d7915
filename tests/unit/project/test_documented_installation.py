"""The steps that the docs give for a real site follow from each other; `make site` runs them on booted machines."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from rig.documented import BY_HAND, BY_SETUP, Instructions, NotUnderstood, Step, read, set_in

from carme_hub.cli.setup.answers import from_document

ROOT = Path(__file__).resolve().parents[3]
#: Folders that Debian has, or that its packages bring; and those of which it has whatever a step uses.
FOLDERS = {"/opt", "/root", "/etc/systemd/system", "/etc/sudoers.d", "/usr/local/etc", "/etc/nginx/conf.d"}
OF_DEBIAN = ("/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/dev/")
#: Programs in the installation's folder that pip and other packages bring.
OF_PACKAGES = ("pip", "python", "jupyterhub")
#: What `carme-hub setup` writes and a later step uses.
OF_SETUP = ("/etc/carme-hub/nginx.conf",)
PATH = re.compile(r"(?<![\w.:/<-])/[\w.@-]+(?:/[\w.@-]+)*")
VENV = "/opt/carme-hub"


@pytest.fixture(scope="module", params=[BY_HAND, BY_SETUP])
def instructions(request: pytest.FixtureRequest) -> Instructions:
    return read(request.param)


def commands(step: Step) -> list[list[str]]:
    """Return the words of each command of a step; what a here-document writes is left out."""
    text = re.sub(r"<<'(\w+)'\n.*?\n\1\n", "\n", step.text, flags=re.DOTALL)
    return [shlex.split(line) for line in text.splitlines() if line.strip()]


def made_by(step: Step) -> set[str]:
    """Return the paths that a step makes."""
    if step.way != "run":
        return {step.path}
    made = set()
    for words in commands(step):
        last, program = words[-1], words[0]
        if ">" in words:
            made.add(words[words.index(">") + 1])
        elif program == "install" and "-d" in words:
            made |= {word for word in words if word.startswith("/")}
        elif program in ("install", "cp"):
            made.add(last + Path(words[-2]).name if last.endswith("/") else last)
        elif program == "ln" or words[:3] == ["python3", "-m", "venv"]:
            made.add(last)
        elif words[:2] == [f"{VENV}/bin/carme-hub", "setup"]:
            made |= set(OF_SETUP)
    return made


def in_the_wheel(path: str) -> bool:
    """Return whether the wheel, or a package that it needs, installs a path below the installation's folder."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    data = {
        f"{VENV}/{target}/{Path(file).name}"
        for target, files in parser["options.data_files"].items()
        for file in files.split()
    }
    ours = re.findall(r"^(\S+) =", parser["options.entry_points"]["console_scripts"], flags=re.MULTILINE)
    return path in data or path in {f"{VENV}/bin/{name}" for name in (*ours, *OF_PACKAGES)}


def missing(instructions: Instructions) -> list[str]:
    """Return what a step uses that no step before it made, and that is neither given nor Debian's."""
    there, wrong = set(instructions.given), []
    for step in instructions.steps:
        makes = made_by(step)
        # A folder in which a file is written must be there; a command's folders it makes in order, line by line.
        text = re.sub(r"--home-dir \S+", "", step.text)  # useradd makes none for a system's user, and needs none
        needed = {str(Path(path).parent) for path in makes} | set(PATH.findall(text))
        for path in sorted(needed - makes):
            known = there | makes
            folders = {str(Path(each).parent) for each in known}
            if path in known or path in folders or path in FOLDERS or path.startswith(OF_DEBIAN):
                continue
            if path.startswith(f"{VENV}/") and VENV in known and in_the_wheel(path):
                continue
            wrong.append(f"{step.place}: {path}")
        there |= makes
    return wrong


def test_every_block_is_a_script_of_bash_or_a_file_of_python(instructions: Instructions) -> None:
    assert len(instructions.steps) > 10
    for step in instructions.steps:
        if step.way == "run":
            done = subprocess.run(["bash", "-n"], input=step.text, capture_output=True, text=True, timeout=20)
            assert done.returncode == 0, f"{step.place}: {done.stderr}"
        elif step.path.endswith(".py"):
            compile(step.text, step.place, "exec")
        elif step.path.endswith(".yaml"):
            assert from_document(yaml.safe_load(step.text), step.place), step.place
        elif step.way == "set in":
            assert all(re.fullmatch(r"\w+=\S+", line) for line in step.text.splitlines()), step.place


def test_what_a_step_uses_was_made_before_or_is_given(instructions: Instructions) -> None:
    assert missing(instructions) == []


@pytest.mark.parametrize(
    ("way", "left_out"),
    [
        (BY_HAND, "python3 -m venv"),
        (BY_HAND, "libexec/carme-submit /usr"),
        (BY_HAND, "image build"),
        (BY_HAND, "install -d -o carme-hub"),
        (BY_SETUP, "python3 -m venv"),
        (BY_SETUP, "image build"),
        (BY_SETUP, "host: hub"),
        (BY_SETUP, "carme-hub setup"),
    ],
)
def test_a_step_that_is_missing_is_found(way: str, left_out: str) -> None:
    instructions = read(way)
    assert any(left_out in step.text for step in instructions.steps)
    kept = tuple(step for step in instructions.steps if left_out not in step.text)
    assert missing(Instructions(kept, instructions.given)) != []


def test_files_of_other_pages_come_where_the_page_leads_to_them() -> None:
    pages = [step.page for step in read(BY_HAND).steps]
    assert set(pages) == {"howto/real-site.md", "howto/submit-as-the-user.md"}
    assert pages[0] == pages[-1] == "howto/real-site.md"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```\ntrue\n```\n", "no comment says where"),
        ("words\n", "has no block that runs"),
        ("<!-- on: hub, as: root -->\nwords\n", "stands before no block"),
        ("<!-- on: hub, as: root -->\n", "stands before no block"),
        ("<!-- on: moon, as: root -->\n```\ntrue\n```\n", "is not understood"),
        ("<!-- on: hub -->\n```\ntrue\n```\n", "is not understood"),
        ("<!-- on: hub, as: root -->\n```\ntrue\n", "has no end"),
        ("<!-- then: page.md#nowhere -->\n", "no section #nowhere"),
    ],
)
def test_a_page_that_leaves_something_open_is_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "page.md").write_text(f"# Page\n\n{text}")
    with pytest.raises(NotUnderstood, match=why):
        read("page.md", tmp_path)


def test_sections_stand_where_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "# Page\n<!-- given: /a, /b -->\n1. First\n   <!-- on: hub nodes, as: root -->\n"
        "   ```\n   one\n     two\n   ```\n"
        "   <!-- then: page.md#more-of-it -->\n<!-- not run: an example -->\n```\nnever\n```\n"
        "## Other\n```\nnot ours\n```\n## More of it\n<!-- on: hub, set in: /c -->\n```\nA=1\n```\n"
    )
    found = read("page.md", tmp_path)
    assert found.given == ("/a", "/b")
    assert [(step.text, step.machines, step.way) for step in found.steps] == [
        ("one\n  two\n", ("hub", "nodes"), "run"),
        ("A=1\n", ("hub",), "set in"),
    ]


def test_a_setting_replaces_the_one_that_is_there() -> None:
    assert set_in("# x\nTimeout=1\nOther=2\n", "timeout=9\nNew=3\n") == "# x\nOther=2\ntimeout=9\nNew=3\n"
