"""Stages 5 and 6: losses, batches, schedule, checkpoints and the one loop for both models."""
