"""A terminal of JupyterLab finds the image's programs first, and what its user has set counts as in a login shell."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from carme_hub.paths import share_folder
from carme_hub.spawners.apps.settings import BASHRC

IMAGE = "/opt/venv/bin:/opt/conda/bin:/usr/bin:/bin"


def typed(home: Path, line: str, path: str = IMAGE) -> str:
    """Return what a line typed into the terminal prints last."""
    bash = shutil.which("bash")
    assert bash is not None
    command = [bash, "--rcfile", str(share_folder() / "apps" / BASHRC), "-i"]
    done = subprocess.run(
        command,
        input=f"{line}\nexit\n",
        env={"HOME": str(home), "PATH": path, "TERM": "dumb"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr


def test_the_images_programs_come_first_though_the_system_sets_path_anew(tmp_path: Path) -> None:
    assert Path("/etc/profile").is_file()
    folders = typed(tmp_path, 'echo "$PATH"').split(":")
    assert folders[:4] == IMAGE.split(":")
    assert "/usr/local/bin" in folders  # the system's own, once and last
    assert len(folders) == len(set(folders))


@pytest.mark.parametrize("file", [".bash_profile", ".bash_login", ".profile", ".bashrc"])
def test_what_the_user_adds_counts(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text('PATH="$HOME/mine:$PATH"\nexport WORD=said\n')
    assert typed(tmp_path, 'echo "$PATH $WORD"').startswith(f"{tmp_path}/mine:{IMAGE}")
    assert typed(tmp_path, 'echo "$PATH $WORD"').endswith(" said")


def test_the_first_of_the_users_files_is_read_as_in_a_login_shell(tmp_path: Path) -> None:
    (tmp_path / ".bash_profile").write_text("export WORD=first\n")
    (tmp_path / ".profile").write_text("export WORD=second\n")
    assert typed(tmp_path, 'echo "$WORD"') == "first"


def test_nothing_of_ours_is_left_in_the_shell(tmp_path: Path) -> None:
    assert typed(tmp_path, "set | grep -c '^carme' || true") == "0"
