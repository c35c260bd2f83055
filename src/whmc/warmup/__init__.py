"""What is learned before sampling: step sizes, charts, weights, throat."""
