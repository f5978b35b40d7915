"""A shell in a rank (``carme-hub runs shell``), in its container and with its environment.

The terminal listens (``terminal``), the conductor tells the rank with the answer to its heartbeat, and a process beside
the rank connects and runs the shell (``in_rank``). ``link`` is what both sides speak.
"""
