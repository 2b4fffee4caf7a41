"""Pure numerics on arrays: histograms, fits, calibration. Imports numpy alone and does no I/O."""
