"""The adversarial suite: models, losses and clients nobody tuned softleak to, judged by the truth.

python -m benchmarks.adversary --recoveries 15000 [--seed 0] [--only NAME] [--out PAGE.md]
"""
