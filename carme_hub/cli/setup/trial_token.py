"""Prints a token of one user for the test sessions: ``python -m carme_hub.cli.setup.trial_token CONFIG USER``.

Setup runs it as the hub's user, who may write the hub's database. The token can start and stop that user's servers, and
nothing else, for half an hour. A user who has never logged in is added, as the hub does at a log-in.
"""

from __future__ import annotations

import sys
from pathlib import Path

from jupyterhub import orm, roles, scopes

from carme_hub.cli.hub_config import hub_of, load_config
from carme_hub.errors import CarmeError

LIFETIME = 1800
SCOPES = ("read:users!user", "read:servers!user", "start:servers!user", "delete:servers!user", "tokens!user")


def token_of(config: Path, name: str) -> str:
    """Return a new token of a user of the hub with that configuration."""
    hub = hub_of(load_config(config))
    scopes.define_custom_scopes(hub.custom_scopes)  # the user's role names them
    hub.init_db()
    user = orm.User.find(hub.db, name)
    if user is None:
        user = orm.User(name=name)
        hub.db.add(user)
        hub.db.commit()
        roles.assign_default_roles(hub.db, entity=user)
    return str(user.new_api_token(note="carme-hub setup: test sessions", expires_in=LIFETIME, scopes=list(SCOPES)))


if __name__ == "__main__":
    try:
        print(token_of(Path(sys.argv[1]), sys.argv[2]))
    except CarmeError as error:
        sys.exit(str(error))
