"""What the folders service does besides answering: who somebody is, which sessions have a folder, what pages show."""
