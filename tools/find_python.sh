#!/usr/bin/env bash
# Prints a Python of at least 3.11: the argument if there is one, else the first that the PATH has.
set -euo pipefail
for candidate in ${1:-python3.11 python3.12 python3.13 python3}; do
  if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    command -v "$candidate"
    exit 0
  fi
done
echo "no Python 3.11 or newer (with venv) among: ${1:-python3.11 python3.12 python3.13 python3}; name one with make PYTHON=…" >&2
exit 1
