"""Proofs that are too long for every run: results that say what they read, and whether that still stands.

`results/proofs.yaml` lists them: which result file, what it proves, where it ran, the command that repeats it, and the
sources that it read. A result is stamped with the identity of each of those sources; when one changes, the result
proves nothing of what is there now, and a fast test says so.
"""
