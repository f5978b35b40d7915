"""The pages of shared folders and datasets."""
