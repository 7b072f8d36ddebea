"""Labels behind local training: acceptance tables of docs/results/local-training.md."""
