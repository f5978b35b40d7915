"""Settings of mail that expose a password."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from traitlets import TraitError
from traitlets.config import Config

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.auth.secret_files import exposure
from carme_hub.errors import CarmeError

from .findings import Finding, unsafe


def check(config: Config) -> Iterator[Finding]:
    """Yield what is unsafe about the login to the mail server, where the site has one."""
    try:
        settings = CarmeQuotas(config=config)
    except (TraitError, CarmeError) as error:
        yield unsafe("CarmeQuotas", "", str(error), "correct the setting that the message names")
        return
    if not settings.smtp_host or not settings.smtp_user:
        return
    if settings.smtp_tls == "off":
        yield unsafe(
            "CarmeQuotas.smtp_tls",
            settings.smtp_tls,
            "the password of the mail server travels unencrypted, and whoever reads it can send mail with it",
            'c.CarmeQuotas.smtp_tls = "require", or send mail without a login (smtp_user = "")',
        )
    wrong = exposure(Path(settings.smtp_password_file)) if settings.smtp_password_file else ""
    if wrong:
        why, _, mend = wrong.partition("; run: ")
        yield unsafe("CarmeQuotas.smtp_password_file", "", why, mend or "run the doctor as the hub's user")
