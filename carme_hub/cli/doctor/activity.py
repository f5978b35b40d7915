"""Whether jobs can report what they use, whether idle rules have anything to go by, and the weekly mail a way out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from traitlets import TraitError
from traitlets.config import Config

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.activity.settings import CarmeActivity, service_url
from carme_hub.domain.quotas.idle.rules import Action, IdleRule
from carme_hub.domain.sessions.profile_list import parse_profiles
from carme_hub.errors import CarmeError
from carme_hub.sessions.profile_fields import profile_field

from .addresses import check_reports, url_of_node_api
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
    yield from check_reports(
        app,
        "CarmeActivity.url",
        service_url(settings, app.public_url, app.bind_url, url_of_node_api(app)),
        own=bool(settings.url),
        what="what it uses",
        forged="who reads one can forge what its session uses, by which idle sessions are ended",
        mend=_NAME_IT,
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


def check_idle(config: Config, rules: Sequence[IdleRule]) -> Iterator[Finding]:
    """Yield why the policy's rules on idle sessions do nothing, or less than they seem to."""
    try:
        measured = CarmeActivity(config=config).enabled
        quotas = CarmeQuotas(config=config)
    except (TraitError, CarmeError):
        return  # said already
    if rules and not measured:
        yield advice(
            "CarmeActivity.enabled",
            False,
            "the policy has rules on idle sessions, and without measuring nothing is known to be idle: they end none",
            "configure(c, activity=True)",
        )
        return
    yield from _profiles(config, rules, quotas)
    tells = any(rule.action is not Action.NONE for rule in rules)
    mails = bool(quotas.smtp_host and quotas.mail_domain)
    if tells and not (mails or quotas.webhook_url_file or quotas.notice_channels):
        yield advice(
            "CarmeQuotas.smtp_host",
            quotas.smtp_host,
            "users of idle sessions are warned on the hub's page and in JupyterLab alone: who has closed both does not "
            "learn of it before the end",
            "set smtp_host and mail_domain, a webhook_url_file, or notice_channels",
        )


def _profiles(config: Config, rules: Sequence[IdleRule], quotas: CarmeQuotas) -> Iterator[Finding]:
    """Yield the rules that name a profile which does not exist, or which has the GPUs that are to be released."""
    try:
        listed = config.SlurmContainerSpawner.get("profile_list")
        profiles = {each.slug: each for each in parse_profiles(listed, profile_field(quotas))} if listed else {}
    except (TraitError, CarmeError):
        return  # the form says it, and profiles may be made by a function
    for number, rule in enumerate(rules if profiles else ()):
        known = f"write one of {', '.join(sorted(profiles))}"
        if rule.profile and rule.profile not in profiles:
            yield advice(
                f"idle[{number}].profile", rule.profile, "there is no such profile: the rule is for none", known
            )
        after = profiles.get(rule.restart_profile)
        if rule.restart_profile and (after is None or after.gpus is not None):
            why = "there is no such profile" if after is None else "it has GPUs, and the rule is to release them"
            yield advice(f"idle[{number}].restart_profile", rule.restart_profile, why, "name a profile without GPUs")
