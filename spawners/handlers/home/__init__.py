"""The hub's home page: the visitor's sessions and jobs with their forms, kept up to date by a stream."""
