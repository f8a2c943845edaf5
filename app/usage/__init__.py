"""What a fleet costs: processor and GPU seconds, bytes and ε, by data set, team and month."""
