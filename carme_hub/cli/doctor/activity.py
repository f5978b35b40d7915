"""Whether jobs can report what they use, whether idle rules have anything to go by, and the weekly mail a way out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from traitlets import TraitError
from traitlets.config import Config

from carme_hub.activity.settings import CarmeActivity, service_url

from .addresses import host_for_nodes, is_loopback
from .findings import Finding, advice, unsafe

_NAME_IT = 'c.CarmeActivity.url = "https://hub.example.org/services/activity/", an address that nodes reach'


def check(app: Any, config: Config) -> Iterator[Finding]:
    """Yield why the minutes of jobs would not arrive, or could be read and forged on their way."""
    try:
        settings = CarmeActivity(config=config)
    except TraitError as error:
        yield unsafe("CarmeActivity", "", str(error), "correct the setting that the message names")
        return
    if not settings.enabled:
        return
    yield from _check_mail(app, config, settings)
    host = host_for_nodes(app)
    url = service_url(settings, app.public_url, app.bind_url, f"http://{f'[{host}]' if ':' in host else host}")
    reached = urlsplit(url).hostname or ""
    listens = urlsplit(app.bind_url).hostname or ""
    if not settings.url and not app.public_url and is_loopback(listens) and not is_loopback(reached):
        yield unsafe(
            "CarmeActivity.url",
            url,
            f"the proxy listens on {listens} alone, so no job can report there what it uses",
            _NAME_IT,
        )
    elif is_loopback(reached) and not is_loopback(host):
        yield unsafe(
            "CarmeActivity.url",
            url,
            "to a compute node this address is the node itself, so no minute arrives",
            _NAME_IT,
        )
    elif urlsplit(url).scheme == "http" and not is_loopback(reached):
        yield unsafe(
            "CarmeActivity.url",
            url,
            "the tokens with which jobs report travel unencrypted: who reads one can forge what its session uses, by "
            "which idle sessions are ended",
            _NAME_IT,
        )


def _check_mail(app: Any, config: Config, settings: CarmeActivity) -> Iterator[Finding]:
    """Yield why the weekly mail is not sent."""
    mail = config.CarmeQuotas
    if settings.weekly_mail and not app.public_url:
        yield advice(
            "CarmeActivity.weekly_mail",
            True,
            "no mail is sent: it needs a link that ends it, and the hub does not know its own address",
            'c.JupyterHub.public_url = "https://hub.example.org"',
        )
    if settings.weekly_mail and not (mail.get("smtp_host") and mail.get("mail_domain")):
        yield advice(
            "CarmeActivity.weekly_mail",
            True,
            "no mail is sent: the site names no mail server, or not what follows the user name in an address",
            'c.CarmeQuotas.smtp_host = "mail.example.org" and c.CarmeQuotas.mail_domain = "example.org"',
        )


def check_idle(config: Config, rules: int) -> Iterator[Finding]:
    """Yield that the policy's rules on idle sessions do nothing. ``rules``: how many there are."""
    try:
        measured = CarmeActivity(config=config).enabled
    except TraitError:
        return  # said already
    if rules and not measured:
        yield advice(
            "CarmeActivity.enabled",
            False,
            "the policy has rules on idle sessions, and without measuring nothing is known to be idle: they end none",
            "configure(c, activity=True)",
        )
