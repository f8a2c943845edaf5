"""The service's processes on a machine: `scrimp serve` and what it starts.

Part of the distribution `scrimp`, with `app` and `worker`. The package `scrimp`, of the distribution `scrimp-client`,
finds these commands by their entry point and never imports them.
"""
