"""``carme-hub image`` from a terminal: what is printed, what is refused, and what sessions keep from `collect`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rig.command_line import CommandLine, line
from rig.foreign_images import SYSTEM, Entry, layer, write_layout

from carme_hub.cli.images.add import AddApp, RebuildApp, UpdateApp
from carme_hub.cli.images.keep import CollectApp, PinApp, RemoveApp, UnpinApp
from carme_hub.cli.images.show import CheckApp, ExplainApp, ListApp, ShowApp
from carme_hub.containers.store.folder import StoreFolder
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.store.engine import CarmeStore
from carme_hub.store.sessions import SessionStore

__all__ = ["line"]


@pytest.fixture
def store(open_path: Path) -> Path:
    made = open_path / "store"
    made.mkdir(mode=0o755)
    return made


def lay(store: Path, text: bytes, name: str = "layout") -> str:
    """Write an image with this text, and return how ``image add`` names it."""
    shutil.rmtree(store.parent / name, ignore_errors=True)
    write_layout(store.parent / name, layer(SYSTEM), layer((Entry("usr/text", text),)))
    return f"oci:{store.parent / name}"


def session(line: CommandLine, image: str, digest: str) -> None:
    """Write the row of a session that runs."""
    engine = CarmeStore(url=line.url).open()
    request = Request("cpu", image, image_digest=digest)
    SessionStore(engine).add(Session("0f9a", "lab", "alice", "", request, SessionState.RUNNING, time.time()))
    engine.dispose()


def test_an_image_is_added_shown_updated_and_checked(line: CommandLine, store: Path, tmp_path: Path) -> None:
    where = f"--store={store}"
    code, out, err = line.run(AddApp, "lab", lay(store, b"one"), where, "--description=For labs")
    assert (code, out) == (0, f"{store}/lab\n")
    assert "Signatures are not checked" in err
    assert "lab is sha256:" in err
    [row] = line.json(ListApp, where)
    digest = row["digest"]
    assert (row["name"], row["source"]) == ("lab", f"oci:{store.parent}/layout")
    assert digest[:19] in line.run(ListApp, where)[1]
    assert line.json(ShowApp, digest[:20], where)["names"][0]["name"] == "lab"
    assert "packages" not in line.run(ShowApp, "lab", where)[1]
    shutil.copy(store / "lab/image.yaml", tmp_path / "kept.yaml")
    assert f"It is {digest}, from oci:" in line.run(ExplainApp, str(tmp_path / "kept.yaml"))[1]
    assert line.run(UpdateApp, "lab", where)[1].startswith(f"lab is {digest}, as since ")
    lay(store, b"two")
    said = line.json(UpdateApp, "lab", where)
    assert (said["changed"], said["before"]) == (True, digest)
    assert line.run(CheckApp, where)[0] == 0
    (store / "lab/usr/text").write_text("changed")
    code, out, _ = line.run(CheckApp, "lab", where)
    assert (code, out) == (1, f"{said['digest']}: 'usr/text' has another content\n")
    # The source has something else now.
    code, _, err = line.run(RebuildApp, "again", str(tmp_path / "kept.yaml"), where)
    assert code == 1
    assert "is another image now" in err
    lay(store, b"one")
    assert line.run(RebuildApp, "again", str(tmp_path / "kept.yaml"), where)[1].strip() == f"{store}/again"


def test_what_sessions_and_settings_name_is_not_collected(line: CommandLine, store: Path) -> None:
    where, now = f"--store={store}", "--keep-days=0"
    digests = []
    for text in (b"running", b"set", b"pinned", b"free", b"named"):
        line.run(AddApp if not digests else UpdateApp, "lab", *([lay(store, text)] if not digests else []), where)
        if digests:
            lay(store, text)
            line.run(UpdateApp, "lab", where)
        digests.append(line.json(ListApp, where)[0]["digest"])
    running, of_settings, pinned, free, named = digests
    session(line, "lab", running)
    with line.file.open("a") as file:
        path = f"{store}/.digests/{of_settings.replace(':', '-')}"
        file.write(f"c.SlurmContainerSpawner.images = [{{'name': 'old', 'path': {path!r}}}]\n")
    assert line.run(PinApp, pinned, where)[0] == 2  # without a reason
    assert line.run(PinApp, pinned, where, "--reason=paper")[0] == 0
    found = {each["digest"]: each["kept"] for each in line.json(CollectApp, where, now, "--dry-run")["images"]}
    assert found == {
        running: "session 0f9a of alice has it",
        of_settings: "the settings name it: image old",
        pinned: found[pinned],
        free: "",
        named: "lab stands for it",
    }
    assert len(StoreFolder(store).images()) == 5
    code, _, err = line.run(CollectApp, where, now)  # there is no terminal to ask on
    assert (code, len(StoreFolder(store).images())) == (2, 5)
    assert "--yes" in err
    assert line.run(CollectApp, where, now, "--yes")[0] == 0
    assert {each.name for each in StoreFolder(store).images()} == {
        each.replace(":", "-") for each in digests if each != free
    }
    assert line.run(UnpinApp, pinned, where)[0] == 0
    assert line.run(RemoveApp, "lab", where)[0] == 0
    line.database.unlink()
    code, _, err = line.run(CollectApp, where, now, "--yes")
    assert (code, len(StoreFolder(store).images())) == (2, 4)  # the sessions are unknown, not gone
    assert err


@pytest.mark.parametrize(
    ("app", "argv", "said"),
    [
        (AddApp, ["lab"], "neither a folder nor a file"),
        (AddApp, ["Lab", "oci:/nowhere"], "not a valid image name"),
        (AddApp, ["lab", "docker://user:secret@host/a:1"], "--authfile"),
        (AddApp, [], "usage"),
        (UpdateApp, ["lab"], "not a name"),
        (ShowApp, ["lab"], "no image 'lab'"),
        (RemoveApp, ["lab"], "not a name"),
        (ExplainApp, ["/etc/hostname"], "not the recipe"),
        (AddApp, ["lab", "oci:/nowhere", "--authfile=/etc/passwd"], "0600"),
        (AddApp, ["lab", "oci:/nowhere", "--polcy=x"], "Did you mean --policy?"),
    ],
)
def test_what_cannot_be_done_is_said(
    line: CommandLine, store: Path, app: type, argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = line.run(app, *argv, f"--store={store}")
    assert code in (1, 2)
    assert said in err
    assert "Traceback" not in err


def test_ctrl_c_ends_the_work_and_everything_of_it(store: Path, tmp_path: Path) -> None:
    many = [Entry(f"usr/lib/{number}", os.urandom(20_000)) for number in range(2000)]
    write_layout(tmp_path / "layout", layer((*SYSTEM, *many)))
    argv = [sys.executable, "-m", "carme_hub.cli", "image", "add", "lab", f"oci:{tmp_path}/layout", f"--store={store}"]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for said in process.stderr:
        if "Unpacking" in said:
            break
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    process.stderr.close()
    assert [path.name for path in store.iterdir() if path.name not in (".blobs", ".locks")] == []
    assert json.loads((tmp_path / "layout/index.json").read_text())
