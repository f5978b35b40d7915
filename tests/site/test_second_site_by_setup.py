"""The same site with the hub that `carme-hub setup` installs, as the docs say; then it takes itself away."""

from __future__ import annotations

import json
import re
import time

import pytest
from second_site import SecondSite

pytestmark = pytest.mark.nightly
USER, OTHER = "alice", "pierre"
SETUP = "/opt/carme-hub/bin/carme-hub setup"
#: Where setup writes.
FOLDERS = "/etc/carme-hub /etc/systemd/system /etc/sudoers.d /etc/logrotate.d /usr/local"


@pytest.fixture(scope="module")
def site(second_site: SecondSite) -> SecondSite:
    """Return the site, on whose hub's machine is nothing but what was prepared, with the hub that setup installs."""
    second_site.begin_again()
    began = time.monotonic()
    second_site.follow(second_site.by_setup)
    second_site.seconds["by setup, after what is prepared"] = time.monotonic() - began
    return second_site


@pytest.fixture(scope="module")
def token(site: SecondSite) -> str:
    """Return a token of the user, who logs in by the page behind nginx."""
    return site.token(USER)


def sums(site: SecondSite) -> str:
    """Return checksums and modes of all files where setup writes, but for wheels and npm's packages."""
    found = f"find {FOLDERS} -path /usr/local/share -prune -o -path /usr/local/lib -prune -o -type f"
    return site.hub.run(f"{found} -exec stat -c '%a %U %n' {{}} + -exec sha256sum {{}} + | sort")


def paths(site: SecondSite) -> set[str]:
    """Return the files of ``sums``."""
    return set(re.findall(r"^[0-9a-f]{64} +(\S+)$", sums(site), re.MULTILINE))


def test_setup_ended_with_a_session_on_each_partition_and_what_it_cost(site: SecondSite) -> None:
    said = site.said(site.hub)
    row = re.search(r"^gpu +(\d+\.\d) +(\d+\.\d) *$", said, re.MULTILINE)
    assert row, said[-4000:]
    site.seconds["a session of setup's own"] = float(row[1])
    assert site.controller.run("squeue -h").strip() == ""
    assert site.hub.run("systemctl is-enabled carme-hub carme-hub-proxy").split() == ["enabled"] * 2


def test_systemd_sudo_and_logrotate_read_the_files_without_a_word(site: SecondSite) -> None:
    units = " ".join(f"/etc/systemd/system/{name}.service" for name in ("carme-hub", "carme-hub-proxy"))
    said = site.hub.run(f"systemd-analyze verify --man=no {units} || true")
    assert [line for line in said.splitlines() if "carme-hub" in line] == []
    assert "carme-hub" not in site.hub.run("visudo -c || true").replace("/etc/sudoers.d/carme-hub: parsed OK", "")
    assert "error" not in site.hub.run("logrotate --debug /etc/logrotate.d/carme-hub")


def test_a_cell_runs_in_a_session_from_the_form_of_the_profile_that_setup_found(site: SecondSite, token: str) -> None:
    site.visit("start", USER, json.dumps({"profile": "gpu", "gpus": 1}), token=token)
    code = "import os, socket; print(socket.gethostname()[:3], os.getuid())"
    assert json.loads(site.visit("cell", USER, code, token=token)).split() == ["gpu", "5001"]


def test_run_again_it_has_nothing_to_do(site: SecondSite, token: str) -> None:
    before, pid = sums(site), site.hub.run("systemctl show -p MainPID --value carme-hub")
    said = site.hub.run(f"{SETUP} --no-input --yes")
    assert said.splitlines()[-1] == "nothing to do"
    assert (sums(site), site.hub.run("systemctl show -p MainPID --value carme-hub")) == (before, pid)


def test_a_restart_that_did_not_happen_is_made_up_for(site: SecondSite, token: str) -> None:
    """As after a loss of power between the files and the restart."""
    record = "/etc/carme-hub/setup-record.json"
    site.hub.run(f'sed -i \'s|"pending": \\[\\]|"pending": ["/etc/carme-hub/jupyterhub_config.py"]|\' {record}')
    pid = site.hub.run("systemctl show -p MainPID --value carme-hub")
    look = site.hub.try_run(f"{SETUP} --no-input")
    assert (look.returncode, "the hub was not restarted" in look.stdout) == (1, True), look.stdout
    assert "nothing to do" in site.hub.run(f"{SETUP} --no-input --yes --no-test")
    assert site.hub.run("systemctl show -p MainPID --value carme-hub") != pid
    pid = site.hub.run("systemctl show -p MainPID --value carme-hub")
    site.hub.run(f"{SETUP} --no-input --yes --no-test")
    assert site.hub.run("systemctl show -p MainPID --value carme-hub") == pid
    site.wait_for_page()


def test_what_sudo_runs_is_roots_also_where_it_was_given_away(site: SecondSite, token: str) -> None:
    helper = "/usr/local/libexec/carme-submit"
    site.hub.run(f"chown carme-hub {helper}")
    look = site.hub.try_run(f"{SETUP} --no-input")
    assert (look.returncode, f"# {helper}: owner carme-hub becomes root" in look.stdout) == (1, True), look.stdout
    site.hub.run(f"{SETUP} --no-input --yes --no-test")
    assert site.hub.run(f"stat -c '%U %a' {helper}").split() == ["root", "755"]
    site.hub.run("chmod o+w /usr/local/libexec")
    try:
        refused = site.hub.try_run(f"{SETUP} --no-input --yes --no-test")
    finally:
        site.hub.run("chmod o-w /usr/local/libexec")
    assert refused.returncode == 2
    assert "/usr/local/libexec can be written by others than root" in refused.stdout


def test_another_answer_restarts_the_hub_under_the_session(site: SecondSite, token: str) -> None:
    (job,) = site.controller.run("squeue -h -o %A").split()
    proxy = site.hub.run("systemctl show -p MainPID --value carme-hub-proxy")
    said = site.hub.run(f"{SETUP} --no-input --yes --no-test --memory-max 3G")
    assert "+MemoryMax=3G" in said
    assert site.hub.run("systemctl show -p MemoryMax --value carme-hub").strip() == str(3 * 1024**3)
    assert site.hub.run("systemctl show -p MainPID --value carme-hub-proxy") == proxy
    site.wait_for_page()
    assert json.loads(site.visit("cell", USER, "print(6 * 7)", token=token)).strip() == "42"
    assert site.controller.run("squeue -h -o %A").split() == [job]


def test_the_audit_log_is_rotated_and_the_hub_goes_on_in_the_new_one(site: SecondSite, token: str) -> None:
    site.visit("lock", OTHER, token=token)  # the first act of an administrator
    site.hub.run("logrotate --force /etc/logrotate.d/carme-hub")
    log = "/var/lib/carme-hub/audit.jsonl"
    seen = site.hub.run(f"stat -c '%U %a %s' {log}; stat -c %U {log}.1").split()
    assert seen == ["carme-hub", "600", "0", "carme-hub"]
    site.visit("unlock", OTHER, token=token)
    (act,) = [json.loads(line) for line in site.hub.run(f"cat {log}").splitlines()]
    assert (act["actor"], act["target"]) == (USER, OTHER)
    site.visit("stop", USER, token=token)


def test_it_takes_itself_away_and_leaves_data_and_what_a_person_has_written(site: SecondSite, token: str) -> None:
    site.hub.write("/etc/carme-hub/site.py", "c = get_config()\n")
    before = paths(site)
    said = site.hub.run(f"{SETUP} --remove --no-input --yes")
    assert "stays  /var/lib/carme-hub" in said
    assert site.hub.try_run("pgrep -u carme-hub").stdout == ""
    (link,) = re.findall(r"^yours  (\S+) leads to /etc/carme-hub/nginx.conf, which goes", said, re.MULTILINE)
    assert site.hub.try_run("nginx -t").returncode != 0, "the line is needed"
    site.hub.run(f"rm {link}; nginx -t")
    gone = before - paths(site)
    assert gone == {
        *("/etc/carme-hub/jupyterhub_config.py", "/etc/carme-hub/nginx.conf"),
        *("/etc/carme-hub/prometheus.yml", "/etc/carme-hub/setup-record.json"),
        *(f"/etc/systemd/system/{name}.service" for name in ("carme-hub", "carme-hub-proxy")),
        *(f"/usr/local/libexec/{name}" for name in ("carme-submit", "carme-jobs")),
        *("/usr/local/etc/carme-submit.json", "/etc/sudoers.d/carme-hub", "/etc/logrotate.d/carme-hub"),
    }
    assert {f"/etc/carme-hub/{name}" for name in ("site.py", "hub.pem", "hub.key")} <= paths(site)
    assert "LoadState=not-found" in site.hub.run("systemctl show -p LoadState carme-hub")
    assert site.hub.run("ls /var/lib/carme-hub/*.sqlite")
    assert site.hub.run(f"{SETUP} --remove --no-input --yes").startswith("nothing to do")
