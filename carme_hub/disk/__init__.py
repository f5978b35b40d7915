"""Disk use of people and folders, from the file systems' own quotas: the hub, the quotas service and commands ask."""
