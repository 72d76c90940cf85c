"""The machine that builds: what it is, what it has, what it lacks, and how it gets that."""
