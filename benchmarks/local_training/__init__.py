"""Labels behind local training: acceptance tables of docs/local-training.md."""
