"""Offline work on recorded traces: record, replay, simulate, plots."""
