"""What becomes of single settings, scripts and blocks of an old jupyterhub_config.py."""

from __future__ import annotations

import ast
import time

import pytest

from carme_hub.cli.convert.convert import convert_config
from carme_hub.cli.convert.findings import Level
from carme_hub.cli.convert.mapping.batch_settings import OLD_NAMES
from carme_hub.cli.convert.mapping.hub import HUB
from carme_hub.cli.convert.reading.shell import read_shell
from carme_hub.cli.convert.site import GPU_TYPE_TODO, Site
from carme_hub.cli.convert.writing import write
from carme_hub.spawners.slurm.batchspawner_names import KEPT, REPLACED

SCRIPT = '''c.SlurmSpawner.req_partition = "gpu"
c.SlurmSpawner.batch_script = """#!/bin/bash
#SBATCH --partition={partition}
#SBATCH --time=04:00:00
#SBATCH -c 8
#SBATCH --mem=32G
#SBATCH --gres=gpu:a100:2
#SBATCH --constraint=nvlink
#SBATCH --output={homedir}/jupyter-%j.log
##SBATCH --exclusive
module purge
module load apptainer cuda/12
export HF_HOME=/scratch/hf
export LD_LIBRARY_PATH=/opt/lib
IMAGE=/shared/images/pytorch-24.05.sif
cd $HOME
apptainer exec --nv --bind /scratch,/data:/data:ro \\\\
    -B $HOME --env "A=b" \\\\
    ${IMAGE} {cmd}
rsync -a /data/x /tmp
"""
'''


def converted(text: str) -> Site:
    return convert_config(text, "old.py")


def levels(site: Site) -> dict[str, Level]:
    return {finding.setting: finding.level for finding in site.findings}


def test_a_script_gives_limits_an_image_and_binds() -> None:
    site = converted(SCRIPT)
    (profile,) = site.profiles
    assert profile.data["cpus"] == {"min": 1, "max": 8, "default": 8}
    assert profile.data["memory_gib"]["max"] == 32
    assert profile.data["time_minutes"]["max"] == 240
    assert profile.data["gpus"] == {"types": ["a100"], "min": 2, "max": 2, "default": 2}
    assert profile.data["partition"] == "gpu"
    assert profile.data["images"] == ["pytorch-24.05"]
    assert site.images["pytorch-24.05"] == {
        "name": "pytorch-24.05",
        "path": "/shared/images/pytorch-24.05.sif",
        "format": "sif",
    }
    assert [(b.source, b.destination, b.mode) for b in site.binds.values()] == [
        ("/scratch", "/scratch", "rw"),
        ("/data", "/data", "ro"),
    ]
    assert site.runtime == "apptainer"
    assert site.extra == {"constraint": "nvlink"}
    assert site.environment == {"HF_HOME": "/scratch/hf"}
    found = {finding.setting: (finding.line, finding.level) for finding in site.findings}
    assert found["module load apptainer cuda/12"] == (12, Level.LOOK)
    assert found["export LD_LIBRARY_PATH"] == (14, Level.LOOK)
    assert found["rsync -a /data/x /tmp"] == (20, Level.LOOK)
    assert found["--bind $HOME"][1] is Level.DROPPED
    assert "--exclusive" not in found


def test_control_words_and_written_files_are_no_commands() -> None:
    script = """
start() {
    for name in a b; do
        echo $name
    done
    if [ -f x ]; then
        touch y
    fi
}
cat > config.py <<'END'
rm -rf /
END
jupyter-<%= context.interface %> --config=x
cd /scratch/work
"""
    site = converted(f"c.SlurmSpawner.batch_script = {script!r}")
    told = {finding.setting for finding in site.findings if finding.level is Level.LOOK and finding.line}
    assert told == {"touch y", "cat > config.py <<'END'", "cd /scratch/work"}


@pytest.mark.parametrize(
    "text",
    [
        "{{" * 20_000,
        "<%" * 20_000,
        "\n".join(f"a{n}=${{a{n - 1}}}${{a{n - 1}}}" for n in range(60)) + "\nexport b=$a59 c",
        "a0=" + "x" * 9000 + "\n" + "\n".join(f"a{n}=$a{n - 1}$a{n - 1}" for n in range(1, 60)) + "\nexport b=$a59",
    ],
)
def test_no_script_makes_reading_long(text: str) -> None:
    began = time.monotonic()
    items = read_shell(text)
    assert time.monotonic() - began < 3
    assert len(repr(items)) < 100_000


def test_a_secret_of_a_script_is_neither_told_nor_made_readable_to_all() -> None:
    script = "export WANDB_API_KEY=hush1\ncurl --token hush2 https://x\nlogin password=hush3\n"
    site = converted(f"c.SlurmSpawner.batch_script = {script!r}")
    assert site.environment == {}
    assert levels(site)["export WANDB_API_KEY"] is Level.LOOK
    told = " ".join(finding.text() for finding in site.findings)
    assert "hush" not in told + write(site, "/state")


def test_pyxis_and_other_runtimes_in_a_script() -> None:
    site = converted(
        'c.SlurmSpawner.batch_script = """srun --container-image=/i/a.sqsh --container-mounts=/d:/d {cmd}"""'
    )
    assert (site.runtime, site.images["a"]["format"]) == ("pyxis", "sqfs")
    site = converted('c.SlurmSpawner.batch_script = """docker run --rm jupyter/scipy {cmd}"""')
    assert levels(site)["docker"] is Level.LOOK


def test_the_most_derived_class_wins_and_its_own_values_count() -> None:
    text = """
from batchspawner import SlurmSpawner
class Ours(SlurmSpawner):
    req_partition = "small"
    exec_prefix = ""
    def _options_form_default(self):
        return ""
c.Ours.req_runtime = "1:00:00"
c.SlurmSpawner.req_runtime = "9:00:00"
c.BatchSpawnerBase.req_partition = "large"
c.JupyterHub.spawner_class = Ours
"""
    site = converted(text)
    (profile,) = site.profiles
    assert (profile.data["partition"], profile.data["time_minutes"]["max"]) == ("small", 60)
    assert site.slurm["submit_via"] == "direct"
    assert levels(site)["Ours._options_form_default"] is Level.LOOK


@pytest.mark.parametrize("gres", ["gpu:2", "gpu"])
def test_gpus_without_a_type_get_a_mark(gres: str) -> None:
    site = converted(f'c.SlurmSpawner.req_gres = "{gres}"\nc.SlurmSpawner.req_partition = "gpu"\n')
    assert site.profiles[0].data["gpus"]["types"] == [GPU_TYPE_TODO]
    assert f"# TODO: replace {GPU_TYPE_TODO}" in write(site, "/state")
    assert levels(site)["GPUs without a type"] is Level.LOOK


def test_values_that_slurm_would_not_take_are_left_out_and_said() -> None:
    names = {"runtime": "two hours", "nprocs": "x", "nodes": "2"}
    site = converted("".join(f"c.SlurmSpawner.req_{name} = {value!r}\n" for name, value in names.items()))
    assert "time_minutes" not in site.profiles[0].data
    found = levels(site)
    assert {found[f"SlurmSpawner.req_{name}"] for name in ("runtime", "nprocs", "nodes")} == {Level.LOOK}


@pytest.mark.parametrize("name", sorted({*KEPT, *REPLACED, *OLD_NAMES}))
def test_every_name_of_batchspawner_gets_a_finding(name: str) -> None:
    site = converted(f'c.SlurmSpawner.{name} = "1"\n')
    assert [finding for finding in site.findings if finding.line == 1], name
    ast.parse(write(site, "/state"))


@pytest.mark.parametrize("name", sorted(HUB))
def test_settings_that_configure_sets_are_not_in_the_new_file(name: str) -> None:
    site = converted(f"c.{name} = False\n")
    assert f"c.{name} =" not in write(site, "/state")
    assert any(finding.line == 1 for finding in site.findings)


def test_blocks_stay_with_what_they_keep() -> None:
    text = """
import os
if os.environ.get("KEYCLOAK"):
    c.JupyterHub.authenticator_class = "generic-oauth"
    c.GenericOAuthenticator.client_id = "hub"
    c.JupyterHub.spawner_class = "batchspawner.SlurmSpawner"
"""
    new = write(converted(text), "/state")
    assert 'c.CarmeAuthenticator.authenticator_class = "generic-oauth"' in new
    assert 'c.GenericOAuthenticator.client_id = "hub"' in new
    assert "pass  # carme-hub convert: JupyterHub.spawner_class is left out" in new
    ast.parse(new)


def test_a_followed_loop_writes_each_setting() -> None:
    text = """
c.JupyterHub.load_groups = {}
for name in ["a", "b"]:
    c.JupyterHub.load_groups[name] = {"users": [name]}
if 1:
    c.JupyterHub.port = 9000
"""
    new = write(converted(text), "/state")
    assert "c.JupyterHub.port = 9000" in new
    assert "{'a': {'users': ['a']}, 'b': {'users': ['b']}}" in new


def test_what_needs_an_old_package_is_put_aside() -> None:
    text = "import batchspawner\ndef hook(spawner):\n    batchspawner.x(spawner)\nc.Spawner.pre_spawn_hook = hook\n"
    site = converted(text)
    new = write(site, "/state")
    assert "import batchspawner" not in new
    assert "#     c.Spawner.pre_spawn_hook = hook" in new
    assert levels(site)["Spawner.pre_spawn_hook"] is Level.LOOK


def test_settings_that_jupyterhub_lost_or_renamed() -> None:
    text = """
c.Authenticator.whitelist = {"a"}
c.JupyterHub.db_ulr = "x"
c.Foo.bar = 1
c.NotebookApp.x = 1
load_subconfig("more.py")
"""
    site = converted(text)
    new = write(site, "/state")
    assert 'c.Authenticator.allowed_users = {"a"}' in new
    assert "c.Foo.bar = 1" in new
    assert "db_ulr" not in new
    found = {finding.setting: finding for finding in site.findings}
    assert "db_url" in found["JupyterHub.db_ulr"].sentence
    assert found["NotebookApp.x"].level is Level.DROPPED
    assert found["load_subconfig"].level is Level.LOOK


def test_profiles_that_start_no_job_or_cannot_be_read() -> None:
    text = """
from jupyterhub.spawner import LocalProcessSpawner
c.ProfilesSpawner.profiles = [
    ("Here", "local", LocalProcessSpawner, {"ip": "0.0.0.0"}),
    ("Cloud", "cloud", "kubespawner.KubeSpawner", {}),
    ("One", "one", "batchspawner.SlurmSpawner", dict(req_partition="cpu", default_url="/tree")),
    ("Two", "one", "batchspawner.SlurmSpawner", dict(req_partition=f(), notebook_dir="/data/course")),
    g("three"),
]
c.ProfilesSpawner.default_profile = "one"
"""
    site = converted(text)
    assert [profile.data["slug"] for profile in site.profiles] == ["one", "one-2"]
    assert site.profiles[0].data["default"] is True
    assert site.profiles[1].data["slurm_override"] == {"working_folder": "/data/course"}
    by_line = {finding.line: finding for finding in site.findings if finding.setting != "req_partition"}
    assert by_line[4].level is Level.DROPPED
    assert by_line[5].level is Level.LOOK
    assert "without running" in by_line[8].sentence
    assert "# TODO (line 8)" in write(site, "/state")


def test_what_one_profile_asks_of_slurm_is_not_asked_for_the_others() -> None:
    site = convert_config(
        """
c.ProfilesSpawner.profiles = [
    ("A", "a", "batchspawner.SlurmSpawner", dict(req_partition="gpu", req_options="--constraint=gpu80")),
    ("B", "b", "batchspawner.SlurmSpawner", dict(
        req_partition="cpu", batch_script="#SBATCH --constraint=avx\\nexport SCRATCH=/b\\n", req_epilogue="rm x")),
    ("C", "c", "batchspawner.SlurmSpawner", dict(req_partition="cpu", req_prologue="export SCRATCH=/c")),
]
c.SlurmSpawner.req_options = "--licenses=lab"
""",
        "old.py",
    )
    assert site.extra == {"licenses": "lab"}
    assert site.environment == {"SCRATCH": "/b"}
    looks = {(f.line, f.setting) for f in site.findings if f.level is Level.LOOK}
    assert {(3, "--constraint=gpu80"), (6, "export SCRATCH"), (5, "req_epilogue")} <= looks
    assert "--constraint=avx" in {setting for _, setting in looks}
    assert "profile b alone" in write(site, "/state").partition("Left to do")[2]


def test_a_list_of_profiles_that_is_computed_becomes_a_todo() -> None:
    new = write(converted('c.ProfilesSpawner.profiles = make()\nc.SlurmSpawner.req_partition = "cpu"\n'), "/state")
    assert "# TODO (line 1): write the profiles into profile_list" in new
    assert "# TODO: c.SlurmContainerSpawner.profile_list" in new


def test_texts_of_the_old_file_end_no_comment_and_no_string() -> None:
    nasty = 'a"""\n\\'
    entry = f"({nasty!r}, {nasty!r}, 'batchspawner.SlurmSpawner', {{'req_partition': 'cpu'}})"
    text = f"c.ProfilesSpawner.profiles = [{entry}]\n"
    new = write(convert_config(text, 'old""".py'), "/state")
    tree = ast.parse(new)
    assert all(isinstance(node, ast.Expr | ast.Import | ast.Assign) for node in tree.body)
    assert repr(nasty)[1:-1] in new
