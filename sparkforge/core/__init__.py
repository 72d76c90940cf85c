"""What every part stands on: errors, subprocesses, the console, paths, hashes, the store, steps, architectures."""
