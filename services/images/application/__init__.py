"""What the images service does besides answering: it looks at the stores, and tells of retirements."""
