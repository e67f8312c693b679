"""Training over secure sums: model, update, thresholds, sensitivity, optimizers."""
