"""The authenticator: who may log in, with which groups, accounts and roles."""
