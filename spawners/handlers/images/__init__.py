"""Images that users build: REST for programs, and pages with the log."""
