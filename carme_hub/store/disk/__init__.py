"""Disk use of users in the database: samples for its growth, and their largest folders."""
