"""Judge against the truth what the audit says of the updates that people really hold.

python -m benchmarks.matrix [--jobs 2]    writes docs/matrix.md
"""
