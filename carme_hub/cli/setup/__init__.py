"""``carme-hub setup``: the files of a site, written from what Slurm and this machine say and a few answers.

``facts`` (what was found) and ``answers`` (what was said, to ``questions`` with their ``checks``) go into ``plan``,
which makes the files as text; none of these reads or writes anything. ``find`` finds the facts, ``disk`` compares and
writes the files, ``record`` keeps what was written, ``services`` and ``trial`` start the hub and one session on each
partition, ``report`` says what was found and done, ``command`` is the command.
"""
