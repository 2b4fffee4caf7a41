"""The acceptd service: pools observations a model pair, refits, and publishes coefficients."""
