#!/usr/bin/env bash
# Gets what a build needs and nothing that is there already: Debian packages, and a LibTorch. An own one counts (LIBTORCH,
# CMAKE_PREFIX_PATH, the active Python's torch: see cmake/LocateLibTorch.cmake); otherwise the pinned wheel goes, without its
# dependencies, into the user's cache folder, where all clones share it. SETUP_PACKAGES=0 leaves the packages alone.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.15.0
cuda_wheels=(nvidia-cuda-runtime==13.2.86 nvidia-cuda-cupti==13.2.86)  # libtorch_cpu.so links both, even without a GPU
packages=(g++ cmake ninja-build ccache git python3 python3-venv nlohmann-json3-dev libcli11-dev libgtest-dev librapidcheck-dev
  libbenchmark-dev libopenmpi-dev openmpi-bin gnuplot-nox pkg-config)
python=${PYTHON:-python3}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/dtensor
home=$cache/libtorch-$torch_version
stamp=build/.setup

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

# The stamp names what it was made from and the LibTorch that was found; both must still be so.
inputs() { { cat scripts/setup.sh cmake/LocateLibTorch.cmake; echo "${LIBTORCH:-}|${CMAKE_PREFIX_PATH:-}|$cache|$python"; } | sha256sum | cut -c1-16; }
done_before() {
  [ -e "$stamp" ] || return 1
  local sum root
  { read -r sum; read -r root; } < "$stamp" || return 1
  [ "$sum" = "$(inputs)" ] && [ -e "$root/lib/libtorch_cpu.so" ]
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Where there is no apt, what counts is that the programs and headers are there.
check_without_apt() {
  local missing=() name
  for name in g++ cmake ninja git "$python"; do command -v "$name" > /dev/null || missing+=("$name"); done
  for name in nlohmann/json.hpp CLI/CLI.hpp gtest/gtest.h rapidcheck.h benchmark/benchmark.h; do
    echo "#include <$name>" | g++ -std=c++20 -fsyntax-only -x c++ - 2> /dev/null || missing+=("$name")
  done
  [ ${#missing[@]} = 0 ] || fail "this is not a Debian system; please install: ${missing[*]}"
}

install_packages() {
  [ "${SETUP_PACKAGES:-1}" = 1 ] || return 0
  if ! command -v apt-get > /dev/null; then
    check_without_apt
    return
  fi
  local missing=() name
  for name in "${packages[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2> /dev/null)" = installed ] || missing+=("$name")
  done
  [ ${#missing[@]} = 0 ] && return
  [ "$(id -u)" = 0 ] || command -v sudo > /dev/null ||
    fail "these packages are missing, and there is no sudo: apt-get install ${missing[*]}"
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  as_root apt-get -qq update < /dev/null || fail "apt-get update failed; is there a network?"
  as_root apt-get -qq install -y --no-install-recommends "${missing[@]}" < /dev/null > /dev/null ||
    fail "apt-get could not install: ${missing[*]}"
}

libtorch_root() { cmake -P cmake/LocateLibTorch.cmake; }

# Into a folder of its own, renamed when it is whole, so that an interrupted installation leaves nothing that looks like one.
install_libtorch() {
  mkdir -p "$cache"
  exec 9> "$cache/.lock"
  flock 9
  root=$(libtorch_root)
  [ -z "$root" ] || return 0  # another clone was faster
  rm -rf "$cache"/.partial-*
  rm -rf "$home"  # not usable, or it would have been found
  partial=$(mktemp -d "$cache/.partial-XXXXXX")
  trap 'rm -rf "$partial"' EXIT
  say "installing LibTorch $torch_version (540 MB to fetch, 1.2 GB on disk) into $home"
  "$python" -m venv "$partial/venv" || fail "$python cannot make a virtual environment (Debian: python3-venv)"
  install_wheels "torch==$torch_version"
  local library
  library=$(echo "$partial"/venv/lib/python3*/site-packages/torch/lib/libtorch_cpu.so)
  [ -e "$library" ] || fail "the wheel torch==$torch_version has no libtorch_cpu.so"
  if ldd "$library" | grep -q 'not found'; then install_wheels "${cuda_wheels[@]}"; fi
  mv "$partial/venv" "$home"
}

install_wheels() {
  "$partial/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$@" < /dev/null ||
    fail "pip could not install $*: it needs a network, $(df -h --output=avail "$cache" | tail -n 1 | tr -d ' ') are free in $cache, and $("$python" --version) must have a wheel of it (PYTHON=... picks another Python)"
}

if done_before; then exit 0; fi
install_packages
root=$(libtorch_root)
[ -n "$root" ] || install_libtorch
root=$(libtorch_root)
[ -n "$root" ] || fail "LibTorch was installed into $home, but is not usable there (see above)"
say "LibTorch $(sed -nE 's/^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) +([0-9]+).*/\2/p' "$root"/include/torch/headeronly/version.h | paste -sd.) in $root"
mkdir -p build
printf '%s\n%s\n' "$(inputs)" "$root" > "$stamp"
