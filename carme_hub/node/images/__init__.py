"""Programs that keep images on the disks of compute nodes, owned by root; ``store`` is the one that is called.

They are installed on nodes (``carme-hub nodes install-images``). The standard library alone, Python 3.6 or later.
"""
