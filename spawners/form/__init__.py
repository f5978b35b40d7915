"""The options form: what is offered, what it costs, and when it would start."""
