"""Images of the stores in the form, and in jobs."""
