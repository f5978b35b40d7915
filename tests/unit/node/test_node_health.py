"""The nodes' health check: what it finds, and that it drains, and resumes only what it drained itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rig.forged_nvml import ForgedNVML

from carme_hub.cli.nodes.check import FILES, write_programs
from carme_hub.node import health_checks
from carme_hub.sandbox.slurm.virtual_driver import LIBRARY

GPU = "{0} uuid GPU-{0}\n{0} minor {0}\n{0} total 40960\n{0} used 0\n{0} ecc 0\n"
#: scontrol as a program: shows the node as a file says, changes it, and keeps what it was told.
SCONTROL = """#!{python}
import json, sys
file = {file!r}
node = json.load(open(file))
if node.get("silent"):
    sys.exit(1)
if sys.argv[1] == "show":
    if "later" in node:  # what the next question finds
        json.dump({{**node, "reason": node["later"]}}, open(file, "w"))
    reason = " Reason=%s [root@1795228267]" % node["reason"] if node["reason"] else ""
    print("NodeName=n1 Gres=%s RealMemory=%s State=%s Partitions=main%s Comment=x" % (
        node["gres"], node["memory"], node["state"], reason))
else:
    words = dict(word.split("=", 1) for word in sys.argv[2:])
    node["told"].append(sys.argv[2:])
    if words["State"] == "DRAIN":
        node["state"], node["reason"] = "IDLE+DRAIN", words["Reason"]
    else:
        node["state"], node["reason"] = "IDLE", ""
    json.dump(node, open(file, "w"))
"""


class NodeWithGpus:
    """A node with two forged GPUs, a forged scontrol, and the health check as a site installs it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.nvml = folder, ForgedNVML(folder)
        self.programs = write_programs(folder / "opt", FILES)
        self.kernel_log, self.file = folder / "kmsg", folder / "node.json"
        self.kernel_log.write_text("")
        (folder / "scontrol").write_text(SCONTROL.format(python=sys.executable, file=str(self.file)))
        (folder / "scontrol").chmod(0o755)
        self.slurm(state="IDLE", reason="", gres="gpu:a100:2(S:0-1),shard:a100:8", memory="64", told=[])
        self.gpus()
        self.more = ""

    def slurm(self, **changes: Any) -> dict[str, Any]:
        found = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.file.write_text(json.dumps({**found, **changes}))
        return {**found, **changes}

    def gpus(self, *more: str) -> None:
        self.nvml.set("".join(f"{line}\n" for line in more) + GPU.format(0) + GPU.format(1))

    def run(self, *argv: str) -> tuple[int, str]:
        config = self.folder / "health.conf"
        config.write_text(
            f"[gpus]\nlibrary = {self.folder / LIBRARY}\nkernel_log = {self.kernel_log}\n"
            f"[slurm]\nscontrol = {self.folder / 'scontrol'}\nstate = {self.folder / 'state'}\n"
            f"[disks]\nfull = {self.folder}:101\nwritable = {self.folder}\n{self.more}"
        )
        line = [sys.executable, "-I", str(self.programs / "carme-node-health"), "--config", str(config), "--node", "n1"]
        done = subprocess.run([*line, *argv], env=self.nvml.environ, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    @property
    def told(self) -> list[list[str]]:
        return list(self.slurm()["told"])


@pytest.fixture
def node(tmp_path: Path) -> NodeWithGpus:
    return NodeWithGpus(tmp_path)


def test_a_well_node_is_left_alone(node: NodeWithGpus) -> None:
    code, said = node.run()
    assert (code, node.told) == (0, [])
    assert "n1: ok: 2 GPUs answer" in said
    assert node.run("--show")[0] == 0
    found = json.loads(node.run("--show", "--json")[1])
    assert (found["node"], found["healthy"]) == ("n1", True)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1 lost 1", "1 of 2 GPUs is lost"),
        ("1 ecc 3", "GPU 1 had 3 uncorrected memory errors"),
        ("1 xid 79", "GPU 1 reported Xid 79"),
    ],
)
def test_a_broken_gpu_drains_the_node_with_words(node: NodeWithGpus, line: str, words: str) -> None:
    node.gpus(line)
    assert node.run("--show")[0] == 1
    assert node.told == [], "--show changes nothing"
    node.gpus(line)
    code, said = node.run()
    assert (code, node.told) == (0, [["NodeName=n1", "State=DRAIN", f"Reason=carme-health: {words}"]]), said


def test_what_it_drained_it_resumes_after_two_good_runs_and_nothing_else(node: NodeWithGpus) -> None:
    node.gpus("1 lost 1")
    node.run()
    node.run()
    assert len(node.told) == 1, "the same reason is not set again"
    node.gpus()
    assert "It stays drained until it was well 2 times in a row." in node.run()[1]
    assert "It is resumed." in node.run()[1]
    assert node.told[-1] == ["NodeName=n1", "State=RESUME"]
    node.slurm(state="IDLE+DRAIN", reason="A fan fails (ada)", told=[])
    for _ in range(3):
        node.run()
    node.gpus("1 lost 1")
    assert "It is out of service already, and is left as it is." in node.run()[1]
    node.slurm(state="DOWN*", reason="Not responding")
    node.run()
    assert node.told == [], "neither resumed, nor another reason given"


def test_slurm_that_does_not_answer_means_that_nothing_is_done(node: NodeWithGpus) -> None:
    node.slurm(silent=True)
    node.gpus("1 lost 1")
    code, said = node.run()
    assert (code, node.told) == (0, [])
    assert "unknown: Slurm does not answer" in said
    assert node.run("--show")[0] == 2


def test_what_an_administrator_does_while_the_checks_run_counts(node: NodeWithGpus) -> None:
    node.gpus("1 lost 1")
    node.slurm(state="IDLE+DRAIN", reason="carme-health: 2 of 2 GPUs are lost", later="A fan fails")
    code, said = node.run()
    assert (code, node.told) == (0, []), said
    assert "It is out of service already, and is left as it is." in said


def test_an_old_xid_counts_until_somebody_resumes_the_node(node: NodeWithGpus) -> None:
    node.kernel_log.write_text(
        "6,41,900,-;usb 1-1: new device\n4,42,901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, bus\n"
    )
    node.run()
    assert node.told[-1][-1] == "Reason=carme-health: the GPU at 0000:3b:00 reported Xid 79"
    node.run()
    assert len(node.told) == 1
    node.slurm(state="IDLE", reason="", told=[])  # an administrator has looked, and resumed it
    node.run()
    assert node.told == [], "it is not drained again for the same"
    with node.kernel_log.open("a") as log:
        log.write(
            "4,43,902,-;NVRM: Xid (PCI:0000:3b:00): 31, a program's own\n4,44,903,-;NVRM: Xid (PCI:0000:5e:00): 48, x\n"
        )
    node.run()
    assert node.told[-1][-1] == "Reason=carme-health: the GPU at 0000:5e:00 reported Xid 48"


def test_disks_mounts_programs_and_memory(node: NodeWithGpus, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    node.more = f"[mounts]\nthere = /proc {tmp_path / 'home'}\n[programs]\nthere = sh apptainer-that-is-not\n"
    node.slurm(memory="999999999")
    code, said = node.run("--show")
    assert code == 1
    assert "ok: /proc is mounted" in said
    assert f"failed: {tmp_path / 'home'} is not mounted" in said
    assert "ok: sh is there" in said
    assert "failed: apptainer-that-is-not is not there" in said
    assert "MiB of memory, and should have 999999999" in said
    node.run()
    assert "; " in node.told[-1][-1], "all of it is in the reason"


def test_a_full_disk_and_one_that_cannot_be_written(node: NodeWithGpus) -> None:
    what, result, words = health_checks.check_full(str(node.folder), 0)
    assert (what, result, words.startswith(f"{node.folder} is full (")) == ("disk", "failed", True)
    assert health_checks.check_writable("/proc/self")[1] == "failed"


def test_a_check_that_hangs_is_ended_and_not_started_again_while_it_hangs() -> None:
    hung: dict[str, list[int]] = {}
    with pytest.raises(health_checks.Hung):
        health_checks.in_child(0.2, lambda: __import__("time").sleep(60), hung, "mount /x")
    assert hung == {}, "it could be ended"
    hung["mount /x"] = [os.getpid(), health_checks._born(os.getpid())]
    with pytest.raises(health_checks.Hung):
        health_checks.in_child(5, lambda: 1, hung, "mount /x")
    hung["mount /x"] = [os.getpid(), 1]  # another process has its number now
    assert health_checks.in_child(5, lambda: [1, "x"], hung, "mount /x") == [1, "x"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gpu]\ncount = 4\n", "there is no [gpu] count. Known: gpus, memory"),
        ("[gpus]\ncounts = 4\n", "there is no [gpus] counts. Known: count, ecc"),
        ("[gpus]\ncount = four\n", "[gpus] count is a number, or one of its words, not 'four'"),
        ("[disks]\nfull = /tmp\n", "[disks] full is a list such as /:97 /tmp:90, not '/tmp'"),
        ("count = 4\n", "cannot be read"),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_is_done(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "health.conf").write_text(text)
    program = Path(__file__).parents[3] / "carme_hub" / "node" / "health.py"
    line = [sys.executable, "-I", str(program), "--config", str(tmp_path / "health.conf")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_divided_gpus_are_not_counted_against_slurm(node: NodeWithGpus) -> None:
    node.slurm(gres="gpu:1g.10gb:14")
    assert "ok: 2 GPUs answer" in node.run()[1]
    node.slurm(gres="(null)")
    assert "GPU" not in node.run()[1], "a node without GPUs"
    assert sorted(FILES) == sorted(each.name for each in node.programs.iterdir())
