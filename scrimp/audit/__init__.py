"""A black-box audit of a running service: tests the certificates' claims with planted canaries (docs/audit.md)."""
