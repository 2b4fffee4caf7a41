"""`python -m estimator_service.cli` is the `acceptd` command."""

from estimator_service.cli.entry import main

main()
