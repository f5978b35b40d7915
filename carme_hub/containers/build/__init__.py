"""Images that users build: the job that builds one, and how a session uses it."""
