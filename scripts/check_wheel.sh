#!/usr/bin/env bash
# Build the wheel, install it alone, and do with it what a newcomer does, outside of the checkout:
# version, training, a report, README's Python. Then the blocks of README and docs, and the examples'
# docstring commands, by their tests, from a copy of the checkout without the package.
#
#   scripts/check_wheel.sh [FOLDER]
#
# FOLDER (build/wheel by default) keeps the wheel and the environment. PYTHON is the interpreter, python3
# by default. PAGES= leaves the pages out; PAGES="README tutorial" runs those.
set -euo pipefail
checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-python3}"
version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
mkdir -p "${1:-$checkout/build/wheel}"
folder="$(cd "${1:-$checkout/build/wheel}" && pwd)/$version"
venv="$folder/venv"
# Of the checkout nothing may be imported: neither by the current folder nor by the environment.
unset PYTHONPATH PYTHONHOME
export PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1

say() { echo "penstock: $*"; }

# `attempt NAME COMMAND...`: quiet; its output where it fails.
attempt() {
  local log="$folder/$1.log"
  shift
  "$@" >"$log" 2>&1 || { tail -n 30 "$log" >&2; say "this failed: $* (all of it is in $log)" >&2; exit 1; }
}

build() {
  say "building the wheel with $("$python" --version)"
  rm -rf "$folder"
  mkdir -p "$folder/work"
  "$python" -m venv "$venv"
  attempt build "$venv/bin/python" -m pip wheel --no-input --disable-pip-version-check \
    --no-deps --wheel-dir "$folder" "$checkout"
}

# What `pip install penstock` brings, at the versions that the tests ran with.
install() {
  say "installing $(basename "$folder"/*.whl) alone"
  attempt install "$venv/bin/python" -m pip install --no-input --disable-pip-version-check \
    --no-compile --constraint "$checkout/constraints.txt" "$folder"/*.whl
  attempt check "$venv/bin/python" -m pip check
}

# Prints what README shows, so that it can be looked at.
use() {
  cd "$folder/work"
  local from
  from="$("$venv/bin/python" -c 'import penstock; print(penstock.__file__)')"
  case "$from" in
    "$venv"/*) ;;
    *) say "penstock was imported from $from, expected it from the wheel" >&2; exit 1 ;;
  esac
  "$venv/bin/penstock" --version
  # The pages are in the wheel, and its README links to nothing that is not.
  "$venv/bin/penstock" docs tutorial | grep '^# Tutorial' >/dev/null
  "$venv/bin/python" - <<'CODE'
import re
from importlib import metadata
readme = metadata.metadata("penstock").json["description"]
links = re.findall(r"\]\((?!https?:).*?\)", readme)
assert "penstock train" in readme, readme
assert not links, f"the wheel's README got the links {links}, expected none into the checkout"
CODE
  say "penstock train"
  attempt train "$venv/bin/penstock" train
  grep '^best test' "$folder/train.log"
  "$venv/bin/penstock" report runs/digits_lenet 2>/dev/null
  say "README's Python"
  awk '/^```python$/ { on = 1; next } /^```$/ { on = 0 } on' "$checkout/README.md" >readme.py
  "$venv/bin/python" readme.py
}

# With what tests need, and from a copy that has no penstock/: pytest puts its own folder on the path.
run_pages() {
  local pages="${PAGES-all}" words="python_blocks"
  [ -n "$pages" ] || return 0
  say "running the blocks of README and docs, and the examples, by their tests (minutes)"
  attempt install_test "$venv/bin/python" -m pip install --no-input --disable-pip-version-check \
    --no-compile --constraint "$checkout/constraints.txt" \
    "penstock[test] @ file://$(echo "$folder"/*.whl)"
  rm -rf "$folder/copy"
  mkdir "$folder/copy"
  tar -C "$checkout" --exclude='*/__pycache__' --exclude='.venv*' -cf - \
    tests docs examples deploy benchmarks README.md CHANGELOG.md CONTRIBUTING.md Makefile \
    mkdocs.yml pyproject.toml constraints.txt | tar -C "$folder/copy" -xf -
  [ "$pages" = all ] || words="python_blocks and (${pages// / or })"
  cd "$folder/copy"
  "$venv/bin/python" -m pytest --quiet -p no:cacheprovider -k "$words" tests/test_documentation.py
  [ "$pages" != all ] ||
    "$venv/bin/python" -m pytest --quiet -p no:cacheprovider tests/test_examples.py
}

build
install
use
run_pages
say "the wheel works on $("$python" --version)"
