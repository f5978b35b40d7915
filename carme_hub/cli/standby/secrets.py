"""A hash of the secrets that both hosts must have alike: of cookies, authorities, the proxy and stored logins.

Files are read anew at each question: they may be replaced while this host stands by. The hash is in the lease, so
another way to compute it would keep a host of the former release out.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from carme_hub.config import PROXY_TOKEN
from carme_hub.errors import ConfigError

_MAKE = "copy the state folder of the other host to this one, or, on the first host, run `carme-hub init`"


class SharedSecrets:
    """The secrets of this host. ``hub``: a JupyterHub application with its settings, not initialized."""

    def __init__(self, hub: Any, environ: Mapping[str, str] = os.environ) -> None:
        config = hub.config
        self._cookie_file = Path(hub.cookie_secret_file).expanduser().absolute()
        self._authorities = Path(hub.internal_certs_location).absolute() if hub.internal_ssl else None
        self._cookie = config.JupyterHub.get("cookie_secret", "") or environ.get("JPY_COOKIE_SECRET", "")
        self._keys = config.CryptKeeper.get("keys", "") or environ.get("JUPYTERHUB_CRYPT_KEY", "")
        self._token = config.ConfigurableHTTPProxy.get("auth_token", "") or environ.get("CONFIGPROXY_AUTH_TOKEN", "")
        token_file = self._cookie_file.with_name(PROXY_TOKEN)
        # `configure` has read the token from there: it has to be read anew, too.
        is_there = os.access(token_file, os.R_OK)
        self._token_file = token_file if is_there and _read(token_file) == self._token else None

    def digest(self) -> str:
        """Return the hash as 64 digits; raise ``ConfigError`` where a secret is missing that a hub would make anew."""
        found = {
            "cookie": self._cookie or _read(self._cookie_file),
            "token": _read(self._token_file) if self._token_file is not None else self._token,
            "keys": self._keys,
        }
        if self._authorities is not None:
            files = sorted(self._authorities.glob("*-ca/*.crt"))
            if not files:
                raise ConfigError(f"{self._authorities} has no certificates of authorities: {_MAKE}")
            found |= {file.name: _read(file) for file in files}
        digest = hashlib.sha256()
        for name, value in sorted(found.items()):
            text = value if isinstance(value, str) else repr(value)
            digest.update(f"{name}\0{hashlib.sha256(text.encode()).hexdigest()}\0".encode())
        return digest.hexdigest()


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({getattr(error, 'strerror', None) or error}): {_MAKE}") from error
