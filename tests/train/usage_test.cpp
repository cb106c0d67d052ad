// Invalid arguments give one error line and status 2, whichever part of the program detects them. Valid ones are
// accepted.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "support/captured.h"
#include "support/data.h"
#include "support/folder.h"
#include "train/program.h"

namespace {

namespace fs = std::filesystem;
using train::Kind;
using Words = std::vector<std::string>;

dtensor::test::ProgramOutput run(Kind program, const Words& more) {
  Words words = {train::to_string(program),
                 "--batch",
                 "4",
                 "--seq",
                 "8",
                 "--data",
                 dtensor::test::data_path("oracles/transformer.json")};
  words.insert(words.end(), more.begin(), more.end());
  return dtensor::test::run_captured(words,
                                     [&](int argc, char** argv) { return train::run_program(program, argc, argv); });
}

// The last line is the program's, with its name.
void expect_rejected(Kind program, const Words& words, const std::string& message) {
  const auto [status, out, error] = run(program, words);
  EXPECT_EQ(status, 2) << message << ": " << error;
  EXPECT_NE(error.find(train::to_string(program) + (": " + message)), std::string::npos) << error;
  EXPECT_EQ(error.find("rank "), std::string::npos) << error;
}

TEST(Usage, ErrorsOfRanksAreReportedByTheProgram) {
  const dtensor::test::Folder folder;
  const std::string saved = folder / "saved";
  const Words small = {"--hidden", "16", "--layers", "1", "--steps"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), small.begin(), small.end());
    return more;
  };
  ASSERT_EQ(run(Kind::dense, with({"2", "--save", saved})).status, 0);
  expect_rejected(Kind::dense, with({"2", "--load", saved}), saved + " has done 2 steps already, and --steps is 2");
  expect_rejected(Kind::dense, with({"2", "--save", saved, "--resume", "--ranks", "2"}),
                  saved + " has done 2 steps already");
  expect_rejected(Kind::dense, with({"3", "--load", saved, "--seed", "1"}), saved + " was trained with --seed 0");
  expect_rejected(Kind::dense, with({"3", "--load", saved + "_not"}), "--load: no checkpoint " + saved + "_not");
  expect_rejected(Kind::dense, with({"3", "--save", saved, "--keep", "2", "--resume"}),
                  "--keep: --save " + saved + " is a checkpoint, not a folder of checkpoints");
  expect_rejected(Kind::dense, with({"2", "--mesh", "pp=2", "--schedule", "interleaved", "--chunks", "8"}),
                  "--schedule: expected at most 3 stages (the model's layers), got 16");
  expect_rejected(Kind::dense, {"--hidden", "18"}, "--hidden: expected a multiple of the 4 heads, got 18");
  expect_rejected(Kind::dense, with({"1", "--device", "cuda"}), "--device cuda: no GPU, or a build without CUDA");
}

TEST(Usage, ReplayAndTheCheckOfRanksRefuseWhatTheyCannotCompare) {
  const dtensor::test::Folder folder;
  const std::string hashes = folder / "hashes.jsonl";
  const auto with = [&](Words more) {
    const Words common = {"--hidden", "16", "--layers", "1", "--steps", "2", "--bit-identical", "--hashes", hashes};
    more.insert(more.begin(), common.begin(), common.end());
    return more;
  };
  expect_rejected(Kind::dense, with({"--replay", "1"}), "--hashes: cannot read " + hashes);
  ASSERT_EQ(run(Kind::dense, with({"--save", folder / "run", "--keep", "1"})).status, 0);
  expect_rejected(Kind::dense, with({"--replay", "3"}), "--replay: " + hashes + " has no step 3");
  expect_rejected(Kind::dense, with({"--replay", "2", "--load", folder / "run"}),
                  "--load: " + (folder / "run") + " has no checkpoint before step 2");
  expect_rejected(Kind::dense, with({"--replay", "2", "--save", folder / "other"}), "expected --replay or --save");
  expect_rejected(Kind::dense, with({"--operator-hashes", "--mesh", "pp=2"}),
                  "--operator-hashes needs a --mesh without");
  expect_rejected(Kind::dense, with({"--check-ranks", "1", "--mesh", "pp=2"}),
                  "--check-ranks needs a --mesh without pp");
  expect_rejected(Kind::dense, with({"--check-ranks", "1", "--ranks", "1"}), "--check-ranks needs at least two ranks");
  expect_rejected(Kind::experts, {"--bit-identical", "--check-ranks", "1"}, "--check-ranks needs a model without");
  std::ofstream(hashes) << "{}\n";
  expect_rejected(Kind::dense, with({"--replay", "2"}), "--hashes: line 1 of " + hashes);
}

// The newest checkpoint of such a folder would belong to the other run.
TEST(Usage, ResumedRunDoesNotSaveIntoTheFolderOfAnotherRun) {
  const dtensor::test::Folder root;
  const std::string a = root / "a", b = root / "b";
  const auto train = [](const std::string& save, const char* steps, const Words& more) {
    Words words = {"--hidden", "16", "--layers", "1", "--save", save, "--keep", "2", "--steps", steps};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  ASSERT_EQ(run(Kind::dense, train(a, "2", {})).status, 0);
  ASSERT_EQ(run(Kind::dense, train(b, "6", {"--lr", "0.5"})).status, 0);
  expect_rejected(Kind::dense, train(b, "3", {"--resume", a}), "--save " + b + " has checkpoints of another run");
  EXPECT_EQ(run(Kind::dense, train(a, "3", {"--resume", a})).status, 0);
  EXPECT_EQ(run(Kind::dense, train(root / "c", "4", {"--resume", a})).status, 0);
}

// With another text its batches would differ from there on.
TEST(Usage, ResumingWithAnotherTextIsRefused) {
  const dtensor::test::Folder root;
  const std::string bytes = root / "bytes", packed = root / "packed";
  std::ofstream(root / "a.txt") << std::string(3000, 'a');
  std::ofstream(root / "b.txt") << std::string(3000, 'b');
  const auto train = [&](const char* text, const char* steps, const Words& more, bool refused = false) {
    Words words = {"train", "--hidden", "16", "--layers", "1",   "--batch",
                   "4",     "--seq",    "8",  "--steps",  steps, "--data"};
    words.push_back(root / text);
    words.insert(words.end(), more.begin(), more.end());
    const auto run = [&](int argc, char** argv) { return train::run_program(Kind::dense, argc, argv); };
    const auto ended = dtensor::test::run_captured(words, run);
    EXPECT_EQ(ended.status, refused ? 2 : 0) << ended.error;
    return ended.error;
  };
  train("a.txt", "2", {"--save", bytes});
  train("a.txt", "2", {"--save", packed, "--documents"});
  const auto says = [&](const std::string& error, const std::string& what) {
    EXPECT_NE(error.find("train: " + what), std::string::npos) << error;
    EXPECT_EQ(error.find("rank "), std::string::npos) << error;
  };
  const Words on_two = {"--ranks", "2", "--load", bytes};
  says(train("b.txt", "3", on_two, true), bytes + " was trained on another text (--data and --tokenizer) of 3000");
  says(train("a.txt", "3", {"--load", bytes, "--documents"}, true), bytes + " was trained without --documents");
  says(train("a.txt", "3", {"--load", packed}, true), packed + " was trained with --documents");
  fs::rename(root / "a.txt", root / "moved.txt");
  train("moved.txt", "3", on_two);  // The same text in another file.
}

// The same parameters of a different function.
TEST(Usage, ResumingWithAnotherModelIsRefused) {
  const dtensor::test::Folder folder;
  const std::string saved = folder / "saved";
  const auto words = [&](Kind kind, const char* flag, const char* steps, const Words& more) {
    Words all = {"--hidden", "16", "--layers", "1", "--steps", steps, flag, saved};
    if (kind == Kind::experts) all.insert(all.end(), {"--experts", "4"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  struct Change {
    Kind kind;
    Words begun, resumed;
    std::string reported;
  };
  const std::string tokens = "no --rope --top-k 2 --router tokens";
  const Change changes[] = {
      {Kind::dense, {}, {"--rope"}, "no --rope, not with --rope"},
      {Kind::dense, {"--rope"}, {}, "--rope, not with no --rope"},
      {Kind::experts, {}, {"--top-k", "1"}, tokens + ", not with no --rope --top-k 1 --router tokens"},
      {Kind::experts,
       {"--balance", "none"},
       {"--router", "experts"},
       tokens + ", not with no --rope --top-k 2 --router experts"},
      {Kind::experts,
       {"--balance", "none"},
       {"--balance", "forced"},
       tokens + ", not with no --rope --top-k 2 --balance forced"},
      {Kind::experts,
       {},
       {"--groups", "2", "--top-groups", "1"},
       tokens + ", not with " + tokens + " --groups 2 --top-groups 1"},
      {Kind::experts, {}, {"--score-before-experts"}, tokens + ", not with " + tokens + " --score-before-experts"},
  };
  for (const Change& c : changes) {
    ASSERT_EQ(run(c.kind, words(c.kind, "--save", "1", c.begun)).status, 0);
    expect_rejected(c.kind, words(c.kind, "--load", "2", c.resumed), saved + " was trained with " + c.reported);
    EXPECT_EQ(run(c.kind, words(c.kind, "--load", "2", c.begun)).status, 0) << c.reported;
    fs::remove_all(saved);
  }
}

// An unset shell variable passes an empty string, which must not be treated as a missing flag.
TEST(Usage, EmptyStringsAreRefused) {
  for (const char* flag : {"--save", "--load", "--resume", "--log", "--plot", "--tensorboard", "--mesh", "--tokenizer",
                           "--trace", "--memory-plot", "--data"}) {
    expect_rejected(Kind::dense, {"--steps", "1", flag, ""},
                    std::string(flag) + ": expected a value, got an empty string");
  }
  expect_rejected(Kind::experts, {"--steps", "1", "--load-plot", ""},
                  "--load-plot: expected a value, got an empty string");
}

TEST(Usage, NaNIsRefused) {
  for (const auto& [flag, kind] : std::vector<std::pair<std::string, std::string>>{
           {"--lr", "positive number"}, {"--clip", "number of at least 0"}, {"--dropout", "number"}}) {
    expect_rejected(Kind::dense, {"--steps", "1", flag, "nan"}, flag + ": expected a " + kind + ", got nan");
  }
  expect_rejected(Kind::experts, {"--steps", "1", "--jitter", "-NaN"}, "--jitter: expected a number, got -NaN");
}

// Only decimal numbers are accepted, so that all parsers read the same value (0x2 is 2 or 0).
TEST(Usage, ReshardAfterForwardMustBeDecimal) {
  for (const char* text : {"0x2", "0b10", "2.0", "-1", "0", "", "yes", "99999999999"}) {
    expect_rejected(Kind::dense, {"--mesh", "shard=2", "--reshard-after-forward", text},
                    "--reshard-after-forward: expected true");
  }
  const Words two = {"--hidden", "16", "--layers", "1", "--steps", "1", "--mesh", "shard=2", "--reshard-after-forward"};
  for (const char* text : {"1", "2", "02", "true", "false"}) {
    Words words = two;
    words.emplace_back(text);
    EXPECT_EQ(run(Kind::dense, words).status, 0) << text;
  }
}

TEST(Usage, NegativeWidthsAndCapacitiesAreRefused) {
  for (const Words& words : std::vector<Words>{{"--ffn", "-3"}, {"--ffn", "0"}, {"--shared", "-3"}}) {
    expect_rejected(Kind::experts, words, words[0]);
  }
  expect_rejected(Kind::experts, {"--dispatcher", "capacity", "--capacity", "-1"}, "--capacity");
}

TEST(Usage, EveryBackendCanBeRequired) {
  const Words small = {"--hidden", "16", "--layers", "1", "--steps", "1", "--backend"};
  for (const char* backend : {"local", "socket"}) {
    Words words = small;
    words.emplace_back(backend);
    EXPECT_EQ(run(Kind::dense, words).status, 0) << backend;
  }
}

TEST(Usage, ErrorsAreOneLineWithTheProgramName) {
  struct Mistake {
    Kind program;
    Words words;
    const char* message;
  };
  const std::vector<Mistake> mistakes = {
      {Kind::dense, {"--ep", "2"}, "train: unknown arguments: --ep 2"},
      {Kind::experts, {"--ranks", "2", "--ep", "3"}, "moe: --ep 3 must divide both the ranks (2) and the experts (8)"},
      {Kind::dense, {"--shampoo-eps", "1"}, "train: --shampoo-eps needs --optimizer shampoo"},
      {Kind::dense,
       {"--optimizer", "shampoo", "--shampoo-grafting", "none", "--shampoo-graft-eps", "1"},
       "train: --shampoo-graft-eps needs --shampoo-grafting adam"},
      {Kind::dense,
       {"--mesh", "pp=2", "--grad-accum", "2", "--microbatches", "3"},
       "train: --microbatches: expected at most the number of sequences in a part of --grad-accum"},
      {Kind::dense, {"--accumulate", "unsharded"}, "train: --accumulate unsharded needs --grad-accum"},
      {Kind::dense, {"--tokenizer", "/nowhere"}, "train: --tokenizer: /nowhere: no such file or folder"},
      {Kind::experts, {"--etp", "3"}, "moe: --etp: expected 1 or the size of tp (1), got 3"},
      {Kind::experts, {"--top-k", "9"}, "moe: --top-k: expected at most 8 (--experts), got 9"},
      {Kind::experts, {"--dispatcher", "equal"}, "moe: --dispatcher equal needs --balance forced"},
      {Kind::experts, {"--groups", "3"}, "moe: --groups 3 --top-groups 1: no 2 choices of 8 experts"},
      {Kind::experts, {"--router", "experts", "--balance", "aux"}, "moe: --router experts needs --balance none"},
      {Kind::experts, {"--router", "experts", "--dispatcher", "capacity"}, "moe: --router experts needs --dispatcher"},
      {Kind::experts, {"--block", "16"}, "moe: --block needs --expert-backend grouped"},
      {Kind::experts,
       {"--expert-backend", "grouped", "--dtype", "float64"},
       "moe: --expert-backend grouped does not support --dtype float64"},
      {Kind::experts, {"--capacity", "2"}, "moe: --capacity needs --dispatcher capacity"},
      {Kind::dense, {"--keep", "2"}, "train: --keep needs --save"},
      {Kind::dense, {"--resume"}, "train: --resume needs --save, or the name of a folder"},
      {Kind::dense, {"--resume", "a", "--load", "b"}, "train: expected --resume or --load, got both"},
      {Kind::dense, {"--kv-heads", "3"}, "train: --kv-heads: expected a divisor of the 4 heads, got 3"},
      {Kind::dense, {"--predict-tokens", "9"}, "train: --predict-tokens: expected at most 8 (--seq), got 9"},
      {Kind::dense, {"--rope", "--hidden", "12"}, "train: --rope needs heads of an even size, got 3"},
      {Kind::dense, {"--sequence-placement", "zigzag"}, "train: --sequence-placement needs a --mesh with cp"},
      {Kind::dense, {"--mesh", "cp=x"}, "train: --mesh: expected NAME=SIZE with a size of at least 1, got 'cp=x'"},
      {Kind::experts, {"--memory", "--parallel", "plain"}, "moe: --memory needs --parallel fsdp"},
      {Kind::dense, {"--memory-limit", "1"}, "train: --memory-limit needs --dry-run"},
      {Kind::dense,
       {"--dry-run", "--dry-run-plot", "a.svg"},
       "train: --dry-run-trace and --dry-run-plot need --hardware"},
      {Kind::dense, {"--hardware", "a.json"}, "train: --hardware needs --dry-run"},
      {Kind::dense, {"--mesh", "shard=2", "--reshard-after-forward", "3"}, "train: --reshard-after-forward 3 does not"},
      {Kind::dense,
       {"--parallel", "plain", "--reshard-after-forward", "false"},
       "train: --reshard-after-forward needs"},
  };
  for (const auto& m : mistakes) {
    const auto result = run(m.program, m.words);
    EXPECT_EQ(result.status, 2);
    EXPECT_EQ(result.error.rfind(m.message, 0), 0U) << result.error;
    EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1) << result.error;
  }
}

}  // namespace
