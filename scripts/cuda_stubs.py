#!/usr/bin/env python3
"""Makes stubs of CUDA's libraries, so that `import torch` of the wheel works without the real ones (3 GB).

cuda_stubs.py TORCH/lib FOLDER writes one library into FOLDER for each CUDA library that torch links, except those that its
CPU part links itself. Each defines the symbols that torch needs. A call of a stub aborts the program; without a GPU there
are no such calls.
"""

import pathlib
import re
import subprocess
import sys

# Prefixes of symbols without a version that identifies their library.
PREFIXES = {"libcusparseLt": "cusparseLt", "libcufile": "cuFile", "libnccl": "nccl", "libnvshmem_host": "nvshmem"}


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def needed(library):
    """Names of the CUDA libraries that it links, without libcuda, which belongs to the driver."""
    names = [re.search(r"\(NEEDED\).*\[(lib(?:cu|nv|nccl).*)\]", line) for line in lines("readelf", "-d", str(library))]
    return {name[1] for name in names if name and not name[1].startswith("libcuda.")}


def undefined(libraries):
    """(symbol, version or "") of all undefined symbols of the libraries."""
    listed = [line.split()[-1] for library in libraries for line in lines("nm", "-D", "--undefined-only", str(library))]
    return {(symbol, version) for symbol, _, version in (entry.partition("@") for entry in listed)}


def make(name, symbols, folder):
    prefix = PREFIXES.get(name.partition(".so")[0])
    mine = sorted((s, v) for s, v in symbols if v == name or (prefix and s.startswith(prefix)))
    versions = sorted({v for _, v in mine if v})
    script = folder / f"{name}.map"
    script.write_text("".join(f"{v} {{ global: {'; '.join(s for s, w in mine if w == v)}; }};\n" for v in versions))
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-nostdlib", "-w", "-x", "c", "-", "-o", str(folder / name), f"-Wl,-soname,{name}"]
        + [f"-Wl,--version-script={script}"] * bool(versions),
        input="".join(f"void {symbol}(void) {{ __builtin_trap(); }}\n" for symbol, _ in mine), text=True, check=True,
    )  # fmt: skip
    script.unlink()


def main():
    torch, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    libraries = [*torch.glob("libtorch*.so"), torch / "libc10_cuda.so"]
    symbols = undefined(libraries)
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(set.union(*map(needed, libraries)) - needed(torch / "libtorch_cpu.so")):
        make(name, symbols, folder)


if __name__ == "__main__":
    main()
