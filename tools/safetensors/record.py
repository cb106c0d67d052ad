#!/usr/bin/env python3
"""Records results of the format's reference for some hundred files: python3 record.py build/release/tests/data/oracles/safetensors.json

tools/pack_test_data.py packs it afterwards.

Needs the packages safetensors and torch. Each file is a text with one character per byte; `opens` is whether the reference accepts
its header, `loads` whether it also loads every tensor. Manual cases come first, then random changes of valid files.
"""
import json
import random
import struct
import sys
import tempfile
import warnings

import safetensors
import torch
from safetensors import safe_open

warnings.simplefilter("ignore")
DTYPES = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8,
          "C64": 64, "U16": 16, "U32": 32, "U64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
          "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}


def file_of(header, data=b""):
    header = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(header)) + header + data


def entry(dtype="U8", shape="[4]", offsets="[0,4]", more=""):
    return '{"dtype":"%s","shape":%s,"data_offsets":%s%s}' % (dtype, shape, offsets, more)


def one(text, data=4):
    return file_of('{"a":%s}' % text, b"x" * data)


def hand_written():
    pair = lambda a, b, n: file_of('{"a":%s,"b":%s}' % (a, b), b"x" * n)
    yield from (file_of(h) for h in ("", "{}", " {} ", "[]", "null", "3", '""', "{", "{}x", "{}\0", "\f{}", "\ufeff{}"))
    yield from (file_of('{"__metadata__":%s}' % m) for m in (
        "null", "{}", "[]", "3", '{"a":"b"}', '{"a":1}', '{"a":null}', '{"a":"b","a":"c"}', '{"a":["b"]}', '{"":""}'))
    yield file_of('{"__metadata__":{},"__metadata__":{}}')
    yield file_of('{"__metadata__":{},"a":%s}' % entry(), b"x" * 4)
    yield from (one(entry(shape=s)) for s in ("[4.0]", "[4e0]", "[-4]", "[-0]", "[04]", "[+4]", "[4,1]", "[2,2]", "[]", "4",
                                              "null", "[null]", "[true]", '["4"]', "[[4]]", "{}", "[4,]", "[3]", "[5]",
                                              "[18446744073709551615]", "[18446744073709551616]", "[4.5, 4]"))
    yield from (one(entry(offsets=o)) for o in ("[0,4,5]", "[0]", "[]", "[0,4.0]", "[-0,4]", "[0,4e0]", "[4,0]", "[1,5]",
                                                "[0,5]", "[0,3]", '"04"', "null", '{"0":0,"1":4}', "[null,4]", "[0,true]"))
    yield one(entry(), 3)
    yield one(entry(), 5)
    yield from (one(e) for e in ('["U8",[4],[0,4]]', '["U8",[4],[0,4],1]', '["U8",[4]]', "[]", "{}", "null", "4", '"U8"',
                                 '{"dtype":"U8","shape":[4]}', '{"dtype":"U8","data_offsets":[0,4]}',
                                 '{"shape":[4],"data_offsets":[0,4]}', entry(more=',"dtype":"U8"'), entry(more=',"shape":[4]'),
                                 entry(more=',"data_offsets":[0,4]'), entry(more=',"x":1'), entry(more=',"x":1,"x":2'),
                                 entry(more=',"x":1e999'), entry(more=',"x":1e-999'), entry(more=',"x":1.'),
                                 entry(more=',"x":' + "9" * 40), entry(more=',"__metadata__":{}')))
    yield from (one('{"dtype":%s,"shape":[4],"data_offsets":[0,4]}' % d) for d in (
        '{"U8":null}', '{"U8":1}', '{"U8":null,"I8":null}', "{}", "3", "null", '["U8"]', '"u8"', '"Q4"', '""'))
    yield from (one(entry(d, "[8]", "[0,%d]" % bits), bits) for d, bits in DTYPES.items())
    yield from (one(entry(d, "[]", "[0,%d]" % max(bits // 8, 1)), max(bits // 8, 1)) for d, bits in DTYPES.items())
    yield from (one(entry("F4", s, "[0,%d]" % n), n) for s, n in (("[3]", 1), ("[3]", 2), ("[2,3]", 3), ("[0]", 0), ("[2]", 1)))
    big = "9223372036854775807"
    yield from (one(entry(shape="[%s]" % s, offsets="[0,0]"), 0) for s in (
        "0", "0," + big, big + ",0", big + ",4,0", "0," + big + ",4", "4294967296,4294967296", "18446744073709551615,0"))
    yield pair(entry(), entry(offsets="[4,8]"), 8)
    yield pair(entry(), entry(offsets="[2,6]"), 6)
    yield pair(entry(), entry(), 4)
    yield pair(entry(), entry(offsets="[5,9]"), 9)
    yield pair(entry(offsets="[4,8]"), entry(), 8)
    yield from (pair(entry(), entry(shape="[0]", offsets="[%d,%d]" % (n, n)), 4) for n in (0, 2, 4, 5))
    yield file_of('{"a":%s,"a":%s}' % (entry(), entry()), b"x" * 4)
    yield file_of('{"a":%s,"a":%s}' % (entry(shape="[9]"), entry()), b"x" * 4)
    yield file_of('{"a":%s,"a":%s}' % (entry(), entry(offsets="[4,8]")), b"x" * 8)
    for name in ("", "\\u0000", "\\ud800", "\\ud83d\\ude00", "\x7f", "\x01", "\n", "\\x", "../a", "/a", "dtype", "\ufffe"):
        yield file_of('{"%s":%s}' % (name, entry()), b"x" * 4)
    yield from (file_of(b'{"' + n + b'":' + entry().encode() + b"}", b"x" * 4) for n in (
        b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"))
    for depth in (124, 125, 126, 127, 128, 1000):
        yield one(entry(more=',"x":' + "[" * depth + "]" * depth))
        yield one(entry(more=',"x":' + '{"a":' * depth + "1" + "}" * depth))
        yield file_of('{"a":' + "[" * depth + "]" * depth + "}")
    full = one(entry())
    yield from (full[:n] for n in (0, 1, 7, 8, 9, 20, len(full) - 1))
    yield from (struct.pack("<Q", n) + full[8:] for n in (0, 1, 2, len(full) - 8, len(full), 1 << 32, 1 << 63, (1 << 64) - 1))


def well_formed(draw):
    header, data = {}, 0
    if draw.random() < 0.5:
        header["__metadata__"] = {"format": "pt"}
    for name in draw.sample(["a", "b.c", "weight", "w\u00e9"], draw.randint(1, 3)):
        dtype = draw.choice(list(DTYPES))
        shape = [draw.randint(0, 2) * (8 if DTYPES[dtype] < 8 else 1) for _ in range(draw.randint(0 if DTYPES[dtype] >= 8 else 1, 3))]
        bits = DTYPES[dtype]
        for n in shape:
            bits *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [data, data + bits // 8]}
        data += bits // 8
    return file_of(json.dumps(header, ensure_ascii=draw.random() < 0.5).encode(), b"x" * data)


def changed(draw):
    file = bytearray(well_formed(draw))
    length = 8 + struct.unpack("<Q", file[:8])[0]
    for _ in range(draw.randint(0, 3)):
        at = draw.randrange(8, length)
        kind = draw.randrange(5)
        if kind == 0:
            file[at] = draw.choice(b'0123456789,:[]{}"-.e ')
        elif kind == 1:
            file[at] = draw.randrange(256)
        elif kind == 2:
            digits = [i for i in range(8, length) if chr(file[i]).isdigit()]
            file[draw.choice(digits)] = draw.choice(b"0123456789")
        elif kind == 3:
            file.append(ord("x"))
        else:
            del file[-1]
            length = min(length, len(file))
    return bytes(file)


def verdict(path, file):
    with open(path, "wb") as out:
        out.write(file)
    try:
        with safe_open(path, "pt") as tensors:
            try:
                for name in tensors.keys():
                    tensors.get_tensor(name)
            except Exception:
                return {"opens": True, "loads": False}
    except Exception:
        return {"opens": False, "loads": False}
    return {"opens": True, "loads": True}


def main():
    draw = random.Random(16)
    files = list(hand_written()) + [changed(draw) for _ in range(300)]
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as scratch:
        cases = [{"file": f.decode("latin-1"), **verdict(scratch.name, f)} for f in files]
    lines = ",\n".join(json.dumps(c) for c in cases)
    with open(sys.argv[1], "w") as out:
        out.write('{"made by": "safetensors %s, torch %s",\n"cases": [\n%s\n]}\n' % (
            safetensors.__version__, torch.__version__.split("+")[0], lines))


main()
