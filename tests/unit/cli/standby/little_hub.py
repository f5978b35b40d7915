"""A program in place of the hub: it writes into Carme Hub's database without end, and notes what happens.

``little_hub.py URL NAME``: a line for each write that was taken or refused, in the table of the test.
"""

from __future__ import annotations

import os
import sys
import time

from sqlalchemy import text

from carme_hub.errors import NotActive
from carme_hub.fencing import ticket_of
from carme_hub.store.engine import make_engine
from carme_hub.store.lease.fence import keep_out_late_writes

WRITE = text("INSERT INTO story (host, token, pid) VALUES (:host, :token, :pid)")


def main() -> None:
    """Write until somebody ends this process."""
    url, name = sys.argv[1:]
    ticket = ticket_of()
    assert ticket is not None
    engine = make_engine(url)
    keep_out_late_writes(engine, ticket)
    while True:
        os.write(int(os.environ["CARME_HUB_ALIVE_FD"]), b".")
        try:
            with engine.begin() as connection:
                connection.execute(WRITE, {"host": name, "token": ticket.token, "pid": os.getpid()})
        except NotActive as error:
            print(f"{name}: refused: {error}", flush=True)
        except Exception as error:  # noqa: BLE001  a connection that the take-over has ended
            print(f"{name}: {type(error).__name__}", flush=True)
        time.sleep(0.02)


main()
