"""Running chains: warm-up in rounds, then sampling with a frozen kernel."""
