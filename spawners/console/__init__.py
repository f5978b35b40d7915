"""What the pages of administrators and of account owners show, and what they do."""
