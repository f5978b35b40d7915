"""What a support bundle may show: secrets are taken out of texts and settings, names may be replaced. Pure."""
