"""The options form of a start: offer, options, cost and expected start."""
