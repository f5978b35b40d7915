"""The doctor on a bare machine: what the settings name and the machine has not is said, each by its setting."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from carme_hub.cli.doctor.command import EXIT_UNKNOWN, EXIT_UNSAFE, DoctorApp
from carme_hub.cli.doctor.findings import Finding, advice, unknown, unsafe
from carme_hub.paths import share_folder

SHIPPED = Path(__file__).parents[4] / "jupyterhub_config.py"
STATE = "/var/lib/carme-hub"


def examined(file: Path) -> dict[str, Finding]:
    return {found.setting: found for found in DoctorApp(config_path=str(file), no_slurm=True).examine(file)}


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any program, and the configuration that is shipped."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CONFIGPROXY_AUTH_TOKEN", raising=False)
    file = tmp_path / "jupyterhub_config.py"
    file.write_text(SHIPPED.read_text().replace(STATE, str(tmp_path / "state")))
    return file


def test_what_the_shipped_configuration_lacks_on_a_bare_machine_is_named(bare: Path) -> None:
    found = examined(bare)
    assert "10.0.0.1 is not an address of this machine" in found["JupyterHub.hub_bind_url"].why
    assert "configurable-http-proxy is not on this machine" in found["ConfigurableHTTPProxy.command"].why
    assert "/usr/local/libexec/carme-submit is not on this machine" in found["CarmeSlurm.submit_command"].why
    assert "nobody can act on jobs" in found["CarmeSlurm.jobs_command"].why
    assert "sudo is not on this machine" in found["CarmeSlurm.submit_via"].why
    assert "/opt/carme-hub/images/default is not on this machine" in found["SlurmContainerSpawner.images"].why
    assert "JupyterHub.trusted_alt_names" not in found


def test_what_images_folders_data_and_disk_use_lack_is_named_with_its_package(bare: Path, tmp_path: Path) -> None:
    """And nothing of it ends the doctor."""
    store = tmp_path / "images"
    store.mkdir()
    more = f"""
c.CarmeImages.stores = [{str(store)!r}]
c.CarmeFolders.enabled = True
c.CarmeFolders.roots = {{"projects": "/srv/folders"}}
c.CarmeFolders.command = ["sudo", "-n", "/usr/local/libexec/carme-folders"]
c.CarmeStaging.root = "/scratch"
c.CarmeStaging.rclone = "/nowhere/rclone"
c.CarmeQuotas.disk_places = [{{"path": "/home/{{user}}", "reader": "xfs", "prefix": ["sudo", "-n"]}}]
"""
    bare.write_text(bare.read_text() + more)
    mends = "\n".join(
        f"{each.why}; {each.mend}" for each in DoctorApp(config_path=str(bare), no_slurm=True).examine(bare)
    )
    for words in (
        "skopeo, umoci, bwrap, unsquashfs not on this machine",
        "apt-get install skopeo umoci bubblewrap squashfs-tools",
        "apt-get install rclone",
        "fuse3",
        "the program sudo is not on this machine",
        "install it as docs/howto/folders.md says",
    ):
        assert words in mends


def test_a_path_of_an_image_that_cannot_be_looked_at_ends_nothing(bare: Path) -> None:
    bare.write_text(bare.read_text().replace("/opt/carme-hub/images/default", f"/opt/{'x' * 300}"))
    assert "is not on this machine" in examined(bare)["SlurmContainerSpawner.images"].why


def test_a_site_without_the_helper_of_jobs_is_told_what_that_costs(bare: Path) -> None:
    lines = [line for line in bare.read_text().splitlines() if "jobs_command" not in line]
    bare.write_text("\n".join(lines))
    assert "it is not set, so nobody can act on jobs" in examined(bare)["CarmeSlurm.jobs_command"].why


def test_a_helper_of_another_release_is_named(bare: Path, tmp_path: Path) -> None:
    installed = tmp_path / "libexec/carme-submit"
    installed.parent.mkdir()
    ours = share_folder() / "libexec/carme-submit"
    bare.write_text(bare.read_text().replace("/usr/local/libexec/carme-submit", str(installed)))
    for text, other in ((ours.read_text(), False), (ours.read_text().replace('"node": str', ""), True)):
        installed.write_text(text)
        installed.chmod(0o755)
        found = examined(bare).get("CarmeSlurm.submit_command")
        assert (found is not None) == other, found
    assert found is not None
    assert "it is of another release" in found.why
    assert found.mend == f"install -o root -g root -m 755 {ours} {installed.parent}/"


def test_a_certificate_that_will_not_name_the_hub_is_named(bare: Path) -> None:
    lines = [line for line in bare.read_text().splitlines() if "trusted_alt_names" not in line]
    bare.write_text("\n".join(lines))
    found = examined(bare)["JupyterHub.trusted_alt_names"]
    assert "does not name 10.0.0.1" in found.why
    assert found.mend == 'c.JupyterHub.trusted_alt_names = ["IP:10.0.0.1"]'


def test_a_certificate_that_is_there_and_does_not_name_the_hub_is_to_be_made_anew(bare: Path) -> None:
    text = bare.read_text().replace("10.0.0.1:8081", "127.0.0.1:8081")
    bare.write_text(text)
    certificates = bare.parent / "state" / "internal-ssl" / "hub-internal"
    certificates.mkdir(parents=True)
    openssl = shutil.which("openssl", path=os.defpath)
    assert openssl is not None
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    made = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=hub", *names]
    where = ["-keyout", certificates / "hub-internal.key", "-out", certificates / "hub-internal.crt"]
    subprocess.run([openssl, "req", *made, *where], check=True, capture_output=True)
    assert "JupyterHub.trusted_alt_names" not in examined(bare)
    bare.write_text(text.replace("127.0.0.1:8081", "127.0.0.2:8081"))
    found = examined(bare)
    assert "JupyterHub.hub_bind_url" not in found
    assert "start proxy and hub" in found["JupyterHub.trusted_alt_names"].mend


def test_an_address_that_no_name_server_knows_is_named(bare: Path) -> None:
    bare.write_text(bare.read_text().replace("10.0.0.1:8081", "nowhere.invalid:8081"))
    assert "this machine cannot resolve" in examined(bare)["JupyterHub.hub_bind_url"].why


@pytest.mark.parametrize(
    ("findings", "accept", "status"),
    [
        ([], [], 0),
        ([advice("a", 1, "", "")], [], 0),
        ([unknown("a", "", "")], [], EXIT_UNKNOWN),
        ([unknown("a", "", "")], ["a"], 0),
        ([unknown("a", "", ""), unsafe("b", 1, "", "")], [], EXIT_UNSAFE),
    ],
)
def test_what_could_not_be_looked_at_is_not_called_safe(
    findings: list[Finding], accept: list[str], status: int
) -> None:
    assert DoctorApp(accept=accept).report(findings) == status


def test_the_command_ends_with_that_status(bare: Path) -> None:
    argv = [sys.executable, "-c", "from carme_hub.cli.app import main; main()", "doctor", "--config", str(bare)]
    done = subprocess.run([*argv, "--no-slurm"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == EXIT_UNSAFE, done.stderr
    assert "carme-submit is not on this machine" in done.stdout
