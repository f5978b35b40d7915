"""Facts and answers as files: path, mode, owner, text. Pure; the templates and helpers come as text.

Everything belongs to root and stands outside of what the hub can write: a hub in wrong hands changes none of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import PurePosixPath
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined

from .answers import Answers
from .checks import image_format
from .facts import Facts
from .offers import profiles

#: Where units find programs, after those beside our own.
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TOKEN_LIFESPAN = 300
_LINE = 90
_HELPERS = {"sudo": ("carme-submit", "carme-jobs"), "rest": ("carme-token", "carme-jobs")}


@dataclass(frozen=True, slots=True)
class File:
    """One file of a site.

    Attributes:
        path: absolute. purpose: in a few words, for the list of files.
    """

    path: str
    text: str
    purpose: str
    mode: int = 0o644
    owner: str = "root"


@dataclass(frozen=True, slots=True)
class Sources:
    """What the package brings.

    Attributes:
        bin: folder of its programs (carme-hub, jupyterhub). templates: name to text. helpers: name to text.
    """

    bin: str
    templates: Mapping[str, str]
    helpers: Mapping[str, str]


def units(answers: Answers) -> tuple[str, str]:
    """Return the names of the hub's unit and of the proxy's."""
    return f"{answers.site}.service", f"{answers.site}-proxy.service"


def timer(site: str) -> str:
    """Return the name of the timer that has images of users published; a site without a store of images has none."""
    return f"{site}-images.timer"


def config_file(answers: Answers) -> str:
    """Return the path of the hub's configuration."""
    return f"{answers.config_folder}/jupyterhub_config.py"


def offered(facts: Facts, answers: Answers) -> list[dict[str, Any]]:
    """Return the profiles of the partitions that are offered, in the order of the answer."""
    found = [facts.partition(name) for name in answers.partitions]
    return profiles([each for each in found if each is not None])


def site_files(facts: Facts, answers: Answers, sources: Sources) -> tuple[File, ...]:
    """Return all files of a site, in the order in which they are shown and written."""
    render = _Renderer(facts, answers, sources)
    hub, proxy = units(answers)
    folder, site = answers.config_folder, answers.site
    found = [
        *_helpers(facts, answers, sources),
        File(config_file(answers), render("jupyterhub_config.py"), "the hub's configuration"),
        File(f"/etc/sudoers.d/{site}", render("sudoers"), "what the hub may do as others", 0o440),
        File(f"/etc/systemd/system/{proxy}", render("proxy.service"), "unit of the proxy"),
        File(f"/etc/systemd/system/{hub}", render("hub.service"), "unit of the hub"),
        File(f"/etc/logrotate.d/{site}", render("logrotate"), "rotation of the audit log"),
    ]
    if answers.image_store:
        name = f"/etc/systemd/system/{timer(site)}"
        found.append(File(name, render("images.timer"), "timer for the next one"))
        text = render("images.service")
        found.append(File(name.replace(".timer", ".service"), text, "unit that publishes images of users"))
    if web_file := _web_file(answers):
        found.append(File(f"{folder}/{web_file}", render(web_file), "for the web server; you include it"))
    found.append(File(f"{folder}/prometheus.yml", render("prometheus.yml"), "for Prometheus; you include it"))
    return tuple(found)


def _helpers(facts: Facts, answers: Answers, sources: Sources) -> list[File]:
    settings = f"{PurePosixPath(answers.libexec).parent / 'etc'}"
    found = [
        File(f"{answers.libexec}/{name}", sources.helpers[name], "helper, as it comes with the package", 0o755)
        for name in _HELPERS[answers.submit_via]
    ]
    submit = {
        "sbatch": facts.sbatch,
        "slurm_conf": answers.slurm_conf or facts.slurm_conf,
        "group": answers.group,
        "roots": [],
        "extra": ["comment"] if answers.node_images else [],  # in which a job names its image to Slurm's Prolog
    }
    found.append(File(f"{settings}/carme-submit.json", json.dumps(submit, indent=1) + "\n", "settings of the helpers"))
    if answers.submit_via == "rest":
        token = {"jwt_key": facts.jwt_key, "group": answers.group, "lifespan": _TOKEN_LIFESPAN}
        text = json.dumps(token, indent=1) + "\n"
        found.append(File(f"{settings}/carme-token.json", text, "settings of the token helper"))
    if answers.folders:
        found += [
            File(f"{answers.libexec}/{name}", sources.helpers[name], "helper, as it comes with the package", mode)
            for name, mode in (("carme-folders", 0o755), ("carme-folders-acls", 0o644), ("carme-folders-tree", 0o644))
        ]
        text = json.dumps({"group": answers.group, "roots": {"projects": answers.folders}}, indent=1) + "\n"
        found.append(File(f"{settings}/carme-folders.json", text, "settings of the helper for shared folders"))
    return found


def _web_file(answers: Answers) -> str:
    return {"nginx": "nginx.conf", "caddy": "Caddyfile"}.get(answers.web_server, "")


class _Renderer:
    """Renders a template of a site by its name without ``.j2``."""

    def __init__(self, facts: Facts, answers: Answers, sources: Sources) -> None:
        # The answers are checked: none has a character that means something to units, sudoers or a web server.
        self._templates = Environment(  # noqa: S701 - no HTML
            loader=DictLoader(dict(sources.templates)),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        self._templates.filters |= {"py": _python, "pyset": _python_set}
        self._values: dict[str, Any] = {
            "a": answers,
            "bin": sources.bin,
            "path": f"{sources.bin}:{SEARCH_PATH}",
            "state": _state(answers.state_folder),
            "protect_home": "read-only" if _in_a_home(sources.bin) or _in_a_home(answers.state_folder) else "yes",
            "hub_group": facts.hub_group or answers.hub_user,
            "hub_host": _in_url(answers.hub_address),
            "alt_name": _alt_name(answers.hub_address),
            "image": _image(facts, answers),
            "profiles": offered(facts, answers),
            "web_file": _web_file(answers),
            "variable": answers.site.replace("-", "_"),
            **_scraped(answers),
        }

    def __call__(self, name: str) -> str:
        return self._templates.get_template(f"{name}.j2").render(self._values)


def _state(folder: str) -> str:
    """Return the lines of a unit that make the state folder, or where systemd cannot, let it be written."""
    name = folder.removeprefix("/var/lib/")
    if name == folder:
        return f"ReadWritePaths={folder}"
    return f"StateDirectory={name}\nStateDirectoryMode=0700"


def _in_a_home(path: str) -> bool:
    """Return whether ``ProtectHome=yes`` would hide a path."""
    return path.startswith(("/home/", "/root/", "/run/user/"))


def _image(facts: Facts, answers: Answers) -> dict[str, Any]:
    found: dict[str, Any] = {"name": PurePosixPath(answers.image).stem, "path": answers.image}
    if (kind := image_format(answers.image)) != "dir":
        found["format"] = kind
    return {**found, **facts.image}


def _alt_name(host: str) -> str:
    return f"IP:{host}" if _is_address(host) else f"DNS:{host}"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _scraped(answers: Answers) -> dict[str, Any]:
    """Return what Prometheus reads, and the scopes that it needs."""
    jobs = [{"name": "", "label": "carme-hub", "path": "/hub/metrics", "interval": "15s"}]
    scopes = ["read:metrics"]
    for name, has, scope, interval in (
        ("quotas", answers.quotas, "custom:carme:quota:read:group", "60s"),
        ("reservations", answers.reservations, "custom:carme:reservation:read:all", "30s"),
        ("activity", answers.activity, "custom:carme:activity:read:all", "60s"),
    ):
        if has:
            path = f"/services/{name}/api/v1/metrics"
            jobs.append({"name": f"-{name}", "label": f"carme-{name}", "path": path, "interval": interval})
            scopes += [f"access:services!service={name}", scope]
    return {"jobs": jobs, "scopes": ", ".join(scopes)}


def _python(value: object, indent: int = 0) -> str:
    """Return a value as Python writes it; lists and dicts that are too long for a line get a line for each part."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # the same in Python, also for a name with a quote in it
    if isinstance(value, Mapping):
        parts = [f"{_python(name)}: {_python(each, indent + 4)}" for name, each in value.items()]
        opening, closing = "{", "}"
    elif isinstance(value, list | tuple):
        parts = [_python(each, indent + 4) for each in value]
        opening, closing = "[", "]"
    else:
        return repr(value)
    line = f"{opening}{', '.join(parts)}{closing}"
    if len(line) + indent <= _LINE and "\n" not in line:
        return line
    return "\n".join([opening, *(f"{' ' * (indent + 4)}{part}," for part in parts), f"{' ' * indent}{closing}"])


def _python_set(names: list[str]) -> str:
    return "{" + ", ".join(_python(name) for name in names) + "}"
