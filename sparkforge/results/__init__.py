"""Results: what was measured, what it was bound to when it was measured, and whether that still stands.

`results/proofs.yaml` lists every result file: its claim, the machine it needs, the command that repeats it, and the
function that judges its samples. The program that measured wrote the file with `provenance`, which binds it to its
sources, commit, machine and content. `proofs` reads it again: a verdict is computed on reading and never stored.
"""
