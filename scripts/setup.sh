#!/usr/bin/env bash
# Installs the missing dependencies of a build: Debian packages and LibTorch. Uses an existing LibTorch (LIBTORCH,
# CMAKE_PREFIX_PATH, the active Python's torch: see cmake/LocateLibTorch.cmake). Otherwise installs the pinned wheel,
# without its dependencies, into the user's cache folder, which all clones share. SETUP_PACKAGES=0 installs no packages,
# SETUP_DOCS=1 also those that build the docs site.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.15.0
cuda_wheels=(nvidia-cuda-runtime==13.2.86 nvidia-cuda-cupti==13.2.86)  # libtorch_cpu.so links both, even without a GPU
packages=(g++ cmake ninja-build ccache git python3 python3-venv nlohmann-json3-dev libcli11-dev libgtest-dev librapidcheck-dev
  libbenchmark-dev libopenmpi-dev openmpi-bin libxxhash-dev libonig-dev libutf8proc-dev pkg-config)
docs_packages=(doxygen python3-sphinx python3-breathe python3-myst-parser furo)
if [ "${SETUP_DOCS:-0}" = 1 ]; then packages+=("${docs_packages[@]}"); fi
python=${PYTHON:-python3}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/dtensor
home=$cache/libtorch-$torch_version
python_home=$cache/python-$torch_version
python_wheels=(typing_extensions sympy mpmath numpy filelock setuptools expecttest)  # for `import torch` and its op_db
stamp=build/.setup

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

# The stamp contains a hash of the inputs and the folder of the LibTorch that was found. Setup is done if both are still
# valid.
inputs() { { cat scripts/setup.sh scripts/cuda_stubs.py cmake/LocateLibTorch.cmake; echo "${LIBTORCH:-}|${CMAKE_PREFIX_PATH:-}|$cache|$python|${SETUP_DOCS:-0}"; } | sha256sum | cut -c1-16; }
done_before() {
  [ -e "$stamp" ] || return 1
  local sum root
  { read -r sum; read -r root; } < "$stamp" || return 1
  [ "$sum" = "$(inputs)" ] && [ -e "$root/lib/libtorch_cpu.so" ]
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Without apt, checks that the programs and headers exist.
check_without_apt() {
  local missing=() name
  for name in g++ cmake ninja git "$python"; do command -v "$name" > /dev/null || missing+=("$name"); done
  for name in nlohmann/json.hpp CLI/CLI.hpp gtest/gtest.h rapidcheck.h benchmark/benchmark.h xxhash.h oniguruma.h utf8proc.h; do
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
  [ -e "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))' 2> /dev/null)/Python.h" ] || packages+=(python3-dev)
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

# Installations use a temporary folder, which is renamed when complete, so that an interrupted installation is never used.
lock_cache() {
  mkdir -p "$cache" && { exec 9> "$cache/.lock"; } && flock 9 && rm -rf "$cache"/.partial-* || return 1
  trap 'rm -rf "$cache"/.partial-*' EXIT
}

install_libtorch() {
  lock_cache
  root=$(libtorch_root)
  [ -z "$root" ] || return 0  # another clone has installed it
  rm -rf "$home"  # unusable, otherwise it would have been found
  partial=$(mktemp -d "$cache/.partial-XXXXXX")
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

# Creates a Python that can import the wheel: hard links to it, the few packages that it needs, and stubs of CUDA's libraries
# (scripts/cuda_stubs.py). It is a separate folder, because C++ programs on a machine with a GPU must not find the stubs.
install_python() {
  local made_from partial torch site
  made_from=$({ cat scripts/cuda_stubs.py; echo "${python_wheels[*]}"; } | sha256sum)
  lock_cache || return 1
  [ "$(cat "$python_home/.made-from" 2> /dev/null)" != "$made_from" ] || return 0
  say "making a Python with torch $torch_version for the tests (30 MB to fetch) in $python_home"
  partial=$(mktemp -d "$cache/.partial-XXXXXX") || return 1
  torch=$(dirname "$root")
  "$python" -m venv --without-pip "$partial/venv" || return 1
  site=$(echo "$partial"/venv/lib/python3*/site-packages)
  cp -al "$torch"/{torch,torchgen,functorch} "$torch"/torch-*.dist-info "$site" || return 1
  if [ -d "$torch/nvidia" ]; then cp -al "$torch/nvidia" "$site" || return 1; fi
  "$python" scripts/cuda_stubs.py "$site/torch/lib" "$site/nvidia/cu13/lib" || return 1
  "$home/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --target "$site" "${python_wheels[@]}" \
    < /dev/null || return 1
  "$partial/venv/bin/python" -c 'import torch' || return 1
  echo "$made_from" > "$partial/venv/.made-from"
  rm -rf "$python_home"
  mv "$partial/venv" "$python_home" || return 1
  rm -f build/*/.inputs-*  # reconfigures all build folders
}

if done_before; then exit 0; fi
install_packages
root=$(libtorch_root)
[ -n "$root" ] || install_libtorch
root=$(libtorch_root)
[ -n "$root" ] || fail "LibTorch was installed into $home, but is not usable there (see above)"
say "LibTorch $(sed -nE 's/^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) +([0-9]+).*/\2/p' "$root"/include/torch/headeronly/version.h | paste -sd.) in $root"
case $root in
  "$home"/*) install_python || say "no Python with torch could be made; the tests of the Python package will be skipped" ;;
esac
mkdir -p build
printf '%s\n%s\n' "$(inputs)" "$root" > "$stamp"
