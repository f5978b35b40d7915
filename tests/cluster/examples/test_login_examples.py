"""The examples of logins on real parts: who is in the group gets in and works, and nobody else does."""

from __future__ import annotations

import base64
import hmac
import os
import pwd
import secrets
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_hub import EXAMPLES, Browser, example_hub, works
from login_servers import certificate, github, oidc_provider, slapd
from rig.hub import Hub, Person, wait_for

STRANGER = "carme-stranger"
#: What the extra `oauth` brings, and what LDAPAuthenticator needs, beside what every hub has.
OAUTH = ("oauthenticator", "pyjwt", "ruamel.yaml")
LDAP = ("jupyterhub-ldapauthenticator", "ldap3", "pyasn1")
#: So that it takes seconds, not a minute, until somebody is asked about again.
SOON = "c.CarmeAuthenticator.auth_refresh_age = 2\nc.CarmeAuthenticator.revoke_interval = 2\n"


@pytest.fixture
def stranger() -> Iterator[str]:
    """A user of the system who is in no group that may log in."""
    subprocess.run(["userdel", STRANGER], capture_output=True)
    subprocess.run(["useradd", "--no-create-home", STRANGER], check=True)
    yield STRANGER
    subprocess.run(["userdel", STRANGER], check=True)


def settings(section: str, **values: object) -> str:
    return "".join(f"c.{section}.{name} = {value!r}\n" for name, value in values.items())


def is_home(browser: Browser, hub: Hub) -> bool:
    """Return whether the hub shows this browser somebody's home page."""
    browser.open(f"{hub.demo.url}/hub/home")
    return (browser.status, browser.address) == (200, f"{hub.demo.url}/hub/home")


# -- OpenID Connect ----------------------------------------------------------------------------------------------------


def test_members_of_a_group_of_the_provider_get_in_and_nobody_else(site: Hub, open_path: Path, tmp_path: Path) -> None:
    with oidc_provider(tmp_path) as provider:
        callback = f"{site.demo.url}/hub/oauth_callback"
        client, secret = provider.register(callback)
        provider.person("1", "alice", "gpu-users", "choir")
        provider.person("2", "bob", "choir")
        provider.person("3", "ada", "gpu-users", "hub-admins")
        provider.person("4", "noether", "gpu-users")
        changes = SOON + settings(
            "GenericOAuthenticator", client_id=client, oauth_callback_url=callback, **provider.addresses()
        )
        secret_words = {"OAUTH_CLIENT_SECRET": secret, "JUPYTERHUB_CRYPT_KEY": secrets.token_hex(32)}
        with example_hub(
            site,
            *("oidc-keycloak", open_path),
            kept=("CarmeAuthenticator",),
            changes=changes,
            packages=OAUTH,
            **secret_words,
        ) as hub:

            def log_in(subject: str) -> tuple[Browser, str]:
                browser = Browser()
                page = browser.open(f"{hub.demo.url}/hub/login")
                assert "Sign in with Keycloak" in page
                assert 'type="password"' not in page
                return browser, browser.fill_in(browser.open(f"{hub.demo.url}/hub/oauth_login"), sub=subject)

            alice, _ = log_in("1")
            assert is_home(alice, hub)
            assert {"gpu-users", "choir", "account:physics"} <= set(hub.api("GET", "/users/alice").body["groups"])
            bob, said = log_in("2")
            assert bob.status == 403, said
            assert not is_home(bob, hub)
            unknown, said = log_in("4")
            assert unknown.status == 403
            assert "noether is not a user of this cluster" in said
            ada, _ = log_in("3")
            assert is_home(ada, hub)
            assert [hub.api("GET", f"/users/{name}").body["admin"] for name in ("ada", "alice")] == [True, False]

            works(hub, "alice", profile="cpu")
            provider.person("1", "alice", "choir")  # is taken out of the group
            wait_for(lambda: not is_home(alice, hub), 30, "alice to be refused")
            wait_for(lambda: hub.server("alice") is None, 60, "alice's session to end")
            assert is_home(ada, hub)
            assert secret not in hub.log_text()


# -- LDAP --------------------------------------------------------------------------------------------------------------


def test_the_directory_checks_passwords_and_the_systems_group_who_may_use_the_hub(
    site: Hub, open_path: Path, tmp_path: Path, stranger: str
) -> None:
    passwords = {"alice": "in the directory 1", stranger: "in the directory 2"}
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    with slapd(tmp_path / "one", passwords) as port:
        trusted = open_path / "authority.pem"
        shutil.copy(tmp_path / "one/server.pem", trusted)
        changes = settings("LDAPAuthenticator", server_address="localhost", server_port=port)
        changes += f"c.LDAPAuthenticator.tls_kwargs['ca_certs_file'] = {str(trusted)!r}\n"
        with example_hub(
            site,
            *("ldap", open_path),
            kept=("CarmeAuthenticator",),
            replaced={'"gpu-users"': '"carme-users"', '"hub-admins"': '"carme-admins"'},
            changes=changes,
            packages=LDAP,
        ) as hub:
            assert Person(hub, "alice").login(hub.cluster.passwords["alice"]).status == 403, "the system's password"
            assert Person(hub, "alice").login(passwords["alice"]).status == 302
            refused = Person(hub, stranger).login(passwords[stranger])
            assert refused.status == 403, "the password is right, the group is missing"
            assert Person(hub, "bob").login("anything").status == 403, "who is not in the directory"
            works(hub, "alice", profile="cpu")


def test_a_directory_that_cannot_show_a_trusted_certificate_gets_no_password(
    site: Hub, open_path: Path, tmp_path: Path
) -> None:
    with slapd(tmp_path, {"alice": "in the directory 1"}) as port:
        other = open_path / "authority.pem"
        (tmp_path / "elsewhere").mkdir()
        shutil.copy(certificate(tmp_path / "elsewhere", "other"), other)
        changes = settings("LDAPAuthenticator", server_address="localhost", server_port=port)
        changes += f"c.LDAPAuthenticator.tls_kwargs['ca_certs_file'] = {str(other)!r}\n"
        with example_hub(site, "ldap", open_path, kept=("CarmeAuthenticator",), changes=changes, packages=LDAP) as hub:
            assert Person(hub, "alice").login("in the directory 1").status >= 400
            assert "certificate verify failed" in hub.log_text()


# -- GitHub ------------------------------------------------------------------------------------------------------------


def test_members_of_the_team_get_in_under_the_name_that_the_site_gave_them(site: Hub, open_path: Path) -> None:
    with github() as server:
        callback = f"{site.demo.url}/hub/oauth_callback"
        changes = SOON + settings("GitHubOAuthenticator", github_url=server.url, oauth_callback_url=callback)
        words = {"GITHUB_CLIENT_SECRET": server.secret, "JUPYTERHUB_CRYPT_KEY": secrets.token_hex(32)}
        with example_hub(
            site,
            *("github-teams", open_path),
            kept=("CarmeAuthenticator",),
            changes=changes,
            packages=OAUTH,
            **words,
        ) as hub:

            def log_in(number: int, name: str, *teams: tuple[str, str]) -> tuple[Browser, str]:
                server.visitor = (number, name, list(teams))
                browser = Browser()
                return browser, browser.open(f"{hub.demo.url}/hub/oauth_login")

            octocat, said = log_in(583231, "octocat", ("example-lab", "gpu-users"))
            assert is_home(octocat, hub), said
            assert "github:gpu-users" in hub.api("GET", "/users/alice").body["groups"]
            assert log_in(583231, "octocat", ("example-lab", "others"))[0].status == 403
            assert log_in(583231, "octocat", ("another-lab", "gpu-users"))[0].status == 403
            browser, said = log_in(7, "alice", ("example-lab", "gpu-users"))
            assert browser.status == 403, "somebody else who took a name of the cluster"
            assert "is not a user of this cluster" in said

            octocat, _ = log_in(583231, "octocat", ("example-lab", "gpu-users"))
            assert is_home(octocat, hub)
            for token in server.tokens:  # the team loses its member
                server.tokens[token] = (583231, "octocat", [])
            wait_for(lambda: not is_home(octocat, hub), 30, "the member who left to be refused")


# -- PAM with a second factor ------------------------------------------------------------------------------------------


def totp(secret: bytes, now: float) -> str:
    """Return the six digits of a moment (RFC 6238), as an app shows them."""
    digest = hmac.digest(secret, struct.pack(">Q", int(now) // 30), "sha1")
    (number,) = struct.unpack_from(">I", digest, digest[-1] & 15)
    return f"{(number & 0x7FFFFFFF) % 10**6:06}"


@pytest.fixture
def second_factor(site: Hub, stranger: str) -> Iterator[dict[str, bytes]]:
    """PAM's service of the example under another name, and secrets of alice and a stranger in the hub's folder."""
    module = next(Path("/usr/lib").glob("*/security/pam_oath.so"), None) or next(
        Path("/lib").glob("*/security/pam_oath.so"), None
    )
    if module is None:
        pytest.fail("This test needs pam_oath: apt-get install libpam-oath (make setup does it)", pytrace=False)
    found = {name: secrets.token_bytes(20) for name in ("alice", stranger)}
    demo = site.demo
    users = demo.folder / "users.oath"
    users.write_text("".join(f"HOTP/T30/6 {name} - {secret.hex()}\n" for name, secret in found.items()))
    users.chmod(0o600)
    owner = pwd.getpwnam(demo.user)
    os.chown(users, owner.pw_uid, owner.pw_gid)
    service = Path("/etc/pam.d/carme-hub-of-tests")
    text = (EXAMPLES / "pam-2fa/carme-hub.pam").read_text()
    assert "/var/lib/carme-hub/users.oath" in text
    service.write_text(text.replace("/var/lib/carme-hub/users.oath", str(users)))
    yield found
    service.unlink()
    users.unlink()


def test_a_password_alone_a_wrong_code_and_a_used_code_are_refused(
    site: Hub, open_path: Path, second_factor: dict[str, bytes], stranger: str
) -> None:
    subprocess.run(["chpasswd"], input=f"{stranger}:right 1\n", text=True, check=True)
    with example_hub(
        site,
        *("pam-2fa", open_path),
        kept=("CarmeAuthenticator", "PAMAuthenticator"),
        replaced={'"gpu-users"': '"carme-users"', '"carme-hub"': '"carme-hub-of-tests"'},
    ) as hub:

        def log_in(user: str, password: str, **second: str) -> int:
            person = Person(hub, user)
            assert "One-time code:" in str(person.get("/hub/login").body)
            return person.post("/hub/login", {"username": user, "password": password, **second}).status

        right = hub.cluster.passwords["alice"]
        code = totp(second_factor["alice"], time.time())
        wrong = f"{(int(code) + 1) % 10**6:06}"
        assert log_in("alice", right) == 403, "the password alone"
        assert log_in("alice", right, otp="") == 403
        assert log_in("alice", right, otp=wrong) == 403
        assert log_in("alice", "wrong", otp=code) == 403
        code = totp(second_factor["alice"], time.time() + 30)  # the one before may count as used now
        assert log_in("alice", right, otp=code) == 302
        assert log_in("alice", right, otp=code) == 403, "a code counts once"
        assert log_in(stranger, "right 1", otp=totp(second_factor[stranger], time.time())) == 403, "not in the group"
        assert log_in("bob", hub.cluster.passwords["bob"], otp="000000") == 403, "without a second factor"


def test_the_secrets_of_the_example_are_those_that_apps_read() -> None:
    """RFC 6238's own test: the double of an app computes what oathtool and apps do."""
    assert totp(b"12345678901234567890", 59) == "287082"
    assert base64.b32encode(b"12345678901234567890") == b"GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"
