"""Application functions of the quotas service, which its pages and its REST interface share."""
