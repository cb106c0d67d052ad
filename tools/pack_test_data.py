#!/usr/bin/env python3
"""Packs recorded data into the archives tests/data/NAME.tar.xz, which CMake unpacks into the build folder.

    tools/pack_test_data.py build/release/tests/data          # all folders
    tools/pack_test_data.py build/release/tests/data llm      # one of them

Programs that record data (tools/*/record.py, tools/*/make.py) write into the build folder. Equal files give an equal archive.
"""

import pathlib
import sys
import tarfile

ARCHIVES = pathlib.Path(__file__).resolve().parents[1] / "tests/data"


def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o644
    return entry


def pack(folder: pathlib.Path) -> None:
    archive = ARCHIVES / f"{folder.name}.tar.xz"
    with tarfile.open(archive, "w:xz", format=tarfile.USTAR_FORMAT, preset=9) as out:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            out.add(file, str(file.relative_to(folder.parent)), filter=without_owner)
    print(f"{archive.name}: {archive.stat().st_size} bytes")


if __name__ == "__main__":
    data = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or sorted(path.name for path in data.iterdir() if path.is_dir()):
        pack(data / name)
