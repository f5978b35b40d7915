"""A notice channel: a message to a chat by an incoming webhook, such as those of Mattermost."""

import json
import urllib.request
from pathlib import Path

from traitlets import Unicode
from traitlets.config import LoggingConfigurable

from carme_hub.services.notice_channels import Notice


class Chat(LoggingConfigurable):
    """Sends each notice as a message that names its user."""

    url_file = Unicode(help="A file (mode 0600) with the address of the webhook, which is a secret.").tag(config=True)

    def __call__(self, notice: Notice) -> None:
        text = f"@{notice.user} {notice.text} {notice.link}".strip()
        url = Path(self.url_file).read_text().strip()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps({"text": text}).encode(), headers)
        urllib.request.urlopen(request, timeout=10).close()
