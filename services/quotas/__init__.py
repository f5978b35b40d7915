"""The quotas service: balances, statements, grants, requests, policies, reports, and the settlement loop."""
