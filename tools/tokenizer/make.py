#!/usr/bin/env python3
"""Trains the vocabulary of apps/train, and records encodings of the Python package `tokenizers`.

    pip install tokenizers
    tools/tokenizer/make.py train FOLDER [SIZE]   trains byte-pair encoding on a folder's text files (the default corpus of
                                                  train is LibTorch's ATen headers); writes apps/train/tokenizer.json
    tools/tokenizer/make.py record OUT            writes a small tokenizer.json as for each family of models, and cases.json
                                                  with texts, their ids and the decoded texts
    tools/tokenizer/make.py patterns OUT          writes patterns.json: regular expressions and their matches, or null if
                                                  they are invalid

OUT is build/release/tests/data/tokenizer; tools/pack_test_data.py packs it afterwards.
"""
import json
import pathlib
import random
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "apps/train/tokenizer.json"


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
    "", " ", "\n", "a", "Hello, world!", "it's we're I'll they've I'm he'd don't 'S'T IT'S WE'LL", "  two  spaces   three ",
    "tabs\tand\r\nlines\n\n\n  end  ", "int main() {\n  return at::Tensor(0x1F) + 3.14e-10;\n}\n",
    "template <class T>\nstruct TORCH_API Function final : public Node {};", "naïve café — “quoted” … £5 ½ ² Ⅷ",
    "Привет, мир! Γειά σου 123 κόσμε", "日本語のテキスト 数字１２３ と記号。", "한국어 العربية עברית हिन्दी ไทย",
    "emoji 😀😃👩‍👩‍👧 flags 🇩🇪", "mixed\u00a0nbsp\u2003em\u3000ideographic\u200bzero\u0085nel", "a\u0301 combining e\u0308",
    "<|endoftext|>", "one<|endoftext|>two <|endoftext|> three<|endoftext|><|endoftext|>", "<|endoftext", "_snake_case__9a9",
    "\u0000\u0001\u007f control", "ſ İ ß ŉ 'ſ", "x" * 300, "12345678 1,234.5", "<s>begin</s> and <s> more</s>  ", "▁marks▁▁ of▁ its own",
    "camelCaseWords HTTPServer ÀÉÎ", "q\u0323\u0307 \u1e69 \u0344 \uac00\u11a8 \u1112\u1161\u11ab \u2126 \u0958 A\u030a\u0327",
    "sp<mask>  <mask> next<mask>", "a\n\nb\n\n\nc \n d", "!!! ?? (x) [y] {z}/path/to", "    indented\n        twice\n",
]


def random_texts(count):
    draw = random.Random(1)
    alphabet = "abcXYZ'019 \n\t_(){};:,.<>äßЖ漢字😀½²\u00a0\u3000-\u0301\u0323e▁각"
    texts = ["".join(draw.choice(alphabet) for _ in range(draw.randrange(1, 60))) for _ in range(count)]
    draw = random.Random(2)
    for _ in range(count):  # characters of old Unicode versions
        codes = [draw.choice([draw.randrange(32, 127), draw.randrange(0xA0, 0x250), draw.randrange(0x370, 0x3FF),
                              draw.randrange(0x400, 0x4FF), draw.randrange(0x4E00, 0x9FA5), draw.randrange(0xAC00, 0xD7A3),
                              draw.randrange(0x1100, 0x1200), draw.randrange(0x1E00, 0x1EFF), draw.randrange(0x300, 0x345),
                              draw.randrange(0x2000, 0x2060), draw.randrange(0x900, 0x97F)])
                 for _ in range(draw.randrange(1, 40))]
        texts.append("".join(map(chr, codes)))
    return texts


LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
          r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]


def byte_level(name, patterns, normalizer=None, frame=None, **model):
    """As Llama 3, Qwen, newer Mistral and DeepSeek: split by expressions, byte-level BPE."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns] + [pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=440, special_tokens=["<|endoftext|>", "<s>", "</s>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True)])
    if frame:
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single=frame, special_tokens=[("<s>", 1), ("</s>", 2)])])
    return json.loads(tokenizer.to_str())


def with_byte_tokens(tokenizer, trainer, frame, texts=None):
    """Trains; byte tokens are not added tokens, as in files converted from sentencepiece."""
    from tokenizers import processors

    tokenizer.train_from_iterator((texts or TEXTS) * 4, trainer)
    if frame:
        tokenizer.post_processor = processors.TemplateProcessing(single=frame, special_tokens=[("<s>", 1), ("</s>", 2)])
    file = json.loads(tokenizer.to_str())
    file["added_tokens"] = [t for t in file["added_tokens"] if not t["content"].startswith("<0x")]
    return file


BYTES = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]


def sentencepiece(normalizer, pre_tokenizer, decoder, cut_for_training, frame="<s> $A"):
    """As Llama 2, Mistral and Gemma: BPE of characters, with bytes for unknown ones."""
    from tokenizers import Tokenizer, models, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer, tokenizer.decoder = normalizer, decoder
    tokenizer.pre_tokenizer = cut_for_training
    trainer = trainers.BpeTrainer(vocab_size=520, special_tokens=BYTES, show_progress=False, limit_alphabet=80)
    file = with_byte_tokens(tokenizer, trainer, frame)
    file["pre_tokenizer"] = json.loads(pre_tokenizer.__getstate__()) if pre_tokenizer is not None else None
    return file


def unigram(byte_fallback):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    if byte_fallback:
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    special = BYTES if byte_fallback else BYTES[:3]
    trainer = trainers.UnigramTrainer(vocab_size=420 if byte_fallback else 160, special_tokens=special, unk_token="<unk>",
                                      show_progress=False)
    file = with_byte_tokens(tokenizer, trainer, "<s> $A </s>", TEXTS[:10] + TEXTS[-4:])  # few characters: others are unknown
    file["model"]["byte_fallback"] = byte_fallback
    return file


def families():
    from tokenizers import decoders, normalizers, pre_tokenizers

    mark = "▁"
    to_marks = normalizers.Replace(" ", mark)
    base = [decoders.Replace(mark, " "), decoders.ByteFallback(), decoders.Fuse()]
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    spaces = pre_tokenizers.Split(" ", "merged_with_previous")
    return {
        "gpt2": json.loads(SHIPPED.read_text()),
        "llama2": sentencepiece(normalizers.Sequence([normalizers.Prepend(mark), to_marks]), None,
                                decoders.Sequence(base + [decoders.Strip(" ", 1, 0)]), pre_tokenizers.Metaspace()),
        "mistral": sentencepiece(None, metaspace, decoders.Sequence(base + [decoders.Strip(" ", 1, 0)]), pre_tokenizers.Metaspace()),
        "gemma": sentencepiece(to_marks, spaces, decoders.Sequence(base), pre_tokenizers.Split(mark, "merged_with_next")),
        "llama3": byte_level("llama3", [LLAMA3], frame="<s> $A", ignore_merges=True),
        "qwen": byte_level("qwen", [QWEN], normalizers.NFC()),
        "tekken": byte_level("tekken", [TEKKEN], frame="<s> $A </s>"),
        "deepseek": byte_level("deepseek", DEEPSEEK, normalizers.Sequence([])),
        "unigram": unigram(False),
        "unigram_bytes": unigram(True),
    }


def record(out):
    import tokenizers

    out.mkdir(parents=True, exist_ok=True)
    texts = TEXTS + random_texts(40)
    recorded = {"tokenizers": tokenizers.__version__, "texts": texts, "families": {}}
    for name, file in families().items():
        text = json.dumps(file, ensure_ascii=False, separators=(",", ":"))
        if name != "gpt2":
            (out / f"{name}.json").write_text(text + "\n")
        tokenizer = tokenizers.Tokenizer.from_str(text)
        encoded = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
        recorded["families"][name] = {
            "ids": encoded, "framed": tokenizer.encode("Hello, world!").ids, "size": tokenizer.get_vocab_size(),
            "texts": [tokenizer.decode(ids, skip_special_tokens=False) for ids in encoded],
            "without_special": tokenizer.decode(tokenizer.encode("a<s>b</s>").ids)}
        same = sum(t == again for t, again in zip(texts, recorded["families"][name]["texts"]))
        print(f"{name}: {tokenizer.get_vocab_size()} tokens, {same} of {len(texts)} texts come back")
    (out / "cases.json").write_text(json.dumps(recorded, separators=(",", ":")) + "\n")


PATTERNS = [
    (r"(?<=a)b", "ab bb aab"), (r"(?<!a)b", "ab bb aab"), (r"(?<=a+|bc)d", "ad bcd d"), (r"(a*)*b", "aab b"),
    (r"\bword\b", "a word swords word"), (r"^a|c$", "ab\nac\nabc"), (r"\Aa|c\z", "ab\nac\nabc"), (r"[a-z&&[^b]]+", "abcab"),
    (r"[[:alpha:]]+", "é1a"), (r"\S+[^\S\n]", "ab c\nd e "), (r"(?>a+)b|a", "aab aac"), (r"(\w)\1", "aabbc"),
    (r"\R", "a\r\nb\nc"), (r"\X", "e\u0301a"), (r"a{3,2}", "aaaaa"), (r"a{2}+", "aaaaa"), (r"a*|b", "baab"),
    (r"(?i:straße)", "STRASSE straße"), (r"(?i:ÄÖ)", "äö ÄÖ"), (r"\d{1,3}(?=(\d{3})*\b)", "1234567 12"),
    (r"\p{Han}+|\p{Script=Greek}+|\p{^L}", "漢字αβ1"), (r"(?m:a.b)", "a\nb"), (r".+", "ab\ncd"), (r"a**b", "aab"), (r"a{1001}", "a"),
    ("(a", ""), ("a)", ""), ("[a", ""), (r"\p{Q}", ""), ("*a", ""), (r"\k<x>", ""), ("(?s).", ""), ("a{100001}", ""),
]


def record_patterns(out):
    from tokenizers import Regex, pre_tokenizers

    recorded = []
    for pattern, text in PATTERNS:
        try:
            split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
            found = [piece for piece, _ in split.pre_tokenize_str(text)]
        except Exception:
            found = None
        recorded.append({"pattern": pattern, "text": text, "found": found})
    lines = (json.dumps(case, ensure_ascii=False) for case in recorded)
    (out / "patterns.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "train":
        train(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1024)
    elif command == "record":
        record(pathlib.Path(sys.argv[2]))
    elif command == "patterns":
        record_patterns(pathlib.Path(sys.argv[2]))
    else:
        sys.exit(__doc__)
