#!/usr/bin/env bash
# `make test-lowest`: the tests with the oldest versions that pyproject.toml states, twice. Once with
# everything for developers. And once with what a user must have: the developers' clients of Triton
# ask for newer versions of protobuf and gRPC than the server does, so only there are its own floors.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
uv=$folder/uv/bin/uv

environment() { # NAME EXTRA
  "$uv" venv --quiet --clear --python "$folder/uv/bin/python" "$folder/$1"
  "$uv" pip install --quiet --python "$folder/$1/bin/python" --resolution lowest-direct --editable ".[$2]" --editable ./papers
}

environment core test
others='tritonclient|grpc_health|grpc_tools|opentelemetry|kubernetes|matplotlib'
ignored=$(grep -rlE "^\s*(import|from) ($others)" tests --include '*.py' | sed 's/^/--ignore=/')
# shellcheck disable=SC2086
"$folder/core/bin/python" -m pytest -m "not network" tests/wire tests/models tests/frontends tests/recording \
  tests/profiles tests/executors tests/server tests/fuzz $ignored

environment all dev
"$folder/all/bin/python" -m pytest -m "not network" --ignore tests/mutation
