"""Python imports this at its start, as tests/conftest.py put this folder on PYTHONPATH: see loopback.py."""

import loopback

loopback.install()
