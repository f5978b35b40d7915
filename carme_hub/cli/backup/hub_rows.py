"""The rows of JupyterHub's own database that a session's server needs: its user, server, token and OAuth client.

JupyterHub makes them at a start (``jupyterhub.user.User.spawn``); here they are made again for a server that runs, from
what it was started with. The hub must not run. Names and paths are computed, not taken from the session's document,
which its user can change; from it comes the token alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

from jupyterhub import orm
from jupyterhub.roles import get_default_roles
from jupyterhub.utils import hash_token, url_escape_path, url_path_join

from carme_hub.config import QUOTA_SERVER_SCOPES, RESERVATION_SERVER_SCOPES
from carme_hub.domain.sessions.recovered import ServerSecrets
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import CarmeError, StoreError
from carme_hub.store.engine import store_errors

#: JupyterHub's own client, to which the tokens of servers belong.
_HUB_CLIENT = "jupyterhub"
#: How JupyterHub's own tokens look, which need no slow hash.
_OWN_TOKEN = re.compile(r"[0-9a-f]{32}")


class NoServer(CarmeError):
    """The rows of a server cannot be made; the message says why."""


def _path_of(url: str) -> str:
    try:
        return urlsplit(url).path
    except ValueError:
        return ""


class HubRows:
    """JupyterHub's database of a hub that does not run.

    Args:
        hub: the JupyterHub application of the configuration, not initialized.
        quotas, reservations: whether sessions see these services, as ``configure`` lets them.

    Raises:
        StoreError: the database is of another release of JupyterHub.
    """

    def __init__(self, hub: Any, *, quotas: bool, reservations: bool) -> None:
        self._hub = hub
        self._more = (QUOTA_SERVER_SCOPES if quotas else ()) + (RESERVATION_SERVER_SCOPES if reservations else ())
        try:
            self._db = orm.new_session_factory(hub.db_url, **hub.db_kwargs)()
        except orm.DatabaseSchemaMismatch as error:
            raise StoreError(f"JupyterHub's database is of another release: {error}") from error
        self.is_new = self._db.query(orm.User).first() is None

    def close(self) -> None:
        """Close the database."""
        self._db.close()
        self._db.get_bind().dispose()

    def profile_of(self, user: str, server_name: str, session: str) -> str:
        """Return the profile that a session was started with, "" where this database does not know the session."""
        spawner = self._spawner(user, server_name)
        if spawner is None or (spawner.state or {}).get("session") != session:
            return ""
        return str((spawner.user_options or {}).get("profile", ""))

    def has_session(self, session: Session) -> bool:
        """Return whether the database has the server of a session, and the server's token."""
        spawner = self._spawner(session.user, session.server_name)
        if spawner is None or spawner.server is None or (spawner.state or {}).get("session") != session.id:
            return False
        token = self._db.get(orm.APIToken, session.token_id) if session.token_id else None
        owns = token is not None and token.user is not None and token.user.name == session.user
        return owns and spawner.oauth_client is not None

    def put_server(self, session: Session, server: ServerSecrets, node: str, port: int) -> int:
        """Make the rows of a session's server, or complete them; return the number of its token.

        Args:
            node, port: where the server is, as far as it is known; the hub finds it again at its start.

        Raises:
            NoServer: it cannot be done for this server. StoreError: the database fails. Nothing is written then.
        """
        try:
            with store_errors(f"JupyterHub's database did not take the server of {session.user}"):
                token = self._put(session, server, node, port)
                self._db.commit()
        except BaseException:
            self._db.rollback()  # what is half made would be written with the next session
            raise
        return int(token.id)

    def _put(self, session: Session, server: ServerSecrets, node: str, port: int) -> Any:
        if self._hub.subdomain_host:
            raise NoServer("with subdomains (JupyterHub.subdomain_host) the rows of servers are not made again")
        user, name = self._user(session.user), session.server_name
        base = url_path_join(self._hub.base_url, "user", url_escape_path(session.user), url_escape_path(name), "/")
        if base.rstrip("/") != _path_of(server.prefix).rstrip("/"):
            raise NoServer(f"it was started as {server.prefix!r}, and this hub would have it at {base}")
        spawner = self._spawner(session.user, name)
        if spawner is None:
            spawner = orm.Spawner(name=name, user=user)
            self._db.add(spawner)
        if spawner.server is None:
            spawner.server = orm.Server(base_url=base)
        spawner.server.proto = "https" if self._hub.internal_ssl else "http"
        spawner.server.ip, spawner.server.port, spawner.server.base_url = node, port or 1, base
        spawner.state = {**(spawner.state or {}), "session": session.id}
        moment = datetime.fromtimestamp(session.created, UTC).replace(tzinfo=None)
        spawner.started = moment
        spawner.last_activity = spawner.last_activity or moment
        spawner.oauth_client = self._client(session, server.token)
        token = self._token(session.user, server.token)
        if token is None:
            token = self._new_token(user, session, server.token, base, moment)
        return token

    def _user(self, name: str) -> Any:
        user = orm.User.find(self._db, name)
        if user is None:
            user = orm.User(name=name)
            self._db.add(user)
        return user

    def _spawner(self, user: str, name: str) -> Any:
        found = orm.User.find(self._db, user)
        return found.orm_spawners.get(name) if found is not None else None

    def _token(self, user: str, token: str) -> Any:
        """Return the row of a user's token; raise ``NoServer`` where it is somebody else's."""
        found = orm.APIToken.find_prefix(self._db, token).all()
        match = next((each for each in found if each.match(token)), None)
        if match is not None and (match.user is None or match.user.name != user):
            raise NoServer("its document names a token of somebody else")
        return match

    def _client(self, session: Session, token: str) -> Any:
        identifier = f"jupyterhub-user-{quote(session.user)}"
        if session.server_name:
            identifier = f"{identifier}-{quote(session.server_name)}"
        client = self._find_client(identifier)
        user, name = url_escape_path(session.user), url_escape_path(session.server_name)
        path = url_path_join(self._hub.base_url, "user", user, name)
        client.secret = hash_token(token)
        client.redirect_uri = url_path_join(path, "oauth_callback")
        client.description = f"Server at {path}/"
        client.allowed_scopes = sorted(
            {*self._allowed_scopes(), f"access:servers!server={session.user}/{session.server_name}"}
        )
        return client

    def _allowed_scopes(self) -> Sequence[str]:
        """Return what the configuration lets servers do for their visitors; what a function returns is not known."""
        found = self._hub.config.Spawner.get("oauth_client_allowed_scopes", [])
        return [str(scope) for scope in found] if isinstance(found, list) else []

    def _find_client(self, identifier: str) -> Any:
        client = self._db.query(orm.OAuthClient).filter_by(identifier=identifier).one_or_none()
        if client is None:
            client = orm.OAuthClient(identifier=identifier, secret="", redirect_uri="", description=identifier)
            self._db.add(client)
            self._db.flush()
        return client

    def _new_token(self, user: Any, session: Session, token: str, base: str, moment: datetime) -> Any:
        """Make the row of a server's token with the scopes that JupyterHub's role ``server`` and ours have."""
        self._find_client(_HUB_CLIENT)
        roles = [*get_default_roles(), *self._hub.load_roles]
        of_server = [role["scopes"] for role in roles if role["name"] == "server" and role.get("scopes")]
        wanted = {*of_server[-1], *self._more}
        if isinstance(configured := self._hub.config.Spawner.get("server_token_scopes", None), list):
            wanted = {*configured, "users:activity!user"}
        scopes = sorted(
            f"{each}={session.user}/{session.server_name}" if each.endswith("!server") else each for each in wanted
        )
        row = orm.APIToken(
            generated=bool(_OWN_TOKEN.fullmatch(token)),
            note=f"Server at {base}",
            client_id=_HUB_CLIENT,
            scopes=scopes,
            # Not after the session: the hub revokes a token at the end of a session only if it is as old.
            created=moment,
        )
        self._db.add(row)
        row.token = token
        row.user = user
        self._db.flush()
        return row
