"""Jobs that users have submitted themselves: what may be done to them, their output, submitting them again."""
