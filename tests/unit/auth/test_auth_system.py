"""What the machine's own databases say of a user, and which files lie open."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from auth_hub import DirectoryOfThree, running

from carme_hub.auth import secret_files, system_users
from carme_hub.auth.secret_files import check_private, exposure, read_secret, sqlite_file
from carme_hub.errors import ConfigError


@pytest.fixture
def in_the_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the folders above be passable to all; pytest's are not."""
    monkeypatch.setattr(secret_files, "_is_traversable", lambda folder: True)


def test_a_user_of_the_system_is_found_with_its_groups() -> None:
    root = system_users.look_up("root")
    assert root is not None
    assert (root.uid, root.groups[0]) == (0, "root")


@pytest.mark.parametrize("name", ["", "no such user", "a\0b", "\udcff", "x" * 10_000])
def test_other_names_are_not(name: str) -> None:
    assert system_users.look_up(name) is None
    assert system_users.closed_reason(name or "x") == ""


@pytest.mark.parametrize(
    ("password", "expires", "closed"),
    [
        (b"$y$j9T$abc", -1, ""),
        (b"!$y$j9T$abc", -1, "locked"),
        (b"!!$6$abc", -1, "locked"),
        (b"!", -1, ""),  # never had a password: single sign-on
        (b"!!", -1, ""),
        (b"*", -1, ""),
        (b"!*", -1, ""),
        (b"$y$j9T$abc", 0, "expired"),
        (b"$y$j9T$abc", 20_000, "expired"),
        (b"$y$j9T$abc", 20_001, ""),
    ],
)
def test_closed_accounts_are_told_from_those_without_a_password(password: bytes, expires: int, closed: str) -> None:
    assert system_users.closed_reason_from(password, expires, today=20_000) == closed


def test_a_file_of_secrets_that_others_can_read_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, in_the_open: None
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    secret.chmod(0o640)
    with pytest.raises(ConfigError, match=rf"the token: {secret} has mode 0640.*chmod 600 {secret}"):
        check_private(secret, "the token")
    secret.chmod(0o600)
    assert read_secret(secret, "the token") == "s3cret"
    assert exposure(tmp_path / "none") == ""


def test_a_readable_file_in_a_private_folder_lies_safe(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0o644)
    tmp_path.chmod(0o700)
    assert exposure(tmp_path / "secret") == ""


@pytest.mark.parametrize("text", ["", " \n", "ü"])
def test_a_secret_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "secret").write_text(text)
    (tmp_path / "secret").chmod(0o600)
    with pytest.raises(ConfigError):
        read_secret(tmp_path / "secret", "the token")


def test_a_secret_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0o600)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    if me == 0:
        os.chown(tmp_path / "secret", 12345, -1)
    assert "belongs to another user" in exposure(tmp_path / "secret")


def test_sqlite_addresses_are_understood() -> None:
    assert sqlite_file("sqlite:////var/lib/hub.sqlite?timeout=5") == Path("/var/lib/hub.sqlite")
    assert sqlite_file("hub.sqlite") == Path("hub.sqlite")
    assert sqlite_file("sqlite://") is None
    assert sqlite_file("sqlite:///:memory:") is None
    assert sqlite_file("postgresql://hub@db/hub") is None


async def test_a_new_database_is_closed_and_an_old_one_that_lies_open_stops_the_hub(
    tmp_path: Path, directory: DirectoryOfThree, in_the_open: None
) -> None:
    async with running(tmp_path, directory) as hub:
        assert (tmp_path / "jupyterhub.sqlite").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "cookie_secret").stat().st_mode & 0o777 == 0o600
        await hub.login("alice")
    (tmp_path / "jupyterhub.sqlite").chmod(0o644)
    with pytest.raises(ConfigError, match=r"jupyterhub.sqlite has mode 0644.*chmod 600"):
        async with running(tmp_path, directory):
            pass


def test_keys_of_internal_certificates_are_looked_at(tmp_path: Path, in_the_open: None) -> None:
    key = tmp_path / "certs" / "hub-ca" / "hub-ca.key"
    key.parent.mkdir(parents=True)
    key.write_text("key")
    key.chmod(0o644)
    app = SimpleNamespace(
        cookie_secret_file=str(tmp_path / "none"),
        db_url="postgresql://hub@db/hub",
        internal_ssl=True,
        internal_certs_location=str(tmp_path / "certs"),
    )
    with pytest.raises(ConfigError, match=r"hub-ca: .*chmod 600"):
        secret_files.check_hub_files(app)
