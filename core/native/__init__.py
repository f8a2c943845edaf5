"""Compiled parts of service and engine, in C: how they are built and opened. Without them, Python computes the same
bits."""
