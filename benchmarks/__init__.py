"""The figures that the documentation quotes, each beside what it is measured against, in one run: `make bench`."""
