"""``carme-hub proxy``: JupyterHub's proxy as a process of its own, with the settings of the hub's configuration file.

A proxy that the hub starts ends with the hub, and so do all connections. The proxy's command line depends on a dozen
settings of JupyterHub and, with internal TLS, on certificates; so JupyterHub's own code computes it here.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from jupyterhub.objects import Server
from jupyterhub.proxy import ConfigurableHTTPProxy
from jupyterhub.utils import url_path_join
from traitlets import Unicode
from traitlets.config import Application

from carme_hub.errors import CarmeError, ConfigError
from carme_hub.spawners.hub.proxy import CERTIFICATE, certificate_in, proxy_environment

from .hub_config import hub_of, load_config
from .init import make_certificates


class ProxyApp(Application):
    """Become the proxy of the hub that a configuration file describes."""

    name = "carme-hub proxy"
    description = """Run configurable-http-proxy as the hub's configuration says, with its token in the environment and
    its certificates. Start it before the hub, as a separate service; run `carme-hub init` once before that."""

    config_path = Unicode(
        "jupyterhub_config.py", help="The hub's configuration file. The default is the one in the working folder."
    ).tag(config=True)
    aliases = {"config": "ProxyApp.config_path", "f": "ProxyApp.config_path"}

    def start(self) -> None:
        """Replace this process by the proxy."""
        try:
            argv, environ = proxy_command(Path(self.config_path))
            os.execvpe(argv[0], argv, environ)  # noqa: S606 - there is no shell
        except FileNotFoundError:
            self.exit("carme-hub proxy: configurable-http-proxy is not on the PATH (npm install -g it)")
        except CarmeError as error:
            self.exit(f"carme-hub proxy: {error}")


def proxy_command(file: Path) -> tuple[list[str], dict[str, str]]:
    """Return the proxy's command line and environment. The token is in the environment only."""
    hub = hub_of(load_config(file))
    if not issubclass(hub.proxy_class, ConfigurableHTTPProxy):
        raise ConfigError(f"JupyterHub.proxy_class is {hub.proxy_class.__name__}, which is not started this way")
    asyncio.run(make_certificates(hub))
    hub.init_hub()
    try:
        hub.init_proxy()
    except ValueError as error:
        raise ConfigError(f"{error}; `carme-hub init` creates one") from error
    proxy: Any = hub.proxy
    if proxy.should_start:
        raise ConfigError("ConfigurableHTTPProxy.should_start is True, so the hub starts the proxy itself")
    pages = url_path_join(hub.hub.url, "error")
    if hub.internal_ssl:
        pages += CERTIFICATE + certificate_in(hub.internal_ssl_cert)
    argv = [
        *proxy.command,
        *_listen("", Server.from_url(proxy.public_url)),
        *_listen("api-", Server.from_url(proxy.api_url)),
        *("--error-target", pages),
        *("--log-level", proxy.log_level),
    ]
    if hub.subdomain_host:
        argv.append("--host-routing")
    for option, value in (("--ssl-key", proxy.ssl_key), ("--ssl-cert", proxy.ssl_cert)):
        argv += [option, value] if value else []
    if hub.internal_ssl:
        argv += proxy._get_ssl_options()
    return argv, {**proxy_environment(os.environ), "CONFIGPROXY_AUTH_TOKEN": proxy.auth_token}


def _listen(prefix: str, server: Any) -> list[str]:
    if server._unix_socket:
        return [f"--{prefix}socket", unquote(server.connect_addr)]
    return [f"--{prefix}ip", server.ip, f"--{prefix}port", str(server.port)]
