"""A site with a canary in every place where a secret can be: in a bundle none of them may be found."""

from __future__ import annotations

import base64
import json
import pwd
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from rig.command_line import CommandLine

from carme_hub.cli.explain import job_log
from carme_hub.cli.support import known
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.store.engine import CarmeStore
from carme_hub.store.secrets import shared_secret
from carme_hub.store.sessions import SessionStore

ID = "1b2c3d4e-0000-4000-8000-0000000000aa"
#: Kinds of canaries by where each is planted, with what makes one as that kind of secret looks.
KINDS = {
    "cookie secret": lambda: secrets.token_hex(32),
    "proxy token": lambda: secrets.token_hex(32),
    "token of a service": lambda: secrets.token_hex(16),
    "password of a database": lambda: f"pw/{secrets.token_hex(5)}",
    "secret of single sign-on": lambda: f"plain-words-{secrets.token_hex(3)}",
    "value of a class of the site": lambda: f"correct horse {secrets.token_hex(4)}",
    "variable of servers": lambda: f"value{secrets.token_hex(4)}",
    "password of mail in a file": lambda: f"mail{secrets.token_hex(4)}",
    "option of a command": lambda: f"opt{secrets.token_hex(4)}",
    "key of the environment": lambda: secrets.token_hex(32),
    "secret of the environment": lambda: f"env{secrets.token_hex(4)}",
    "password in an address of the environment": lambda: f"url{secrets.token_hex(4)}",
    "token of the caller": lambda: secrets.token_hex(16),
    "munge key": lambda: secrets.token_bytes(64),
    "shared secret": lambda: "",  # the database makes it
    "nonce": lambda: secrets.token_urlsafe(32),
    "token of a server": lambda: secrets.token_hex(16),
    "hash of a nonce": lambda: secrets.token_hex(32),
    "jwt": lambda: f"eyJhbGciOiJIUzI1NiJ9.{secrets.token_urlsafe(30)}.{secrets.token_urlsafe(30)}",
    "cookie": lambda: f"2|1:0|10:1795168800|5:alice|{secrets.token_urlsafe(20)}|{secrets.token_hex(32)}",
    "private key": lambda: base64.b64encode(secrets.token_bytes(48)).decode(),
    "token of a user": lambda: secrets.token_hex(16),
    "password in a log": lambda: f"log{secrets.token_hex(4)}",
    "token in a reason": lambda: secrets.token_hex(16),
    "password of slurmdbd": lambda: f"dbd{secrets.token_hex(4)}",
    "variable of a unit": lambda: f"unit{secrets.token_hex(4)}",
    "variable of a file of a unit": lambda: f"file{secrets.token_hex(4)}",
}


class Canaries:
    """A site with a canary of each kind, and one session of alice's."""

    def __init__(self, line: CommandLine, patch: pytest.MonkeyPatch) -> None:
        self.line = line
        self.of: dict[str, str | bytes] = {kind: make() for kind, make in KINDS.items()}
        self.log = line.folder / "hub.log"
        self.home = line.folder / "home"
        engine = CarmeStore(url=line.url).open()
        self.of["shared secret"] = shared_secret(engine, "lab", "reporting")
        engine.dispose()
        self._settings()
        self._environment(patch)
        self._files(patch)
        self._rows()
        self._session_folder(patch)
        self._log()
        self._programs(patch)

    def text(self, kind: str) -> str:
        """Return a canary as text."""
        value = self.of[kind]
        return value if isinstance(value, str) else base64.b64encode(value).decode()

    def forms(self) -> Iterator[tuple[str, str]]:
        """Yield every form in which a canary could be in a bundle."""
        for kind, value in self.of.items():
            raw = value.encode() if isinstance(value, str) else value
            yield kind, raw.decode("utf-8", "replace")
            yield kind, raw.hex()
            yield kind, base64.b64encode(raw).decode().rstrip("=")
            yield kind, quote(raw, safe="")

    def found_in(self, files: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return the kinds of the canaries in files, with the names of the files."""
        return [(kind, name) for kind, form in self.forms() for name, text in files.items() if form in text]

    def _settings(self) -> None:
        password = quote(self.text("password of a database"), safe="")
        mail = self.line.folder / "mail-password"
        mail.touch(mode=0o600)
        mail.write_text(self.text("password of mail in a file") + "\n")
        with self.line.file.open("a") as file:
            file.write(
                f"c.JupyterHub.db_url = 'postgresql+psycopg://hub:{password}@127.0.0.1:9/hub'\n"
                f"of_cull = {{'OTHER': {self.text('variable of servers')!r}}}\n"
                f"c.JupyterHub.services = [*c.JupyterHub.services, {{'name': 'cull', 'environment': of_cull,"
                f" 'api_token': {self.text('token of a service')!r},"
                f" 'command': ['cull', '--password', {self.text('option of a command')!r}]}}]\n"
                f"c.GenericOAuthenticator.client_secret = {self.text('secret of single sign-on')!r}\n"
                f"c.SiteThing.phrase = {self.text('value of a class of the site')!r}\n"
                f"c.Spawner.environment = {{'WANDB': {self.text('variable of servers')!r}}}\n"
                f"c.CarmeQuotas.smtp_password_file = {str(mail)!r}\n"
            )
        self.line.file.chmod(0o600)

    def _environment(self, patch: pytest.MonkeyPatch) -> None:
        patch.setenv("JUPYTERHUB_CRYPT_KEY", self.text("key of the environment"))
        patch.setenv("OAUTH_CLIENT_SECRET", self.text("secret of the environment"))
        patch.setenv("JUPYTERHUB_API_TOKEN", self.text("token of the caller"))
        patch.setenv("DATABASE", f"postgresql://u:{self.text('password in an address of the environment')}@h/d")
        patch.delenv("CONFIGPROXY_AUTH_TOKEN", raising=False)

    def _files(self, patch: pytest.MonkeyPatch) -> None:
        state = self.line.folder / "state"
        for name, kind in (("jupyterhub_cookie_secret", "cookie secret"), ("proxy-token", "proxy token")):
            (state / name).touch(mode=0o600)
            (state / name).write_text(self.text(kind) + "\n")
        munge = self.line.folder / "munge.key"
        munge.write_bytes(bytes(self.of["munge key"]))  # type: ignore[arg-type]
        variables = self.line.folder / "secrets"
        variables.write_text(f"# of the hub\nSITE='{self.text('variable of a file of a unit')}'\n")
        patch.setattr(known, "SECRET_FILES", (str(munge),))
        patch.setattr(known, "ENVIRONMENT_FILES", (str(variables),))

    def _rows(self) -> None:
        engine = CarmeStore(url=self.line.url).open()
        row = Session(ID, "lab", "alice", "train", Request("cpu", "default"), SessionState.ENDED, 1_795_168_800.0)
        hash = self.text("hash of a nonce")
        reason = f"The server printed token={self.text('token in a reason')} and {self.text('proxy token')}."
        SessionStore(engine).add(row.replace(nonce_hash=hash, job_id=4711, ended=1_795_169_000.0, end_reason=reason))
        engine.dispose()

    def _session_folder(self, patch: pytest.MonkeyPatch) -> None:
        folder = self.home / ".carme" / "sessions" / ID
        folder.mkdir(parents=True)
        server = {"nonce": self.text("nonce"), "environ": {"JUPYTERHUB_API_TOKEN": self.text("token of a server")}}
        key = f"-----BEGIN PRIVATE KEY-----\n{self.text('private key')}\n-----END PRIVATE KEY-----"
        (folder / "data.json").write_text(json.dumps({"singleuser": server, "files": {"tls.key": {"text": key}}}))
        words = f"said {self.text('nonce')} and {self.text('token of a server')}\n"
        (folder / "job.log").write_text(f"{words}{key}\nhere it ended\n")
        uid = (folder / "job.log").stat().st_uid
        real = pwd.getpwnam
        forged = SimpleNamespace(pw_name="alice", pw_dir=str(self.home), pw_uid=uid)
        users = SimpleNamespace(getpwnam=lambda name: forged if name == "alice" else real(name))
        patch.setattr(job_log, "pwd", users)

    def _log(self) -> None:
        head = "[E 2026-11-20 10:00:01.000 JupyterHub base:1]"
        naked = [self.text(kind) for kind in KINDS if kind not in self._only_named()]
        raw = bytes(self.of["munge key"])  # type: ignore[arg-type]
        key = f"-----BEGIN RSA PRIVATE KEY-----\n{self.text('private key')}\n-----END RSA PRIVATE KEY-----"
        self.log.write_text(
            f"{head} Session {ID} of alice: Authorization: token {self.text('token of a user')}\n"
            f"{head} Session {ID} Cookie: a=b; jupyterhub-hub-login={self.text('cookie')}\n"
            f"{head} Session {ID} password: {self.text('password in a log')}\n"
            f"{head} Session {ID} {{'db_password': '{self.text('password in a log')}'}}\n"
            f"{head} Session {ID} munge {raw.hex()} {raw.hex().upper()}\n"
            + "".join(f"{head} Session {ID} met {quote(each, safe='')} and {each}\n" for each in naked)
            + f"{key}\n"
        )

    def _only_named(self) -> set[str]:
        """Return the kinds that nobody can recognize by themselves: each stands after its name, and nowhere else."""
        kinds = ("private key", "password in a log", "password of slurmdbd", "variable of a unit")
        return {*kinds, "value of a class of the site"}

    def _programs(self, patch: pytest.MonkeyPatch) -> None:
        folder = self.line.folder / "bin"
        folder.mkdir()
        answers = {
            "scontrol": f"ClusterName = lab\nAccountingStoragePass = {self.text('password of slurmdbd')}\n",
            "squeue": "RUNNING|gpu|None\nRUNNING|gpu|None\nPENDING|gpu|Priority\n",
            "sinfo": "node1|gpu|idle|gpu:a100:2|8|1000|22.05|none\n",
            "sacctmgr": f"alice\nStoragePass = {self.text('password of slurmdbd')}\n",
            "systemctl": f"ExecStart=/x --token={self.text('token of a user')}\n"
            f'Environment="SITE={self.text("variable of a unit")}" LANG=C\n',
            "journalctl": f"2026-11-20T10:00:01+0000 host hub[1]: token {self.text('token of a user')}\n",
        }
        for name, answer in answers.items():
            (folder / f"{name}.out").write_text(answer)
            (folder / name).write_text(f'#!/bin/sh\necho "$*" >>{folder}/calls\ncat {folder}/{name}.out\n')
            (folder / name).chmod(0o755)
        patch.setenv("PATH", str(folder), prepend=":")

    def calls(self) -> list[str]:
        """Return what was asked of programs."""
        file = self.line.folder / "bin" / "calls"
        return file.read_text().splitlines() if file.exists() else []


def unpacked(bundle: Path) -> dict[str, str]:
    """Return the files of a bundle by their paths in it."""
    import tarfile

    with tarfile.open(bundle) as archive:
        members = archive.getmembers()
        top = bundle.name.removesuffix(".tar.gz")
        assert all(each.isfile() and each.mode == 0o600 and each.name.startswith(f"{top}/") for each in members)
        read = {each.name.removeprefix(f"{top}/"): archive.extractfile(each) for each in members}
        return {name: file.read().decode() for name, file in read.items() if file is not None}
