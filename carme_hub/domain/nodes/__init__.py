"""Rolling updates of nodes: the plan, and how far it has come. Pure."""
