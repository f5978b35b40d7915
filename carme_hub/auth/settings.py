"""Settings of ``CarmeAuthenticator``; ``authenticator`` has the rules that read them."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

from jupyterhub.auth import Authenticator, PAMAuthenticator
from jupyterhub.traitlets import EntryPointType
from traitlets import Bool, Dict, Float, Integer, List, Set, TraitError, Unicode, Union, default, validate
from traitlets import Callable as CallableTrait

from carme_hub.sessions.associations import AssociationCache, associations_of_cluster


class AuthenticatorSettings(Authenticator):
    """The settings, apart from the rules that read them."""

    authenticator_class = EntryPointType(
        klass=Authenticator,
        entry_point_group="jupyterhub.authenticators",
        default_value=PAMAuthenticator,
        help="""The authenticator that does the login: an entry point's name, a dotted path or a class. All of its
        own settings keep working under its own name. The default is PAM with this machine's users. Example::

            c.CarmeAuthenticator.authenticator_class = "github"
            c.GitHubOAuthenticator.client_id = "…"
        """,
    ).tag(config=True)

    allowed_groups = Set(
        Unicode(),
        help="""Groups of the system (and of the login, with ``login_groups``) whose members may use the hub. Empty, the
        default, allows nobody by group. Example: ``c.CarmeAuthenticator.allowed_groups = {"gpu-users"}``.""",
    ).tag(config=True, allow_config=True)

    allowed_accounts = Set(
        Unicode(),
        help="""Slurm accounts whose users may use the hub; ``"*"`` is any account. Empty, the default, allows nobody
        by account. Example: ``c.CarmeAuthenticator.allowed_accounts = {"physics", "chem"}``.""",
    ).tag(config=True, allow_config=True)

    login_policies = List(
        Union([Unicode(), CallableTrait()]),
        help="""Further conditions of a login: names of entry points of installed packages, or callables. Each takes a
        ``carme_hub.auth.login_policies.Login`` and raises ``carme_hub.errors.Refused`` to deny. They are called after
        the other settings have allowed a user, and again while the user is logged in: a user who is denied then loses
        servers, tokens and logins. Empty by default. See docs/howto/add-a-login-policy.md. Example::

            c.CarmeAuthenticator.login_policies = ["signed-rules-of-use"]
        """,
    ).tag(config=True)

    minimum_uid = Integer(
        1000,
        min=1,
        help="""The lowest uid of a person. Root and system accounts below it are refused, whatever else allows them.
        The default is that of Debian and Red Hat.""",
    ).tag(config=True)

    refused_shells = Set(
        Unicode(),
        help="""Login shells of closed accounts. Empty by default, since many sites give no shell to people who only
        use JupyterHub. Example: ``c.CarmeAuthenticator.refused_shells = {"/usr/sbin/nologin"}``.""",
    ).tag(config=True)

    login_groups = Bool(
        False,
        help="""Use the groups that the login itself gives (OAuth, LDAP) together with the system's. Off by default:
        then no outside service decides who is in a group that the system has, too.""",
    ).tag(config=True)

    role_groups = Dict(
        per_key_traits=None,
        value_trait=Union([Set(Unicode()), List(Unicode())]),
        key_trait=Unicode(),
        help="""Which groups have which role: ``teacher``, ``operator``, ``admin`` (see the page on roles). A member of
        one of the groups joins the hub group ``role:<role>``, which carries the role's scopes, and leaves it when the
        membership ends; ``admin`` is JupyterHub's admin flag, set and cleared in the same way. Groups are the
        system's, the login's, or ``account:<name>``. Empty by default: nobody has more than a user's rights. Example::

            c.CarmeAuthenticator.role_groups = {"admin": {"hub-admins"}, "teacher": {"lecturers"}}
        """,
    ).tag(config=True)

    accounts_from_slurm = Bool(
        True,
        help="""Read the users' accounts from Slurm's associations (one query for all users, see ``accounts_age``) and
        make a group ``account:<name>`` of each. Switch it off if there is no Slurm.""",
    ).tag(config=True)

    accounts_age = Float(
        60.0,
        min=0.0,
        help="""Seconds for which Slurm's answer about associations is cached. If Slurm does not answer, the last
        answer stays in use, however old it is.""",
    ).tag(config=True)

    login_tries = Integer(
        10,
        min=0,
        help="""Failed logins allowed within ``login_window``, counted for each user name and for each address. Further
        attempts get status 429 and are not checked. 0 switches the limit off.""",
    ).tag(config=True)

    login_window = Float(
        300.0,
        min=1.0,
        help="Seconds after which a failed login is forgotten.",
    ).tag(config=True)

    trusted_proxies = List(
        Unicode(),
        help="""Addresses or networks of the hub's proxy, if it does not run on the hub's machine. ``X-Forwarded-For``
        is used only from there, and only its last entry, so that no client chooses its own address; list
        proxies in front of that one in ``JupyterHub.trusted_downstream_ips``. The default is this machine only.
        Example: ``c.CarmeAuthenticator.trusted_proxies = ["10.0.0.7"]``.""",
    ).tag(config=True)

    revoke_interval = Float(
        60.0,
        min=0.0,
        help="""Seconds between two checks of all users with a server. Servers, tokens and logins of a closed account
        are ended at the first check; those of a missing account at the third, since a directory may not answer for a
        while. 0 switches the checks off: then a closed account is refused, but its servers continue.""",
    ).tag(config=True)

    make_book = CallableTrait(
        help="""Returns the ``AssociationCache`` from which accounts are read. The default queries the Slurm of
        ``CarmeSlurm``; a site with another source of accounts sets its own."""
    ).tag(config=True)

    @default("make_book")
    def _slurm_associations(self) -> Callable[[], AssociationCache]:
        def make() -> AssociationCache:
            # Only here: one GPU box without Slurm needs none of it.
            from carme_hub.slurm.settings import CarmeSlurm

            return associations_of_cluster(CarmeSlurm(parent=self).client(), self.log)

        return make

    @validate("trusted_proxies")
    def _networks(self, proposal: dict[str, Any]) -> list[str]:
        for network in proposal["value"]:
            try:
                ip_network(network, strict=False)
            except ValueError as error:
                raise TraitError(f"CarmeAuthenticator.trusted_proxies: {network!r} is no address or network") from error
        return list(proposal["value"])

    @default("auth_refresh_age")
    def _refresh_often(self) -> int:
        return 30

    @default("auth_refresh_strict")
    def _refuse_tokens_too(self) -> bool:
        # Otherwise the tokens of a closed account work on.
        return True

    @default("refresh_pre_spawn")
    def _look_before_each_start(self) -> bool:
        return True
