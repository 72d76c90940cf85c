"""Smoke: start a server, make it speak, hold what it says against what must be so, stop it."""
