"""Programs over secure sums: model, update, thresholds, sensitivity, optimizers."""
