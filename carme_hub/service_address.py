"""The address of a service at the hub's proxy, as compute nodes reach it: jobs report there."""

from __future__ import annotations

from urllib.parse import urlsplit


def service_address(name: str, public_url: str, bind_url: str, api_url: str) -> str:
    """Return the address of a service as compute nodes reach it; ends with a slash.

    Args:
        public_url, bind_url: JupyterHub's settings; public_url may be "". api_url: of the hub's API, as nodes reach it.
    """
    base = urlsplit(public_url or bind_url)
    path = f"{base.path.rstrip('/')}/services/{name}/"
    if public_url:
        return f"{base.scheme}://{base.netloc}{path}"
    host = urlsplit(api_url).hostname or "127.0.0.1"
    port = base.port or (443 if base.scheme == "https" else 80)
    return f"{base.scheme}://{f'[{host}]' if ':' in host else host}:{port}{path}"


def is_service_address(value: str) -> bool:
    """Return whether a setting is the whole address of a service."""
    parts = urlsplit(value)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment
