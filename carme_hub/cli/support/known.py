"""What must not be in a bundle: the site's secrets, wherever this process finds them, and names of users."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from traitlets.config import Config, LazyConfigValue

from carme_hub.auth.secret_files import sqlite_file
from carme_hub.cli.explain.daemon_thread import in_daemon_thread
from carme_hub.cli.explain.job_log import LogUnread, read_file
from carme_hub.cli.explain.reader import SessionReader
from carme_hub.cli.explain.subject import Subject
from carme_hub.cli.hub_config import homes_of, hub_of
from carme_hub.config import PROXY_TOKEN
from carme_hub.domain.sessions.session import Session
from carme_hub.domain.support.redaction import Redactor, is_secret_name
from carme_hub.domain.support.settings import secret_values
from carme_hub.errors import CarmeError, Refused
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.store.engine import CarmeStore
from carme_hub.store.names import hub_user_names, stored_secrets, user_names

#: Files whose content is secret, on machines where this process may read them.
SECRET_FILES = ("/etc/munge/munge.key",)
#: Files of variables that units of systemd read (examples/slurm-site).
ENVIRONMENT_FILES = ("/etc/carme-hub/secrets",)
#: Bytes of a file of secrets that are read; longer ones are none.
_LONGEST = 65_536
_DOCUMENTS = ("data.json", "singleuser.json")


def settings_of(config: Config) -> dict[str, dict[str, Any]]:
    """Return the settings by class and name, lists that were only appended to included."""
    return {
        section: {
            name: value.get_value([]) if isinstance(value, LazyConfigValue) else value for name, value in values.items()
        }
        for section, values in config.items()
        if isinstance(values, Mapping)
    }


def site_secrets(config: Config) -> list[str | bytes]:
    """Return every secret of a site that this process can find."""
    found: list[str | bytes] = []
    for values in settings_of(config).values():
        for name, value in values.items():
            found += secret_values(name, value)
            found += _passwords(value)
            if name.endswith("_file") and is_secret_name(name.removesuffix("_file")):
                found += _content(Path(str(value)).expanduser())
    found += [value for name, value in os.environ.items() if is_secret_name(name)]
    found += [password for value in os.environ.values() for password in _passwords(value)]
    for file in SECRET_FILES:
        found += _content(Path(file))
    for file in ENVIRONMENT_FILES:
        found += _variables(Path(file))
    found += _hub_secrets(config)
    with contextlib.suppress(CarmeError):  # the database itself is not packed
        found += stored_secrets(str(CarmeStore(config=config).url))
    return found


def redactor_of(known: Sequence[str | bytes]) -> Redactor:
    """Return what takes these secrets out of texts, and whatever else looks like one."""
    return Redactor(known)


def slurm_settings(config: Config) -> CarmeSlurm:
    """Return the settings for Slurm's commands."""
    return CarmeSlurm(config=config)


def audit_files(config: Config) -> list[str]:
    """Return the site's audit file, where it has one."""
    file = settings_of(config).get("CarmeQuotas", {}).get("audit_file", "")
    return [str(file)] if file and Path(str(file)).is_file() else []


async def secrets_of_sessions(config: Config, subjects: Sequence[Subject]) -> list[str | bytes]:
    """Return the secrets in the documents of sessions that are named."""
    found: list[str | bytes] = []
    for subject in subjects:
        try:
            known = await SessionReader(config).read(subject)
        except Refused:
            continue
        if known.session is not None:
            found += await in_daemon_thread(session_secrets, known.session, homes_of(config))
    return found


def session_secrets(session: Session, homes: str = "") -> list[str | bytes]:
    """Return the secrets of a session's own documents, where this process may read them."""
    found: list[str | bytes] = []
    for name in _DOCUMENTS:
        try:
            document = json.loads(read_file(session.user, session.id, name, 8 << 20, homes)[0])
            found += secret_values("", document)
        except (LogUnread, ValueError, RecursionError):  # its user can change it, also into nothing but brackets
            continue
    return found


def _hub_secrets(config: Config) -> Iterator[str | bytes]:
    hub = hub_of(config)
    cookie = Path(hub.cookie_secret_file).expanduser().absolute()
    yield from _content(cookie)
    yield from _content(cookie.with_name(PROXY_TOKEN))
    if hub.cookie_secret:
        yield hub.cookie_secret


def _passwords(value: Any) -> Iterator[str]:
    """Yield the passwords in addresses."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set):
        for each in value:
            yield from _passwords(each)
    elif isinstance(value, str) and "://" in value:
        try:
            password = urlsplit(value).password
        except ValueError:
            return
        if password:
            yield password
            yield unquote(password)


def _content(file: Path) -> list[bytes]:
    """Return what is in a file of secrets, [] where this process may not read it."""
    try:
        raw = file.read_bytes()[:_LONGEST] if file.is_file() else b""
    except OSError:
        return []
    return [raw, *raw.split()] if raw else []


def _variables(file: Path) -> Iterator[str]:
    for line in b"\n".join(_content(file)[:1]).decode("utf-8", "replace").splitlines():
        _, equals, value = line.partition("=")
        if equals:
            yield value.strip().strip("\"'")


async def names_of_users(config: Config) -> tuple[set[str], dict[str, str]]:
    """Return the names of users that this process can find, and why a source of names gave no answer."""
    names, unread = set[str](), dict[str, str]()
    hub = hub_of(config)
    url = str(hub.db_url) if "://" in str(hub.db_url) else f"sqlite:///{hub.db_url}"
    ours = str(CarmeStore(config=config).url)
    sources: Sequence[tuple[str, Callable[[], Awaitable[Sequence[str]]]]] = (
        ("the database", lambda: in_daemon_thread(user_names, ours)),
        ("JupyterHub's database", lambda: in_daemon_thread(_hub_users, url)),
        ("sacctmgr", lambda: _slurm_users(config)),
        ("the system", lambda: in_daemon_thread(_system_users)),
    )
    for source, ask in sources:
        try:
            names.update(await ask())
        except (CarmeError, OSError) as error:
            unread[source] = str(error)
    return names, unread


def _hub_users(url: str) -> list[str]:
    file = sqlite_file(url)
    return [] if file is not None and not file.is_file() else hub_user_names(url)


async def _slurm_users(config: Config) -> list[str]:
    answer = await CarmeSlurm(config=config).commands().query("sacctmgr", "-n", "-P", "show", "user", "format=User")
    if answer.code != 0 or answer.reports_error:
        raise CarmeError(answer.message)
    return answer.out.split()


def _system_users() -> list[str]:
    people = [entry for entry in pwd.getpwall() if 1000 <= entry.pw_uid < 65_534]
    full = [word for entry in people for word in entry.pw_gecos.partition(",")[0].split() if len(word) > 3]
    ours = pwd.getpwuid(os.geteuid()).pw_name  # the hub's user is no person
    return [
        name for name in (*(entry.pw_name for entry in people), *full, os.environ.get("SUDO_USER", "")) if name != ours
    ]
