"""Estimators that `acceptd replay` compares: one a file, all with the protocol of `base.Estimator`."""
