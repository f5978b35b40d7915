"""The traits of ``CarmeAuthenticator``; what they do is in ``authenticator``."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

from jupyterhub.auth import Authenticator, PAMAuthenticator
from jupyterhub.traitlets import EntryPointType
from traitlets import Bool, Dict, Float, Integer, List, Set, TraitError, Unicode, Union, default, validate
from traitlets import Callable as CallableTrait

from carme_hub.sessions.associations import AssociationBook, book_of


class AuthenticatorSettings(Authenticator):
    """The settings, apart from the rules that read them."""

    authenticator_class = EntryPointType(
        klass=Authenticator,
        entry_point_group="jupyterhub.authenticators",
        default_value=PAMAuthenticator,
        help="""The authenticator that knows how to log in: an entry point's name, a dotted path or a class. All of its
        own settings keep working under its own name. The default is PAM on this machine's users. Example::

            c.CarmeAuthenticator.authenticator_class = "github"
            c.GitHubOAuthenticator.client_id = "…"
        """,
    ).tag(config=True)

    allowed_groups = Set(
        Unicode(),
        help="""Groups of the system (and of the login, with ``login_groups``) whose members may use the hub. Empty, the
        default, lets nobody in by group. Example: ``c.CarmeAuthenticator.allowed_groups = {"gpu-users"}``.""",
    ).tag(config=True, allow_config=True)

    allowed_accounts = Set(
        Unicode(),
        help="""Slurm accounts whose users may use the hub; ``"*"`` is any account. Empty, the default, lets nobody in
        by account. Example: ``c.CarmeAuthenticator.allowed_accounts = {"physics", "chem"}``.""",
    ).tag(config=True, allow_config=True)

    login_policies = List(
        Union([Unicode(), CallableTrait()]),
        help="""Further rules that must agree to a login: names by which installed packages add them, or callables. Each
        takes a ``carme_hub.auth.login_policies.Login`` and raises ``carme_hub.errors.Refused`` to deny. They are asked
        after the other settings have let a user in, and again while the user is in: servers, tokens and logins of who
        is denied then are ended. Empty by default. See docs/howto/add-a-login-policy.md. Example::

            c.CarmeAuthenticator.login_policies = ["signed-rules-of-use"]
        """,
    ).tag(config=True)

    minimum_uid = Integer(
        1000,
        min=1,
        help="""The lowest user number that is a person. Root and system accounts below it are refused, whatever else
        is allowed. The default is Debian's and Red Hat's own boundary.""",
    ).tag(config=True)

    refused_shells = Set(
        Unicode(),
        help="""Login shells that mean "this account is closed". Empty by default, since many sites give people who
        only use JupyterHub no shell. Example: ``c.CarmeAuthenticator.refused_shells = {"/usr/sbin/nologin"}``.""",
    ).tag(config=True)

    login_groups = Bool(
        False,
        help="""Let the groups that the login itself gives (OAuth, LDAP) count beside the system's. Off by default: then
        nobody outside decides who is in a group that the system has too.""",
    ).tag(config=True)

    role_groups = Dict(
        per_key_traits=None,
        value_trait=Union([Set(Unicode()), List(Unicode())]),
        key_trait=Unicode(),
        help="""Which groups have which role: ``teacher``, ``operator``, ``admin`` (see the page on roles). A member of
        one of the groups joins the hub group ``role:<role>``, which carries the role's scopes, and leaves it when the
        membership ends; ``admin`` is JupyterHub's admin flag, given and taken in the same way. Groups are the
        system's, the login's, or ``account:<name>``. Empty by default: nobody has more than a user's rights. Example::

            c.CarmeAuthenticator.role_groups = {"admin": {"hub-admins"}, "teacher": {"lecturers"}}
        """,
    ).tag(config=True)

    accounts_from_slurm = Bool(
        True,
        help="""Read the users' accounts from Slurm's associations (one query for everybody, see ``accounts_age``) and
        make a group ``account:<name>`` of each. Switch it off where there is no Slurm.""",
    ).tag(config=True)

    accounts_age = Float(
        60.0,
        min=0.0,
        help="""Seconds for which Slurm's answer about associations is used again. When Slurm does not answer, the
        last answer stays, however old.""",
    ).tag(config=True)

    login_tries = Integer(
        10,
        min=0,
        help="""Failed logins allowed within ``login_window``, counted for each user name and for each address. Further
        tries get 429 and are not looked at. 0 switches the limit off.""",
    ).tag(config=True)

    login_window = Float(
        300.0,
        min=1.0,
        help="Seconds after which a failed login is forgotten.",
    ).tag(config=True)

    trusted_proxies = List(
        Unicode(),
        help="""Addresses or networks of the hub's proxy, where it does not run on the hub's machine. Only from there
        is ``X-Forwarded-For`` believed, and only its last entry, so that no client chooses its own address; list
        proxies in front of that one in ``JupyterHub.trusted_downstream_ips``. The default is this machine only.
        Example: ``c.CarmeAuthenticator.trusted_proxies = ["10.0.0.7"]``.""",
    ).tag(config=True)

    revoke_interval = Float(
        60.0,
        min=0.0,
        help="""Seconds between two looks at everybody who has a server. Servers, tokens and logins of an account that
        is closed are ended at the first look; of one that is merely missing at the third, since a directory may be
        silent for a while. 0 never looks: then a closed account is refused, but what runs goes on.""",
    ).tag(config=True)

    make_book = CallableTrait(
        help="""Returns the ``AssociationBook`` to read accounts from. The default asks the Slurm that ``CarmeSlurm``
        describes; a site with another source of accounts gives its own."""
    ).tag(config=True)

    @default("make_book")
    def _book_of_slurm(self) -> Callable[[], AssociationBook]:
        def make() -> AssociationBook:
            # Only here: one GPU box without Slurm needs none of it.
            from carme_hub.slurm.settings import CarmeSlurm

            return book_of(CarmeSlurm(parent=self).client(), self.log)

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
