"""Settings of the hub, the login and the proxy: most are JupyterHub's own, and stay as they are."""

from __future__ import annotations

import ast
import difflib
import re
from typing import Any
from urllib.parse import urlsplit

from jupyterhub import auth
from jupyterhub.app import JupyterHub
from jupyterhub.proxy import ConfigurableHTTPProxy, Proxy
from jupyterhub.spawner import Spawner

from carme_hub.cli.convert.findings import Level
from carme_hub.cli.convert.reading.config_file import ConfigFile, Setting
from carme_hub.cli.convert.site import TODO, Site

from .kept_code import CodeOfSettings

#: What becomes of settings that do not simply stay.
HUB: dict[str, tuple[Level, str]] = {
    "JupyterHub.spawner_class": (Level.CHANGED, "`configure(c)` sets it: carme-slurm"),
    "JupyterHub.authenticator_class": (
        Level.CHANGED,
        "`c.CarmeAuthenticator.authenticator_class`: it does the login; Carme Hub's rules on system users are added",
    ),
    "JupyterHub.proxy_class": (Level.CHANGED, "`configure(c)` sets Carme Hub's, which checks certificates of servers"),
    "JupyterHub.internal_ssl": (Level.CHANGED, "`configure(c)` switches it on"),
    "JupyterHub.cleanup_servers": (Level.CHANGED, "`configure(c)` switches it off: sessions outlive a hub's restart"),
    "JupyterHub.cleanup_proxy": (Level.CHANGED, "`configure(c)` switches it off: the proxy outlives a hub's restart"),
    "JupyterHub.reset_db": (Level.DROPPED, "it empties the hub's database at each start"),
    "JupyterHub.admin_access": (Level.DROPPED, "roles say it: `c.CarmeAuthenticator.role_groups`"),
    "Proxy.should_start": (Level.CHANGED, "`configure(c)` sets False: the proxy is a process of its own"),
    "ConfigurableHTTPProxy.should_start": (
        Level.CHANGED,
        "`configure(c)` sets False: the proxy is a process of its own",
    ),
    "ConfigurableHTTPProxy.command": (Level.LOOK, "`carme-hub proxy` starts the proxy; give it the options there"),
}
#: Settings that JupyterHub calls otherwise now.
RENAMED = {"whitelist": "allowed_users", "blacklist": "blocked_users", "group_whitelist": "allowed_groups"}
#: What is to be known about settings that stay.
REMARKS: dict[str, tuple[Level, str]] = {
    "Authenticator.allow_all": (
        Level.LOOK,
        "kept: everybody who can log in may start jobs; `allowed_groups` or `allowed_accounts` of CarmeAuthenticator "
        "say who",
    ),
    "LocalAuthenticator.create_system_users": (
        Level.LOOK,
        "kept, but a session needs a user that the hub's machine and the nodes know; none is made for it",
    ),
    "JupyterHub.services": (Level.KEPT, "a culler among them ends sessions without asking; rules on idle sessions ask"),
    "JupyterHub.db_url": (Level.KEPT, "the hub's database; Carme Hub's own is `c.CarmeStore.url`"),
}
#: Addresses of the hub's own parts, which speak TLS with each other.
TLS = (
    "JupyterHub.hub_bind_url",
    "JupyterHub.hub_connect_url",
    "ConfigurableHTTPProxy.api_url",
    "Spawner.hub_connect_url",
)
_CLASSES: dict[str, Any] = {
    **{"JupyterHub": JupyterHub, "Proxy": Proxy, "ConfigurableHTTPProxy": ConfigurableHTTPProxy, "Spawner": Spawner},
    **{name: getattr(auth, name) for name in ("Authenticator", "LocalAuthenticator", "PAMAuthenticator")},
}
_SERVER = re.compile(r"(Notebook|Server|Lab|Jupyter|IPKernel)App|.*(Contents|Kernel|KernelSpec|Checkpoint)\w*Manager")
_SECRET = re.compile(r"(secret|token|password|api_key|crypt_key)$")


def has_setting(section: str, name: str) -> bool:
    """Whether JupyterHub's class has a setting of this name; True for classes that are not JupyterHub's."""
    return section not in _CLASSES or name in _CLASSES[section].class_traits(config=True)


def map_hub_setting(setting: Setting, site: Site, code: CodeOfSettings) -> None:
    """Say and do what becomes of one setting that is no spawner's."""
    level, sentence = HUB.get(setting.full_name, (Level.KEPT, ""))
    source = code.source(setting.node)
    if setting.full_name == "JupyterHub.authenticator_class":
        if code.keep(setting, f"{code.file.values.config}.CarmeAuthenticator.authenticator_class"):
            site.say(setting.line, setting.full_name, level, sentence)
        else:
            put_aside(setting, site, code, "name the class of your login in c.CarmeAuthenticator.authenticator_class")
    elif sentence:
        site.say(setting.line, setting.full_name, level, sentence)
    elif setting.full_name == "JupyterHub.extra_handlers" and "batchspawner" in source:
        sentence = "batchspawner's handler sets any attribute of a spawner, and is not used here"
        site.say(setting.line, setting.full_name, Level.DROPPED, sentence)
    elif _SERVER.fullmatch(setting.section):
        site.say(setting.line, setting.full_name, Level.DROPPED, "a server's setting has no effect in the hub's file")
    else:
        _keep(setting, site, code, source)


def _keep(setting: Setting, site: Site, code: CodeOfSettings, source: str) -> None:
    new_name = ""
    if setting.name in RENAMED and setting.section.endswith("Authenticator"):
        new_name = f"{code.file.values.config}.{setting.section}.{RENAMED[setting.name]}"
    elif not has_setting(setting.section, setting.name):
        close = difflib.get_close_matches(setting.name, _CLASSES[setting.section].class_traits(config=True), 1, 0.75)
        hint = f"; there is {close[0]}" if close else ""
        site.say(setting.line, setting.full_name, Level.LOOK, f"JupyterHub 6 has no such setting{hint}; left out")
        return
    if not code.keep(setting, new_name):
        put_aside(setting, site, code, "it needs a package that the new hub does not have")
        return
    level, sentence = REMARKS.get(setting.full_name, (Level.KEPT, "as it is"))
    if new_name:
        level, sentence = Level.CHANGED, f"`{new_name}`, as JupyterHub calls it now"
    elif _SECRET.search(setting.name) and isinstance(setting.value, str):
        sentence = "as it is; it is a secret, so only the hub's user may read the file (mode 0600)"
    elif "__file__" in source:
        level, sentence = Level.LOOK, "as it is; its path begins at the file's folder, so put the new file there, too"
    elif (changed := with_tls(setting, site)) is not None:
        level, sentence = changed
    elif setting.block is not None:
        sentence = "as it is, in its block, because its value depends on what the file runs"
    site.say(setting.line, setting.full_name, level, sentence)


def with_tls(setting: Setting, site: Site) -> tuple[Level, str] | None:
    """Give an address of the hub's own parts https in place of http; say it where its value is not known."""
    if setting.full_name not in TLS:
        return None
    if not isinstance(setting.value, str) or setting.block is not None:
        return Level.LOOK, "kept; it must begin with https:// now: the hub's parts speak TLS with each other"
    if not setting.value.startswith("http:"):
        return None
    site.hub[setting.full_name] = setting.value.replace("http:", "https:", 1)
    return Level.CHANGED, "https in place of http: the hub's parts speak TLS with each other"


def name_the_hub(file: ConfigFile, site: Site) -> None:
    """Name the address by which nodes reach the hub in its certificate, which they check now."""
    if file.last("JupyterHub", "trusted_alt_names") is not None:
        return
    found = (file.last("JupyterHub", name) for name in ("hub_connect_ip", "hub_connect_url", "hub_ip", "hub_bind_url"))
    for setting in found:
        value = setting.value if setting is not None and isinstance(setting.value, str) else ""
        host = (urlsplit(value).hostname or "") if "://" in value else value
        if setting is None or host in ("", "0.0.0.0", "::", "localhost") or host.startswith("127."):  # noqa: S104
            continue
        kind = "IP" if re.fullmatch(r"[\d.]+|[0-9a-fA-F:]+:[0-9a-fA-F:]*", host) else "DNS"
        site.hub["JupyterHub.trusted_alt_names"] = [f"{kind}:{host}"]
        sentence = "in `c.JupyterHub.trusted_alt_names`, too: nodes check the hub's certificate now"
        site.say(setting.line, setting.full_name, Level.CHANGED, sentence)
        return


def put_aside(setting: Setting, site: Site, code: CodeOfSettings, sentence: str) -> None:
    """Leave a setting out, with its code as a comment and a TODO."""
    leave_out(setting.node, setting.full_name, sentence, site, code)


def leave_out(node: ast.stmt, what: str, sentence: str, site: Site, code: CodeOfSettings) -> None:
    """Leave a statement out, with its code as a comment and a TODO."""
    site.say(node.lineno, what, Level.LOOK, sentence)
    shown = code.source(node).splitlines()
    site.notes.append(f"{TODO} (line {node.lineno}): {sentence}\n" + "\n".join(f"    {line}" for line in shown[:20]))


def check_allowed(file: ConfigFile, site: Site) -> None:
    """Say it where nobody may log in: JupyterHub let everybody in before its release 5."""
    logins = [s for s in file.settings if s.section.endswith("Authenticator")]
    if not any(s.name.startswith("allow") or s.name in RENAMED for s in logins):
        sentence = "nobody may log in yet: name who may (JupyterHub before 5 let in everybody who had a password)"
        site.say(0, "CarmeAuthenticator.allowed_groups", Level.LOOK, sentence)
        site.notes.append(f'{TODO}: {sentence}\n    c.CarmeAuthenticator.allowed_groups = {{"gpu-users"}}')
