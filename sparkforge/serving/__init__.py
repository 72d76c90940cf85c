"""Profiles: how to serve one model on a stack, as typed values, and the commands that they mean."""
