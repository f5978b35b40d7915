"""Rules of shared folders: who has a role in one, what its file system should say, which may be mounted. Pure."""
