"""Container images that a site keeps: what is inside, who is offered them, whether they fit, when they start. Pure."""
