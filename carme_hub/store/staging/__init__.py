"""What sessions copy to and from their nodes."""

from .rows import Staging, StagingStore

__all__ = ["Staging", "StagingStore"]
