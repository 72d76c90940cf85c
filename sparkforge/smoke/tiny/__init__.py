"""A tiny gpt-oss with random weights: the real architecture, a few megabytes, made without any download."""
