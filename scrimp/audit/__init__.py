"""A black-box audit of a running service: planted canaries against what the certificates claim (docs/privacy.md)."""
