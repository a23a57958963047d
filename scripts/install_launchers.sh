#!/usr/bin/env bash
# Installs the launchers that tests/distributed/test_launchers.py starts, where they are missing, and
# Triton's client, which tests/serving/test_clients.py runs.
#
#   scripts/install_launchers.sh [VENV [BASE]]
#
# Open MPI, Slurm and munge come from Debian, by apt-get, as root or with sudo. torchrun and Ray go
# into VENV (.venv-launchers), an environment that sees the packages of BASE (.venv) and leaves them
# as they are: torch is large, and must not decide about the versions of what is under test.
#
# pip's settings are those of the machine: PIP_INDEX_URL, PIP_EXTRA_INDEX_URL and the like. PyTorch
# has an index of wheels for CPU alone; without it, torch brings CUDA, gigabytes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${1:-.venv-launchers}
BASE=${2:-.venv}
TORCH=${TORCH:-2.13.0}  # which has torchrun as the tests know it; any torch 2 will do
PIP_ARGS="--no-input --disable-pip-version-check --progress-bar off --no-compile --quiet"
missing=()

say() { echo "install_launchers: $*"; }

# has PROGRAM...: whether all are there; Debian has daemons where only root looks.
has() {
  local program
  for program in "$@"; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || return 1
  done
}

# install_package NAME PROGRAM PACKAGE...: from Debian, unless the programs are there.
install_packages() {
  local name=$1 programs=$2
  shift 2
  # shellcheck disable=SC2086  # a list
  if has $programs; then
    say "$name is there"
    return
  fi
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    as_root=(sudo -n)
  fi
  if ! has apt-get || { [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; }; then
    say "$name is missing. Install it as your system does; on Debian, as root: apt-get install $*" >&2
    missing+=("$name")
    return
  fi
  say "installing $name with apt-get: $*"
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" \
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

install_packages "Open MPI" "mpirun" openmpi-bin
install_packages "Slurm" "srun sbatch sinfo squeue slurmctld slurmd munged" slurm-wlm munge

if [ ! -x "$BASE/bin/python" ]; then
  say "$BASE got no bin/python, expected an environment with penstock. Run make train first." >&2
  exit 1
fi
if [ ! -x "$VENV/bin/python" ]; then
  say "making $VENV, which sees the packages of $BASE"
  "$BASE/bin/python" -m venv "$VENV"
fi
# addsitedir reads the .pth files there too, with the one of an editable installation.
packages=$("$BASE/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
own=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf 'import site; site.addsitedir(%s)\n' \
  "$("$BASE/bin/python" -c 'import sys; print(repr(sys.argv[1]))' "$packages")" >"$own/penstock_base.pth"

if "$VENV/bin/python" -c 'import torch.distributed.run' 2>/dev/null; then
  say "torchrun is there"
else
  say "installing torch $TORCH for CPU into $VENV"
  # shellcheck disable=SC2086
  if ! "$VENV/bin/python" -m pip install $PIP_ARGS "torch==$TORCH+cpu" 2>/dev/null; then
    say "no index of pip's has torch $TORCH+cpu: taking the one for CUDA, gigabytes"
    # shellcheck disable=SC2086
    "$VENV/bin/python" -m pip install $PIP_ARGS torch || missing+=("torchrun")
  fi
fi

if "$VENV/bin/python" -c 'import ray.train.v2.jax, pyarrow' 2>/dev/null; then
  say "Ray is there"
else
  say "installing penstock's extra ray into $VENV"
  requirement=$("$BASE/bin/python" -c '
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
print(*project["optional-dependencies"]["ray"])')
  # shellcheck disable=SC2086
  "$VENV/bin/python" -m pip install $PIP_ARGS --constraint constraints.txt $requirement || missing+=("Ray")
fi

if "$VENV/bin/python" -c 'import tritonclient.http' 2>/dev/null; then
  say "Triton's client is there"
else
  say "installing Triton's client into $VENV"
  # It wants an older ml_dtypes than JAX has, which it needs for none of what it is asked here.
  # shellcheck disable=SC2086
  "$VENV/bin/python" -m pip install $PIP_ARGS geventhttpclient aiohttp python-rapidjson &&
    "$VENV/bin/python" -m pip install $PIP_ARGS --no-deps tritonclient==2.73.0 || missing+=("Triton's client")
fi

if [ ${#missing[@]} != 0 ]; then
  printf 'install_launchers: not installed: %s\n' "${missing[*]}" >&2
  exit 1
fi
say "all launchers are there"
