"""One run: its folder, options, state, words, and how its ranks meet and speak."""
