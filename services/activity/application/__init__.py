"""What the activity service does besides answering: retention, and knowing the sessions."""
