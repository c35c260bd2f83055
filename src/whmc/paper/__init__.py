"""The paper's algorithms, equation by equation, and the baselines that it compares with."""
