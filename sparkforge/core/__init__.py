"""The base of every room: errors, subprocesses, the console, paths, hashes, the store, steps, architectures."""
