"""What the audit says of the updates that people really hold, judged against the truth.

python -m benchmarks.matrix [--out docs/matrix.md]
"""
