"""The hub's part of ending idle sessions: what the watch needs of the hub, and the request to a session's server."""
