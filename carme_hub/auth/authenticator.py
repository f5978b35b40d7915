"""``CarmeAuthenticator``: any login of JupyterHub, for users of this system, allowed by name, group or account.

When the hub starts, ``CarmeAuthenticator`` becomes a subclass of the class that ``authenticator_class`` names. So login
pages, OAuth handlers and every setting of that class work unchanged, and these rules come first in each step: the user
must be in the system's user database, with uid 1000 or more and an open account; a setting must allow the user; groups
are those of the system, ``account:<name>`` from Slurm, and ``role:<name>`` from ``role_groups``. All of it is checked
again every minute and before each start. If Slurm does not answer, accounts stay as last known.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

from jupyterhub.auth import Authenticator
from jupyterhub.utils import maybe_future
from tornado.web import HTTPError
from traitlets import default

from carme_hub.address import address_key, client_address
from carme_hub.domain.quotas.group_names import ACCOUNT_GROUP, ROLE_GROUP, accounts_in
from carme_hub.errors import Refused
from carme_hub.sessions.associations import AssociationCache

from . import login_policies, system_users
from .account_status import AccountStatus, AccountsUnknown, NotAllowed
from .authenticator_class import separate_groups, with_login_class
from .login_limiter import LoginLimiter, TooManyTries
from .revocation import Revoker
from .secret_files import check_hub_files
from .service_tls import use_client_tls_for_services
from .settings import AuthenticatorSettings

#: Seconds that a request waits for Slurm's answer about accounts, if there is an older answer and if there is none.
WAIT_FOR_UPDATE, WAIT_FOR_FIRST = 0.5, 5.0


class SystemName(str):
    """A name found in the system's user database; it is not normalized again."""

    __slots__ = ()


class CarmeAuthenticator(AuthenticatorSettings):
    """Decide who may log in, with which groups, accounts and roles; another class does the login itself."""

    def __new__(cls, *args: Any, **kwargs: Any) -> CarmeAuthenticator:
        """Make an instance of a class that derives from this one and from the configured one."""
        both: Any = cls
        if cls.wrapped is None:
            both = with_login_class(cls, kwargs.get("config") or getattr(kwargs.get("parent"), "config", None))
        return super().__new__(both, *args, **kwargs)

    #: The class that does the login; set on the class that ``with_login_class`` makes.
    wrapped: type[Authenticator] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limiter = LoginLimiter(self.login_tries, self.login_window)
        self.revoker = Revoker(self.account_status, self.revoke_interval, self.log)
        self._associations: AssociationCache | None = None
        self._policies = login_policies.POINT.load_all(self.login_policies, self)
        self._groups_of_system: set[str] | None = None
        if (apart := separate_groups(type(self), self.config)) is not None:
            self.set_trait("any_allow_config", bool(self.any_allow_config))  # as both settings together make it
            self._groups_of_system, self.allowed_groups = apart

    # ----- logging in -------------------------------------------------------------------------------------------

    async def get_authenticated_user(self, handler: Any, data: Any) -> dict[str, Any] | None:
        """Count the attempt, let the login class and the rules decide, and do not count it if it succeeds."""
        attempt = None
        if isinstance(data, dict) and data:
            address = address_key(self._address_of(handler))
            name = str(data.get("username", ""))[:256].strip().lower()
            try:
                attempt = self.limiter.enter(f"user {name}", f"address {address}")
            except TooManyTries as error:
                self.log.warning("Login of %r from %s refused: too many attempts", name[:32], address)
                refusal: Any = HTTPError(429, error.message)
                refusal.headers = {"Retry-After": str(error.wait)}
                raise refusal from error
        try:
            model: dict[str, Any] | None = await super().get_authenticated_user(handler, data)
            if model is not None:  # not in check_allowed, which allow_all skips
                await self._check_policies_at_login(str(model["name"]), model.get("groups") or ())
        except HTTPError as error:
            if attempt is not None and error.status_code >= 500:
                self.limiter.undo(attempt)  # our fault, not a wrong password
            raise
        if model is not None:
            model["name"] = str(model["name"])
            if attempt is not None:
                self.limiter.undo(attempt)
        return model

    async def authenticate(self, handler: Any, data: Any) -> dict[str, Any] | None:
        """Let the login class find the name, then return the system user of that name with groups."""
        answer = await maybe_future(super().authenticate(handler, data))
        if not answer:
            return None
        model: dict[str, Any] = answer if isinstance(answer, dict) else {"name": answer}
        try:
            user = await self.person(model["name"])
            groups = await self._groups_of(user, model, await self._hub_user_groups(handler, user.name))
        except Refused as error:
            self.log.warning("Login of %r refused: %s", str(model["name"])[:32], error.message)
            raise HTTPError(403, error.message) from error
        return {**model, **self._admin_of(user.name, groups), "name": SystemName(user.name), "groups": groups}

    async def check_allowed(self, username: str, authentication: dict[str, Any] | None = None) -> bool:
        """Return whether one of the ``allow…`` settings allows the user; without one nobody is allowed."""
        groups = list((authentication or {}).get("groups") or ())
        try:
            self._check_settings(username, groups)
        except AccountsUnknown as error:
            raise HTTPError(503, error.message) from error
        except NotAllowed as error:
            if await maybe_future(super().check_allowed(username, authentication)):
                return True
            self.log.warning("User %r not allowed: %s", username, error.message)
            raise HTTPError(403, error.message) from error
        return True

    def check_allowed_groups(self, username: str, authentication: dict[str, Any] | None = None) -> bool:
        """Return False: ``check_allowed`` has checked ``allowed_groups`` already."""
        del username, authentication
        return False

    def normalize_username(self, username: str) -> str:
        """Return the name by ``username_map``, else as it is: system names are exact, capitals included."""
        if isinstance(username, SystemName):
            return username
        mapped = self.username_map.get(username) or self.username_map.get(username.lower())
        return str(mapped or username)

    # ----- staying in -------------------------------------------------------------------------------------------

    async def refresh_user(self, user: Any, handler: Any = None) -> bool | dict[str, Any]:
        """Check everything again; False refuses the user in this request."""
        inner = await maybe_future(super().refresh_user(user, handler))
        if not inner:
            if not getattr(handler, "_token_authenticated", False):
                return False
            inner = {}  # a request with a token cannot log in again; the hub's own rules still count
        model: dict[str, Any] = dict(inner) if isinstance(inner, dict) else {}
        account_status = await self.account_status(user, model)
        if not account_status.is_allowed:
            self.log.warning("User %s is refused from now on: %s", user.name, account_status.reason)
            if model.get("groups") is not None and account_status.groups:
                # The login has news, and JupyterHub forgets them with a refusal. The revoker, which does not ask the
                # login, ends servers by them.
                user.sync_groups(account_status.groups)
            return False
        groups = list(account_status.groups)
        known = {**model, **self._admin_of(user.name, groups), "groups": groups}
        same = set(groups) == {group.name for group in user.groups} and known.get("admin", user.admin) == user.admin
        # Nothing new needs no write: with a full course, JupyterHub would wait for its database many times a second.
        return True if same and not model else known

    async def account_status(self, user: Any, model: dict[str, Any] | None = None) -> AccountStatus:
        """Return whether a user of the hub is still allowed, and the groups that it has now."""
        model = model or {}
        groups_before = [group.name for group in user.groups]
        if not self.check_blocked_users(user.name, model):
            return AccountStatus.closed(f"{user.name} is blocked on this hub.")
        try:
            person = await self.person(SystemName(user.name))
        except NotAllowed as error:
            return AccountStatus(reason=error.message, proof=error.proof)
        groups = await self._groups_of(person, model, groups_before)
        try:
            self._check_settings(user.name, groups)
        except AccountsUnknown:
            pass
        except NotAllowed as error:
            model = {"name": user.name, "admin": user.admin, "auth_state": None, **model, "groups": groups}
            if model["auth_state"] is None and self.enable_auth_state:
                model["auth_state"] = await user.get_auth_state()
            if not await self._login_class_still_allows(user.name, model):
                return AccountStatus.closed(error.message, tuple(groups))
        try:
            await self._check_policies(user.name, groups)
        except login_policies.PolicyFailed:
            pass  # a failed policy says nothing about the user; new logins are refused meanwhile
        except Refused as error:
            return AccountStatus.closed(error.message)
        return AccountStatus(is_allowed=True, groups=tuple(groups))

    async def _login_class_still_allows(self, name: str, model: dict[str, Any]) -> bool:
        try:
            return bool(await maybe_future(super().check_allowed(name, model)))
        except HTTPError as error:
            return bool(error.status_code >= 500)
        except Exception as error:  # noqa: BLE001 - a failure of another project's code proves nothing about the user
            self.log.warning("Whether %s is still allowed could not be asked, so it stays: %s", name, error)
            return True

    # ----- who and what -----------------------------------------------------------------------------------------

    async def person(self, name: str) -> system_users.SystemUser:
        """Return the system user that a login name means, or raise ``NotAllowed``."""
        candidates = [name]
        if not isinstance(name, SystemName):
            candidates = list(dict.fromkeys((self.normalize_username(name), super().normalize_username(name))))

        def look_up() -> tuple[system_users.SystemUser | None, str]:
            for candidate in candidates:
                if (user := system_users.look_up(str(candidate))) is not None:
                    return user, system_users.closed_reason(user.name)
            return None, ""

        # One thread for both: on a busy hub, every request that refreshes a user waits for each further thread.
        found, closed = await asyncio.to_thread(look_up)
        if found is None or (isinstance(name, SystemName) and found.name != name):
            raise NotAllowed(f"{str(name)[:64]} is not a user of this cluster. Ask the administrators for an account.")
        if found.uid < self.minimum_uid or found.uid == system_users.NOBODY:
            raise NotAllowed(f"{found.name} is a system account, not a person's. Log in as yourself.", proof=True)
        if found.shell in self.refused_shells:
            raise NotAllowed(f"The account {found.name} is closed. Ask the administrators.", proof=True)
        if closed:
            raise NotAllowed(f"The account {found.name} is {closed}. Ask the administrators.", proof=True)
        return found

    async def _groups_of(
        self, user: system_users.SystemUser, model: dict[str, Any], groups_before: Iterable[str]
    ) -> list[str]:
        """Return the hub groups of a user: those of the system and the login, accounts and roles."""
        ours = (ACCOUNT_GROUP, ROLE_GROUP)
        groups = dict.fromkeys(user.groups)
        if self.login_groups:
            given = model.get("groups")
            if given is None:  # the login has no news: its earlier groups are those that are no system groups
                given = await asyncio.to_thread(system_users.names_without_group, list(groups_before))
            groups.update(dict.fromkeys(str(group) for group in given or () if not str(group).startswith(ours)))
        groups.update(dict.fromkeys(await self._account_groups(user.name, groups_before)))
        roles = [ROLE_GROUP + role for role, members in self.role_groups.items() if groups.keys() & set(members)]
        return [*groups, *roles]

    def _admin_of(self, name: str, groups: list[str]) -> dict[str, bool]:
        """Return the admin flag, also False, if ``role_groups`` decides on it."""
        if "admin" not in self.role_groups:
            return {}
        return {"admin": ROLE_GROUP + "admin" in groups or name in self.admin_users}

    async def _account_groups(self, name: str, groups_before: Iterable[str]) -> list[str]:
        associations = self.associations
        if associations is None:
            return []
        # A page does not wait for a Slurm that hangs: the query continues, and the next check has its answer.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_FOR_UPDATE if associations.known else WAIT_FOR_FIRST):
                await associations.refresh(self.accounts_age)
        if not associations.known:
            return [group for group in groups_before if group.startswith(ACCOUNT_GROUP)]
        return [ACCOUNT_GROUP + account for account in associations.accounts_of(name)]

    @property
    def associations(self) -> AssociationCache | None:
        """The cache of associations that the spawner uses, too; None if ``accounts_from_slurm`` is off."""
        if not self.accounts_from_slurm:
            return None
        if self._associations is None:
            self._associations = self.make_book()
        return self._associations

    def _check_settings(self, username: str, groups: list[str]) -> None:
        """Return if one of our settings allows the user; otherwise raise ``NotAllowed`` or ``AccountsUnknown``."""
        allowed = self.allowed_groups if self._groups_of_system is None else self._groups_of_system
        if self.allow_all or username in self.allowed_users or allowed.intersection(groups):
            return
        accounts = set(accounts_in(groups))
        if accounts & (self.allowed_accounts if "*" not in self.allowed_accounts else accounts):
            return
        if self.allowed_accounts and self.associations is not None and not self.associations.known:
            raise AccountsUnknown(
                "Slurm does not answer just now, so it is not known which accounts you may charge. "
                "Try again in a few minutes."
            )
        raise NotAllowed(f"{username} may not use this hub yet. Ask the administrators for access.")

    async def _check_policies(self, name: str, groups: Iterable[str]) -> None:
        """Return if every login policy agrees; otherwise raise ``Refused``."""
        await login_policies.check(self._policies, login_policies.Login(name, frozenset(groups)), self.log)

    async def _check_policies_at_login(self, name: str, groups: Iterable[str]) -> None:
        """Return if every login policy agrees; otherwise raise the response to the login."""
        try:
            await self._check_policies(name, groups)
        except Refused as error:
            self.log.warning("Login of %r denied by a login policy: %s", name, error.message)
            status = 503 if isinstance(error, login_policies.PolicyFailed) else 403
            raise HTTPError(status, error.message) from error

    async def _hub_user_groups(self, handler: Any, name: str) -> list[str]:
        user = handler.find_user(name) if hasattr(handler, "find_user") else None
        return [group.name for group in user.groups] if user is not None else []

    def _address_of(self, handler: Any) -> str:
        hops = getattr(self.parent, "trusted_downstream_ips", ())
        return client_address(handler.request, self.trusted_proxies, hops)

    # ----- the hub's hooks --------------------------------------------------------------------------------------

    async def add_user(self, user: Any) -> None:
        """Add a user to the hub if the system has it."""
        if await asyncio.to_thread(system_users.look_up, user.name) is None:
            self.log.warning("%s is in the hub's database, but not (or not any more) a user of the system", user.name)
            if not self._starting_up:
                raise ValueError(f"{user.name} is not a user of this system")
            return
        await maybe_future(super().add_user(user))

    @property
    def _starting_up(self) -> bool:
        return getattr(self.parent, "http_server", None) is None

    def get_handlers(self, app: Any) -> list[Any]:
        """Return the login class's handlers, and start revoking: the hub serves requests from here on."""
        self.revoker.start(app)
        use_client_tls_for_services(app)
        return list(super().get_handlers(app))

    def check_allow_config(self) -> None:
        """Warn if nobody can log in, and refuse to start if others can read a secret."""
        super().check_allow_config()
        if self.parent is not None and hasattr(self.parent, "cookie_secret_file"):
            check_hub_files(self.parent)

    @default("allow_all")
    def _allow_nobody(self) -> bool:
        return False

    @default("allow_existing_users")
    def _no_existing_users(self) -> bool:
        # JupyterHub's default is True once allowed_users is set: a user who was allowed once would stay allowed.
        return False

    @default("manage_groups")
    def _manage_groups_always(self) -> bool:
        return True
