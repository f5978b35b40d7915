"""Handlers of the pages and of REST for administrators and account owners."""
