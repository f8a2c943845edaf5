"""Parts: what a data set is once it is registered, as files that a worker reads a few records at a time."""
