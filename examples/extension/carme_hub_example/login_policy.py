"""A login policy: only users who have signed the rules of use."""

from pathlib import Path

from traitlets import Unicode
from traitlets.config import LoggingConfigurable

from carme_hub.auth.login_policies import Login
from carme_hub.errors import Refused


class SignedRules(LoggingConfigurable):
    """Allows the users whose names are in a file."""

    file = Unicode("/etc/carme-hub/signed-rules", help="A file with one user name in each line.").tag(config=True)

    def __call__(self, login: Login) -> None:
        if login.user not in Path(self.file).read_text().split():
            raise Refused("Sign the rules of use first: https://cluster.example.org/rules")
