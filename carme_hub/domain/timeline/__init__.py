"""The story of a session: dated lines from several sources in one order, and in one paragraph what happened. Pure."""
