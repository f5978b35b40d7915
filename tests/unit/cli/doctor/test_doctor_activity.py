"""The doctor on what jobs use: minutes that cannot arrive, that others can read, and idle rules that see nothing."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from jupyterhub.app import JupyterHub
from traitlets.config import Config

from carme_hub.cli.doctor import activity, policy
from carme_hub.cli.doctor.addresses import host_for_nodes
from carme_hub.cli.doctor.findings import Finding


def found(hub: dict[str, Any], **settings: Any) -> list[Finding]:
    config = Config({"JupyterHub": hub, "CarmeActivity": {"enabled": True, **settings}})
    return list(activity.check(JupyterHub(config=config), config))


@pytest.mark.parametrize(
    ("hub", "settings"),
    [
        ({"bind_url": "http://127.0.0.1:8000"}, {}),  # all on one machine
        ({"bind_url": "https://:443", "ssl_cert": "c.pem", "ssl_key": "k.pem", "hub_ip": "10.0.0.1"}, {}),
        ({"bind_url": "http://127.0.0.1:8000", "hub_ip": "10.0.0.1", "public_url": "https://hub.example.org/"}, {}),
        ({"bind_url": "http://127.0.0.1:8000", "hub_ip": "10.0.0.1"}, {"url": "https://hub.example.org/s/activity/"}),
        ({"bind_url": "http://127.0.0.1:8000", "hub_ip": "10.0.0.1"}, {"enabled": False}),
    ],
)
def test_what_arrives_and_is_encrypted_is_left_alone(hub: dict[str, Any], settings: dict[str, Any]) -> None:
    assert found(hub, **settings) == []


@pytest.mark.parametrize(
    ("hub", "settings", "said"),
    [
        ({"bind_url": "http://127.0.0.1:8000", "hub_ip": "10.0.0.1"}, {}, "listens on 127.0.0.1 alone"),
        ({"bind_url": "http://localhost:8000", "hub_connect_ip": "login1"}, {}, "listens on localhost alone"),
        ({"hub_ip": "10.0.0.1"}, {"url": "http://127.0.0.1:8000/services/activity/"}, "the node itself"),
        ({"hub_ip": "10.0.0.1"}, {}, "travel unencrypted"),
        ({"hub_ip": "::1"}, {"url": "http://hub.example.org/services/activity/"}, "travel unencrypted"),
        ({}, {"url": "hub.example.org"}, "give the service's whole address"),
    ],
)
def test_each_fault_is_named_with_what_to_write(hub: dict[str, Any], settings: dict[str, Any], said: str) -> None:
    [finding] = found(hub, **settings)
    assert finding.level.value == "unsafe"
    assert said in finding.why
    assert finding.setting.startswith("CarmeActivity")


@pytest.mark.parametrize(
    ("hub", "host"),
    [
        ({}, "127.0.0.1"),
        ({"hub_ip": "10.0.0.1"}, "10.0.0.1"),
        ({"hub_ip": "0.0.0.0"}, socket.gethostname()),
        ({"hub_ip": ""}, socket.gethostname()),
        ({"hub_ip": "0.0.0.0", "hub_connect_ip": "login1"}, "login1"),
        ({"hub_bind_url": "https://:8081"}, socket.gethostname()),
        ({"hub_bind_url": "https://10.0.0.2:8081"}, "10.0.0.2"),
        ({"hub_bind_url": "https://:8081", "hub_connect_url": "https://hub.internal:8081"}, "hub.internal"),
    ],
)
def test_the_host_for_nodes_is_the_one_that_jupyterhub_gives_them(hub: dict[str, Any], host: str) -> None:
    app: Any = JupyterHub(config=Config({"JupyterHub": hub}))
    assert host_for_nodes(app) == host


def idle_findings(*rules: dict[str, Any], measured: bool = True, **more: Any) -> list[Finding]:
    quotas = {"enabled": True, "policy": {"idle": list(rules)}, **more}
    profiles = [
        {"display_name": "GPU", "slug": "gpu", "gpus": {"types": ["a100"], "max": 2}},
        {"display_name": "CPU", "slug": "cpu"},
    ]
    config = {"CarmeQuotas": quotas, "CarmeActivity": {"enabled": measured}}
    return list(policy.check(Config({**config, "SlurmContainerSpawner": {"profile_list": profiles}})))


MAIL = {"smtp_host": "mail.example.org", "mail_domain": "example.org"}
TELL = {"after": "2h", "action": "tell"}


def test_a_weekly_mail_that_cannot_go_out_is_named() -> None:
    address, server = found({"bind_url": "http://127.0.0.1:8000"}, weekly_mail=True)
    assert "the hub does not know its own address" in address.why
    assert "names no mail server" in server.why
    config = Config({"JupyterHub": {"public_url": "https://hub.example.org/"}})
    config.CarmeActivity = Config({"enabled": True, "weekly_mail": True})
    config.CarmeQuotas = Config({"smtp_host": "mail.example.org", "mail_domain": "example.org"})
    assert list(activity.check(JupyterHub(config=config), config)) == []


def test_rules_on_idle_sessions_without_measuring_are_named() -> None:
    [finding] = idle_findings(TELL, measured=False, **MAIL)
    assert (finding.level.value, finding.setting) == ("advice", "CarmeActivity.enabled")
    assert idle_findings(TELL, **MAIL) == []
    assert idle_findings() == []


def test_idle_rules_whose_warnings_reach_nobody_who_is_away_are_named() -> None:
    [finding] = idle_findings(TELL)
    assert (finding.level.value, finding.setting) == ("advice", "CarmeQuotas.smtp_host")
    assert idle_findings({"user": "ada", "action": "none"}) == []


@pytest.mark.parametrize(
    ("rule", "setting"),
    [
        ({**TELL, "profile": "gpus"}, "idle[0].profile"),
        ({**TELL, "action": "release_gpus", "restart_profile": "cpus"}, "idle[0].restart_profile"),
        ({**TELL, "action": "release_gpus", "restart_profile": "gpu"}, "idle[0].restart_profile"),
    ],
)
def test_idle_rules_with_a_profile_that_does_not_fit_are_named(rule: dict[str, Any], setting: str) -> None:
    [finding] = idle_findings(rule, **MAIL)
    assert (finding.level.value, finding.setting) == ("advice", setting)
    assert idle_findings({**TELL, "action": "release_gpus", "profile": "gpu", "restart_profile": "cpu"}, **MAIL) == []
