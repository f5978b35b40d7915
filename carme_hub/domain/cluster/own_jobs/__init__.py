"""Jobs that users have submitted themselves: what may be done to them, their output, and how they are submitted again."""
