"""Use cases of what jobs use: the settings, the tokens of reporters, and storing what they send."""
