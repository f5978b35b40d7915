"""One run: its folder, options, state and texts, and how its processes communicate."""
