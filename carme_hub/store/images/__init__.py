"""The catalogue of images, offers, retirements, nodes' copies, and measured starts, in the database."""
