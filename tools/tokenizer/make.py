#!/usr/bin/env python3
"""The vocabulary that examples/train ships, and what the Python package `tokenizers` makes of texts.

    pip install tokenizers
    tools/tokenizer/make.py train FOLDER [SIZE]   trains byte-pair encoding on a folder's text files (the default corpus of
                                                  train is LibTorch's include/ATen); writes examples/train/tokenizer.json
    tools/tokenizer/make.py record                writes tests/data/tokenizer.json: texts and their tokens
    tools/tokenizer/make.py classes               writes examples/train/unicode_classes.inl: letters, numbers, spaces
"""
import json
import pathlib
import random
import sys
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "examples/train/tokenizer.json"


def train(folder, size):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<|endoftext|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    files = sorted(str(p) for p in pathlib.Path(folder).rglob("*") if p.is_file())
    tokenizer.train(files, trainer)
    SHIPPED.write_text(tokenizer.to_str(pretty=False) + "\n")
    print(f"{SHIPPED}: {tokenizer.get_vocab_size()} tokens from {len(files)} files")


TEXTS = [
    "", " ", "\n", "a", "Hello, world!", "it's we're I'll they've I'm he'd don't 'S'T", "  two  spaces   three ",
    "tabs\tand\r\nlines\n\n\n  end  ", "int main() {\n  return at::Tensor(0x1F) + 3.14e-10;\n}\n",
    "template <class T>\nstruct TORCH_API Function final : public Node {};", "naïve café — “quoted” … £5 ½ ² Ⅷ",
    "Привет, мир! Γειά σου 123 κόσμε", "日本語のテキスト 数字１２３ と記号。", "한국어 العربية עברית हिन्दी ไทย",
    "emoji 😀😃👩‍👩‍👧 flags 🇩🇪", "mixed\u00a0nbsp\u2003em\u3000ideographic\u200bzero\u0085nel", "a\u0301 combining e\u0308",
    "<|endoftext|>", "one<|endoftext|>two <|endoftext|> three<|endoftext|><|endoftext|>", "<|endoftext", "_snake_case__9a9",
    "\u0000\u0001\u007f control", "ſ İ ß ŉ 'ſ", "x" * 300,
]


def random_texts(count):
    draw = random.Random(1)
    alphabet = "abcXYZ'019 \n\t_(){};:,.<>äßЖ漢字😀½²\u00a0\u3000-"
    return ["".join(draw.choice(alphabet) for _ in range(draw.randrange(1, 60))) for _ in range(count)]


def record():
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(SHIPPED))
    texts = TEXTS + random_texts(60)
    cases = [{"text": t, "ids": tokenizer.encode(t).ids} for t in texts]
    for case in cases:
        assert tokenizer.decode(case["ids"], skip_special_tokens=False) == case["text"], case
    path = ROOT / "tests/data/tokenizer.json"
    path.write_text(json.dumps({"tokenizers": tokenizers.__version__, "cases": cases}) + "\n")
    print(f"{path}: {len(cases)} texts")


def ranges(holds):
    found, first = [], None
    for code in range(0x110001):
        inside = code < 0x110000 and holds(code)
        if inside and first is None:
            first = code
        if not inside and first is not None:
            found.append((first, code - 1))
            first = None
    return found


def classes():
    kinds = {"kLetters": "L", "kNumbers": "N"}
    text = ["// Made by tools/tokenizer/make.py classes, from Unicode " + unicodedata.unidata_version + ". Ranges, both ends included.\n"]
    tables = {name: ranges(lambda c, k=kind: unicodedata.category(chr(c))[0] == k) for name, kind in kinds.items()}
    white = set(range(9, 14)) | {0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000} | set(range(0x2000, 0x200B))
    tables["kSpaces"] = ranges(lambda c: c in white)
    for name, found in tables.items():
        text.append(f"constexpr Range {name}[] = {{\n")
        line = "   "
        for first, last in found:
            item = f" {{0x{first:x}, 0x{last:x}}},"
            if len(line) + len(item) > 138:
                text.append(line + "\n")
                line = "   "
            line += item
        text.append(line + "\n};\n")
    (ROOT / "examples/train/unicode_classes.inl").write_text("".join(text))


if __name__ == "__main__":
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "train":
        train(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1024)
    elif command == "record":
        record()
    elif command == "classes":
        classes()
    else:
        sys.exit(__doc__)
