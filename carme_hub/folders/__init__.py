"""Use cases of shared folders: what people do with them, and the reconciler that keeps the file system so."""
