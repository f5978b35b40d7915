"""The offer of both spawners: settings for profiles and images, the form, and the check of the chosen options.

``OfferSettings`` is mixed into a spawner class, before JupyterHub's own. The class implements ``offer`` (the user's
offer and the state of the cluster) and ``new_session``.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Sequence
from html import escape
from pathlib import PurePosixPath
from typing import Any

from jupyterhub.spawner import SpawnException
from jupyterhub.utils import maybe_future
from sqlalchemy.orm import object_session
from traitlets import Bool, Callable, Dict, Enum, Integer, List, Tuple, Unicode, default
from traitlets import Union as UnionTrait
from traitlets.config import LoggingConfigurable

from carme_hub.containers.images import BACKENDS, BASES, FORMATS, layers_of
from carme_hub.containers.runtime import Bind, Image
from carme_hub.domain.sessions.profile import Profile
from carme_hub.domain.sessions.profile_list import parse_profiles
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import ConfigError, Refused
from carme_hub.sessions.profile_fields import profile_field
from carme_hub.spawners.form.folders import places
from carme_hub.spawners.form.form import Offer, render_form
from carme_hub.spawners.form.options import checked_options, options_from_form, options_from_query
from carme_hub.spawners.job_script import Owner, working_folder


class OfferSettings(LoggingConfigurable):
    """The administrator's settings that both spawners have."""

    profile_list = UnionTrait(
        [List(Dict()), Callable()],
        help="""The profiles: a list in KubeSpawner's format, or a callable that takes the spawner and returns one (it
        may be async). See docs/reference/profiles.md. The default is empty: then the Slurm spawner offers one profile
        made of batchspawner's ``req_*`` names, and a hub with the Docker spawner does not start. Example::

            c.SlurmContainerSpawner.profile_list = [
                {"slug": "a100", "display_name": "A100", "gpus": {"types": ["a100"], "max": 4, "default": 1}},
            ]
        """,
    ).tag(config=True)

    images = List(
        Dict(),
        help="""Container images to choose from, the default image first. ``path`` is the path on compute nodes;
        ``format`` is dir, sqfs, sif or ref; ``base`` is own (a whole system) or host (/opt only, with the node's /usr,
        as the sandbox's image); ``provides`` names backends of trainings that the image has (torchrun, horovod, mpi):
        a template that an image cannot run then offers one that can. ``digest`` keeps to one image, whatever the name
        stands for in the store; ``environ`` has the variables, and ``layer`` the folder of packages inside, or a
        list of them, the uppermost first, of one that the hub cannot see. No default: a site needs one. Example::

            c.SlurmContainerSpawner.images = [
                {"name": "default", "path": "/opt/images/default", "format": "dir", "description": "Python 3.11"},
            ]
        """,
    ).tag(config=True)

    container_binds = List(
        UnionTrait([Unicode(), Tuple()]),
        help="""Host folders in every container: a path (read-only at the same path) or a tuple
        ``(source, destination, "ro" | "rw")``. The user's home is always included. Example::

            c.SlurmContainerSpawner.container_binds = [("/scratch", "/scratch", "rw"), "/data"]
        """,
    ).tag(config=True)

    container_environment = Dict(
        value_trait=Unicode(),
        key_trait=Unicode(),
        help="""Variables for the inside of every container; not for secrets, which belong in ``environment``.
        Example: ``{"HF_HOME": "/scratch/hf"}``.""",
    ).tag(config=True)

    container_root = Enum(
        ("layer", "ro"),
        default_value="layer",
        help="""Writable files besides home and binds. ``layer``: a writable layer that is removed with the session,
        if the runtime has one; ``ro``: none.""",
    ).tag(config=True)

    container_tmp_mib = Integer(
        0, min=0, help="Size of the container's own /tmp in MiB. The default 0 leaves it to the runtime."
    ).tag(config=True)

    stop_grace = Integer(
        10, min=0, help="Seconds that a server and its kernels have to end after TERM, before KILL."
    ).tag(config=True)

    minimum_uid = Integer(
        1000, help="System users below this uid never get a session. The default excludes system accounts."
    ).tag(config=True)

    admission = Callable(
        None,
        allow_none=True,
        help="""Callable (may be async) that takes the spawner and the request before anything is written; it raises
        ``carme_hub.errors.Refused`` to refuse. The default, None, admits everybody within the profiles.""",
    ).tag(config=True)

    virtual = Bool(
        False,
        help="""The GPUs of this cluster are virtual: pages show "virtual GPU". Set by the sandbox.""",
    ).tag(config=True)

    _request: Request | None = None

    @default("options_form")
    def _options_form(self) -> Any:
        return type(self)._render_offer

    @default("options_from_form")
    def _options_from_form(self) -> Any:
        return options_from_form

    @default("apply_user_options")
    def _apply_user_options(self) -> Any:
        return type(self)._choose

    def options_from_query(self, query_data: dict[str, list[str]]) -> dict[str, str | int]:
        """Return the user options of a link, which fill the form in and start nothing."""
        return options_from_query(query_data)

    def _hub_db(self) -> Any:
        return object_session(self.user.orm_user)

    # -- values made from the traits ----------------------------------------------------------------------------------

    def site_images(self) -> tuple[Image, ...]:
        """Return the site's images, the default image first."""
        found = []
        for entry in self.images:
            known_keys = ("format", "base", "description", "provides", "digest", "environ", "layer")
            unknown = set(entry) - {"name", "path", *known_keys}
            if unknown or not {"name", "path"} <= set(entry):
                known = ", ".join(known_keys)
                raise ConfigError(f"images: {entry!r} needs name and path, and knows {known} besides")
            provides = tuple(entry.get("provides", ()))
            if not set(provides) <= set(BACKENDS):
                raise ConfigError(f"images: {entry['name']!r} provides some of {', '.join(BACKENDS)}")
            if entry.get("format", "dir") not in FORMATS:
                raise ConfigError(f"images: the format of {entry['name']!r} is one of {', '.join(FORMATS)}")
            if entry.get("base", "own") not in BASES:
                raise ConfigError(f"images: the base of {entry['name']!r} is own (a whole system) or host")
            if entry.get("format") != "ref" and not PurePosixPath(entry["path"]).is_absolute():
                raise ConfigError(f"images: the path of {entry['name']!r} must be absolute")
            layers = layers_of(entry.get("layer"))
            if not all(PurePosixPath(each).is_absolute() for each in layers):
                raise ConfigError(f"images: the layer of {entry['name']!r} must be absolute")
            digest, environ = entry.get("digest", ""), tuple(dict(entry.get("environ", ())).items())
            if digest and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
                raise ConfigError(f"images: the digest of {entry['name']!r} is sha256: and 64 hexadecimal digits")
            plain = {name: value for name, value in entry.items() if name != "layer"}
            found.append(
                Image(**{**plain, "provides": provides, "digest": digest, "environ": environ, "layers": layers})
            )
        return tuple(found)

    def site_binds(self) -> tuple[Bind, ...]:
        """Return the host folders that are in every container."""
        return tuple(_bind(entry) for entry in self.container_binds)

    async def profiles(self) -> tuple[Profile, ...]:
        """Return all profiles of the site, before the choice of those for one user."""
        profiles: Any = self.profile_list
        if callable(profiles):
            profiles = profiles(self)
            if hasattr(profiles, "__await__"):
                profiles = await profiles
        return parse_profiles(profiles or self.fallback_profiles(), profile_field(self))

    def fallback_profiles(self) -> list[dict[str, object]]:
        """Return the profiles that are offered while ``profile_list`` is empty."""
        return []

    def owner(self) -> Owner:
        """Return the system user of this server, by the exact name.

        Raises:
            Refused: there is no such user, or it is a system account.
        """
        name = str(self.user.name)
        try:
            entry = pwd.getpwnam(name)
        except KeyError as error:
            raise Refused(
                f"There is no system user {name!r} on this cluster. Ask an administrator for an account.",
                reason="no-system-user",
            ) from error
        if entry.pw_name != name or entry.pw_uid < self.minimum_uid:
            raise Refused(f"{name!r} is a system account and gets no session.", reason="system-user")
        home = self.home_of(entry).rstrip("/")
        return Owner(name, entry.pw_uid, entry.pw_gid, home, entry.pw_shell or "/bin/bash")

    def home_of(self, entry: pwd.struct_passwd) -> str:
        """Return a system user's home folder."""
        return entry.pw_dir

    # -- the choice ---------------------------------------------------------------------------------------------------

    async def offer(self) -> Offer:
        """Return this user's offer and the state of the cluster."""
        raise NotImplementedError

    def new_session(self) -> None:
        """Begin a new session; reset the state of the last one."""
        raise NotImplementedError

    async def _render_offer(self) -> str:
        return render_form(await self.offer(), last=self.orm_spawner.user_options)

    async def _choose(self, user_options: dict[str, Any]) -> None:
        """Turn user options into the request, with the same check for form, REST, links and stored options."""
        self.new_session()
        try:
            offer = await self.offer()
            self._request = offer.choose(checked_options(user_options))
            if "node" in user_options:  # it was for this start: JupyterHub would repeat it at the next one
                self.user_options = {name: value for name, value in user_options.items() if name != "node"}
                if self.orm_spawner is not None:
                    self.orm_spawner.user_options = self.user_options
            owner = self.owner()
            binds = (bind.destination for bind in self.site_binds())
            inside = (owner.home, *binds, *places(self._request, offer.folders))
            check_folder(working_folder(owner, self._request), inside)
            if self.admission is not None:
                await maybe_future(self.admission(self, self._request))
        except Refused as error:
            raise refusal(error) from error


def refusal(error: Refused) -> SpawnException:
    """Return a refusal as JupyterHub's exception: shown to the user unchanged, and not counted as a server error."""
    return failure(error.message, error.reason)


def failure(message: str, reason: str, *, html: str = "", status: int = 400) -> SpawnException:
    """Return JupyterHub's exception for a start that failed for a known reason; the message is shown unchanged.

    Args:
        html: shown on pages instead of the message; already escaped.
        status: of the HTTP answer.
    """
    exception = SpawnException(message, reason=reason, message_html=html, status_code=status)
    exception.jupyterhub_message = message  # the message for the API and progress events
    return exception


def ended_early(why: str, tail: str, status: int = 500, reason: str = "session-ended") -> SpawnException:
    """Return the exception for a session that ended before its server answered, with the end of its log."""
    shown = f"<p>{escape(why)}</p>"
    if tail:
        shown += f'<p>The end of its log:</p><pre class="text-start">{escape(tail)}</pre>'
    return failure(why, reason, html=shown, status=status)


def check_folder(folder: str, places: Sequence[str]) -> None:
    """Refuse a working folder that the container does not have.

    Raises:
        Refused: the message names the folders inside which it can be.
    """
    if not any(PurePosixPath(folder).is_relative_to(place) for place in places):
        raise Refused(
            f"The working folder {folder} is not in your container. Take one inside {', '.join(places)}.",
            reason="working-folder",
        )


def _bind(entry: Any) -> Bind:
    if isinstance(entry, str):
        return Bind(entry, entry)
    if len(entry) not in (2, 3) or (len(entry) == 3 and entry[2] not in ("ro", "rw")):
        raise ConfigError(f"container_binds: {entry!r} is a path, or (source, destination, 'ro' or 'rw')")
    return Bind(*entry)
