"""The folders service: folders that people share, and datasets."""
