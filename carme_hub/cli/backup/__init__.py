"""``carme-hub backup`` and ``carme-hub restore``: all that a hub needs, in one file, and back; or from Slurm alone.

``sources``: what belongs into a backup of a site. ``archive``: one tar file with a manifest, written and verified.
``command``: ``carme-hub backup`` and ``backup check``. ``placing``: the files of a backup into their places.
``restore``: ``carme-hub restore``. ``from_slurm``: sessions and charges that no copy has, found again in Slurm's queue,
in session folders and in accounting; ``hub_rows`` writes what JupyterHub's own database needs for them, and
``findings`` prints what is certain and what is not.

Copies are taken while the hub runs, JupyterHub's database first: a session that starts between the two copies then has
its row in ours, which is what decides about its job. The other order would leave a job that nobody knows.
"""
