"""What is sampled: a log density, its space, bounds and symmetries."""
