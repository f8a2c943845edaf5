"""The papers' experiments again, by the service's own planning, pricing and training."""
