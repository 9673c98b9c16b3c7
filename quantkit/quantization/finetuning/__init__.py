"""Fine-tuning: weights and ranges of a plan are trained until the simulation computes the float model's outputs."""
