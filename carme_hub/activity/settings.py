"""The settings of what jobs use, read by the hub, which starts reporters, and by the service, which stores."""

from __future__ import annotations

import json

from traitlets import Bool, Float, Integer, List, TraitError, Unicode, validate
from traitlets.config import LoggingConfigurable

from carme_hub.service_address import is_service_address, service_address

#: The service's name and its address below ``/services/``; the path of a session's minutes below that.
SERVICE, MINUTES_PATH = "activity", "api/v1/sessions/{session}/minutes"
DAY = 86400


class CarmeActivity(LoggingConfigurable):
    """What jobs use: GPUs, CPUs, memory and disks, measured beside each job and kept by the activity service."""

    enabled = Bool(
        False,
        help="""Measure what jobs use, and keep it. The default is off. ``configure(c, activity=True)`` sets it, and
        adds the activity service.""",
    ).tag(config=True)

    port = Integer(
        10104, min=1, max=65535, help="Port of the activity service on the hub's machine. Example: ``10204``."
    ).tag(config=True)

    url = Unicode(
        "",
        help="""Address of the activity service as compute nodes reach it. The default, empty, is that of the hub's
        proxy: ``JupyterHub.public_url`` if it is set, otherwise scheme and port of ``JupyterHub.bind_url`` on the host
        by which nodes reach the hub. Example: ``"https://hub.example.org/services/activity/"``.""",
    ).tag(config=True)

    ca_file = Unicode(
        "",
        help="""File on the compute nodes with the authority that has signed the certificate of ``url``. The default,
        empty, is the node's own list of authorities. Example: ``"/etc/ssl/certs/site-ca.pem"``.""",
    ).tag(config=True)

    interval = Float(
        10.0,
        min=1.0,
        max=60.0,
        help="""Seconds between two samples of a job. The last 8,640 samples, a day's by default, are kept in the
        session's folder, in 1 MiB at most. The service gets a summary of each minute. Example: ``5``.""",
    ).tag(config=True)

    keep_minutes = Float(
        2.0, min=0.1, help="Days for which each minute is kept; the default is 2. Example: ``7``."
    ).tag(config=True)

    keep_hours = Float(
        90.0,
        min=1.0,
        help="""Days for which the sum of each hour is kept; the default is 90. The sum of each job is kept for good.
        Example: ``365``.""",
    ).tag(config=True)

    before_end = List(
        Unicode(),
        help="""Command that runs in a session's container before the session is ended because it is idle, as a list of
        words: for example one that asks programs of the site to save. It runs as the session's user, in their home,
        after an executable ``~/.carme/before-end`` of theirs, and what both write is in ``before-end.log`` of the
        session folder. The default, empty, runs none. Example: ``["/opt/site/bin/save-all", "--quiet"]``.""",
    ).tag(config=True)

    before_end_seconds = Float(
        60.0,
        min=1.0,
        max=100.0,
        help="Seconds after which a command before the end is ended, each of the two. Example: ``30``.",
    ).tag(config=True)

    keep_jobs = Float(
        400.0,
        min=14.0,
        help="""Days for which each job that has ended is kept, with what it asked for and used: for advice, and for
        what accounts did not use. The default is 400. Example: ``90``.""",
    ).tag(config=True)

    weekly_mail = Bool(
        False,
        help="""Send a mail once a week to users whose jobs could ask for less next time, with a link that ends it. The
        default is off. It needs ``CarmeQuotas.smtp_host`` and ``mail_domain``, and ``JupyterHub.public_url``.""",
    ).tag(config=True)

    nvml_library = Unicode(
        "",
        help="""Path of NVIDIA's management library on compute nodes. The default, empty, is ``libnvidia-ml.so.1`` as
        the node's loader finds it. Example: ``"/usr/local/nvidia/lib64/libnvidia-ml.so.1"``.""",
    ).tag(config=True)

    @property
    def before_end_text(self) -> str:
        """The variable ``CARME_BEFORE_END`` of containers (``carme_hub.training.server.orderly_end``)."""
        return json.dumps({"argv": list(self.before_end), "seconds": self.before_end_seconds})

    @validate("before_end")
    def _check_before_end(self, proposal: dict[str, list[str]]) -> list[str]:
        value = proposal["value"]
        if value and not value[0].startswith("/"):
            raise TraitError(f"CarmeActivity.before_end begins with {value[0]!r}; give the absolute path of a program")
        return value

    @validate("url")
    def _check_url(self, proposal: dict[str, str]) -> str:
        value = proposal["value"]
        if value and not is_service_address(value):
            raise TraitError(
                f"CarmeActivity.url is {value!r}; give the service's whole address, such as "
                "https://hub.example.org/services/activity/"
            )
        return value if not value or value.endswith("/") else value + "/"


def service_url(settings: CarmeActivity, public_url: str, bind_url: str, api_url: str) -> str:
    """Return the address of the service as compute nodes reach it; ends with a slash.

    Args:
        public_url, bind_url: JupyterHub's settings; public_url may be "". api_url: of the hub's API, as nodes reach it.
    """
    return settings.url or service_address(SERVICE, public_url, bind_url, api_url)
