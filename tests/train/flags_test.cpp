// Every flag of train and moe has an effect: each row names a flag, the other arguments of the run, and the expected
// change. A flag without a row fails, so no flag can be parsed and ignored.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "support/data.h"
#include "support/folder.h"
#include "train/program.h"
#include "train/run.h"

namespace {

using train::Kind;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

struct Run {
  int status = 0;
  std::string out, error;
  std::vector<nlohmann::json> log;  // One line for each step.

  double number(const std::string& key, std::size_t step) const { return log.at(step).at(key).get<double>(); }
  double bytes(const std::string& axis) const { return log.back().at("bytes_received").value(axis, 0.0); }
};

// Of all tests of this file.
const fs::path& folder() {
  static const dtensor::test::Folder temporary;
  return temporary.path();
}

// Runs the program on thread ranks.
Run run(Kind program, const Words& words, bool logs = true) {
  Words all = {train::to_string(program)};
  all.insert(all.end(), words.begin(), words.end());
  const auto log = folder() / "log.jsonl";
  fs::remove(log);
  if (logs) all.insert(all.end(), {"--log", log.string()});
  std::vector<char*> argv;
  for (auto& word : all) argv.push_back(word.data());
  argv.push_back(nullptr);
  Run result;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  result.status = train::run_program(program, static_cast<int>(all.size()), argv.data());
  result.out = testing::internal::GetCapturedStdout();
  result.error = testing::internal::GetCapturedStderr();
  std::ifstream in(log);
  for (std::string line; std::getline(in, line);) result.log.push_back(nlohmann::json::parse(line));
  return result;
}

using Changes = std::function<bool(const Run& with, const Run& without)>;

Changes value(const char* key, std::size_t step) {
  return [=](const Run& a, const Run& b) { return a.number(key, step) != b.number(key, step); };
}
Changes less(const char* axis) {
  return [=](const Run& a, const Run& b) { return a.bytes(axis) < b.bytes(axis); };
}
Changes more(const char* axis) {
  return [=](const Run& a, const Run& b) { return a.bytes(axis) > b.bytes(axis); };
}
Changes other(const char* axis) {
  return [=](const Run& a, const Run& b) { return a.bytes(axis) != b.bytes(axis); };
}
Changes says(const char* text) {
  return [=](const Run& a, const Run& b) {
    return (a.out + a.error).find(text) != std::string::npos && (b.out + b.error).find(text) == std::string::npos;
  };
}
Changes writes(const char* name, const char* text = "") {
  return [=](const Run&, const Run&) {
    std::ifstream in(folder() / name);
    const std::string content((std::istreambuf_iterator<char>(in)), {});
    return !content.empty() && content.find(text) != std::string::npos;
  };
}

struct Row {
  std::string flag;
  Words words;  // The value of the flag.
  Changes changes;
  Words common = {};  // Arguments of both runs.
};

const std::string kHardware = dtensor::test::source_path("apps/plan/hardware/h100.json");
const Words kDryRunWithTimes = {"--dry-run", "--hardware", kHardware};
const Words kOnShard = {"--mesh", "shard=2"}, kOnTp = {"--mesh", "tp=2"};
const Words kOnCp = {"--mesh", "cp=2", "--cp-strategy", "gather"};
const Words kOnStages = {"--mesh", "pp=2", "--layers", "4"};

std::string in_folder(const char* name) { return (folder() / name).string(); }

std::vector<Row> rows_of_both() {
  const auto loss_at_once = value("loss", 0), loss_later = value("loss", 2);
  const Words shampoo = {"--optimizer", "shampoo", "--steps", "8", "--shampoo-start", "4", "--shampoo-frequency", "4"};
  return {
      {"--mesh", {"tp=2"}, more("tp"), {"--ranks", "2"}},
      {"--mesh", {"cp=2"}, more("cp"), {"--ranks", "2"}},
      {"--rope", {}, loss_at_once},
      {"--sequence-placement",
       {"zigzag"},
       other("cp"),
       {"--mesh", "cp=2", "--seq", "7"}},  // Parts of 3 and 4, not 4 and 3.
      {"--kv-heads", {"2"}, loss_at_once},
      {"--kv-heads", {"2"}, less("cp"), kOnCp},
      {"--cp-strategy", {"ulysses"}, other("cp"), kOnCp},
      {"--cp-strategy", {"gather"}, other("cp"), {"--mesh", "cp=2", "--cp-strategy", "ring"}},
      {"--predict-tokens", {"3"}, loss_at_once},
      {"--documents", {}, loss_at_once},
      {"--ranks", {"2"}, says("2 thread ranks")},
      {"--backend", {"nccl"}, says("nccl")},
      {"--device", {"cuda"}, says("--device cuda: no GPU")},  // With a GPU: scripts/gpu_check.sh.
      {"--peak-tflops", {"0.001"}, says("of 0.001 (MFU of PaLM)")},
      {"--model", {"gpt-153m"}, loss_at_once, {"--hidden", "16", "--layers", "1"}},
      {"--hidden", {"32"}, loss_at_once},
      {"--layers", {"2"}, loss_at_once},
      {"--loss-parallel", {}, less("tp"), kOnTp},
      {"--fused-loss", {}, less("tp"), kOnTp},
      {"--parallel", {"plain"}, more("shard"), kOnShard},
      {"--reshard-after-forward", {"false"}, less("shard"), {"--mesh", "shard=2", "--layers", "2"}},
      {"--reshard-after-forward", {"2"}, less("shard"), {"--mesh", "shard=4", "--layers", "2"}},
      {"--mixed-precision", {"bf16"}, less("shard"), kOnShard},
      {"--sequence-parallel", {}, other("tp"), kOnTp},
      {"--checkpoint-activations", {}, more("tp"), kOnTp},
      {"--float8", {}, loss_at_once, {"--hidden", "16"}},
      {"--dropout", {"0.2"}, loss_at_once},
      {"--dtype", {"float64"}, more("shard"), kOnShard},
      {"--bit-identical", {}, says("has no bit-identical form"), {"--fused-loss"}},  // Another loss has one.
      {"--compare", {}, says("largest relative difference of the loss from one device")},
      {"--steps", {"4"}, [](const Run& a, const Run&) { return a.log.size() == 4; }},
      {"--batch", {"6"}, value("tokens", 0)},
      {"--grad-accum", {"2"}, more("shard"), kOnShard},
      {"--accumulate", {"unsharded"}, less("shard"), {"--mesh", "shard=2", "--grad-accum", "2"}},
      {"--seq", {"6"}, value("tokens", 0)},
      {"--seed", {"3"}, loss_at_once},
      {"--optimizer", {"sgd"}, loss_later},
      {"--optimizer", {"muon"}, loss_later},
      {"--optimizer", {"shampoo"}, value("loss", 11), {"--steps", "12"}},
      {"--shampoo-frequency", {"2"}, value("loss", 7), shampoo},
      {"--shampoo-start", {"2"}, value("loss", 4), shampoo},
      {"--shampoo-eps", {"1e-2"}, value("loss", 7), shampoo},
      {"--shampoo-graft-eps", {"1e-2"}, loss_later, shampoo},
      {"--shampoo-grafting", {"none"}, loss_later, shampoo},
      {"--lr", {"0.5"}, value("lr", 0)},
      {"--warmup", {"7"}, value("lr", 0)},
      {"--clip", {"0.001"}, loss_later, {"--optimizer", "sgd"}},
      {"--data", {dtensor::test::data_path("oracles/optim.json")}, loss_at_once},
      {"--tokenizer", {"shipped"}, loss_at_once},
      {"--tokenizer", {"shipped"}, loss_at_once, {"--documents"}},
      {"--documents", {}, loss_at_once, {"--tokenizer", "shipped"}},
      {"--save", {in_folder("saved")}, [](const Run&, const Run&) { return fs::exists(folder() / "saved"); }},
      {"--load",
       {in_folder("saved")},
       [](const Run& a, const Run&) { return a.number("step", 0) == 3; },
       {"--steps", "4"}},
      {"--keep",
       {"1", "--save", in_folder("kept")},
       [](const Run&, const Run&) {
         const bool kept = fs::exists(folder() / "kept/step-00000003");
         fs::remove_all(folder() / "kept");
         return kept;
       }},
      {"--resume",
       {in_folder("saved")},
       [](const Run& a, const Run&) { return a.log.size() == 2 && a.log.front().at("step") == 3; },
       {"--steps", "5"}},
      {"--save-every",
       {"1"},
       says("--save-every needs --save")},  // FlagsOfPrograms.SavesDuringTraining tests the rest.
      {"--log", {in_folder("other.jsonl")}, writes("other.jsonl", "loss")},
      {"--plot", {in_folder("loss.svg")}, writes("loss.svg", "</svg>")},
      {"--tensorboard",
       {in_folder("board")},
       [](const Run&, const Run&) { return fs::exists(folder() / "board") && !fs::is_empty(folder() / "board"); }},
      {"--memory", {}, says("memory: parameters"), kOnShard},
      {"--memory-plot", {in_folder("memory.svg")}, writes("memory.svg", "gathered units"), kOnShard},
      {"--schedule", {"interleaved"}, more("pp"), kOnStages},
      {"--microbatches", {"2"}, less("pp"), kOnStages},
      {"--chunks", {"3"}, more("pp"), {"--mesh", "pp=2", "--layers", "4", "--schedule", "interleaved"}},
      {"--schedule-plot", {in_folder("steps.svg")}, writes("steps.svg", "</svg>"), kOnStages},
      {"--grad-accum", {"2"}, more("pp"), {"--mesh", "pp=2", "--layers", "4", "--microbatches", "2"}},
      {"--memory", {}, says("pp 1"), kOnStages},
      {"--memory-plot", {in_folder("staged.svg")}, writes("staged.svg", "gathered units"), kOnStages},
      {"--dry-run", {}, says("dry run: the second step of rank 0 of 2"), kOnShard},
      {"--dry-run-json", {in_folder("dry_run.json")}, writes("dry_run.json", "peak_bytes"), {"--dry-run"}},
      {"--memory-limit", {"0.00001"}, says("does NOT fit"), {"--dry-run"}},
      {"--hardware", {kHardware}, says("estimated step"), {"--dry-run"}},
      {"--dry-run-trace", {in_folder("step.json")}, writes("step.json", "traceEvents"), kDryRunWithTimes},
      {"--dry-run-plot", {in_folder("step.svg")}, writes("step.svg", "</svg>"), kDryRunWithTimes},
      {"--plan-search", {kHardware}, says("layouts fit")},
      {"--plan-out", {in_folder("plan.json")}, writes("plan.json", "mesh"), {"--plan-search", kHardware}},
      {"--plan", {dtensor::test::source_path("tests/data/plan_tp2.json")}, more("tp"), {"--ranks", "2"}},
      {"--trace", {in_folder("trace.json")}, writes("trace.json", "traceEvents")},
      {"--trace", {in_folder("actions.json")}, writes("actions.json", "1RECV_F0"), kOnStages},
  };
}

// moe has no bit-identical form.
std::vector<Row> rows_of_train() {
  const auto with_hashes = [](const char* name) { return Words{"--bit-identical", "--hashes", in_folder(name)}; };
  return {
      {"--hashes", {in_folder("hashes.jsonl")}, writes("hashes.jsonl", "gradient of layers.0"), {"--bit-identical"}},
      {"--operator-hashes", {}, writes("operators.jsonl", "forward, by aten::linear"), with_hashes("operators.jsonl")},
      {"--replay", {"2"}, says("steps 1 to 2 have the recorded bits"), with_hashes("replayed.jsonl")},
      {"--check-ranks", {"1"}, more("shard"), {"--bit-identical", "--mesh", "shard=2"}},
      {"--wrong-rank", {"report"}, says("--wrong-rank needs --check-ranks")},  // tests/replay has faults.
  };
}

std::vector<Row> rows_of_moe() {
  const auto loss_at_once = value("loss", 0);
  const Changes other_report = [](const Run& a, const Run& b) { return a.out != b.out; };
  return {
      {"--ep", {"1"}, less("ep"), kOnShard},
      {"--etp", {"2"}, says("etp=2"), kOnTp},
      {"--experts", {"4"}, loss_at_once},
      {"--top-k", {"1"}, loss_at_once},
      {"--ffn", {"48"}, loss_at_once},
      {"--shared", {"16"}, loss_at_once},
      {"--dispatcher", {"all-gather"}, more("ep"), kOnShard},
      {"--dispatcher", {"padded"}, more("ep"), kOnShard},
      {"--capacity", {"0.5"}, loss_at_once, {"--dispatcher", "capacity"}},
      {"--balance", {"none"}, loss_at_once},
      {"--balance", {"bias"}, value("loss", 0)},
      {"--balance", {"forced"}, loss_at_once},
      {"--router", {"experts"}, loss_at_once, {"--balance", "none"}},
      {"--groups", {"4"}, loss_at_once},
      {"--top-groups", {"2"}, loss_at_once, {"--groups", "4"}},
      {"--z-loss", {"0.1"}, loss_at_once},
      {"--jitter", {"0.5"}, loss_at_once},
      {"--score-before-experts", {}, loss_at_once},
      {"--expert-backend", {"grouped"}, says("3 passes, 192 rows"), {"--counters"}},
      {"--expert-backend", {"loop"}, says("0 passes, 0 rows"), {"--counters", "--expert-backend", "grouped"}},
      {"--block", {"128"}, says("3 passes, 3456 rows"), {"--counters", "--expert-backend", "grouped"}},
      {"--expert-load", {"4"}, other_report, {"--mesh", "shard=2", "--dry-run"}},
      {"--counters", {}, says("entries counted 3, sorted 3 times")},
      {"--load-plot", {in_folder("load.svg")}, writes("load.svg", "</svg>")},
      {"--load-plot", {in_folder("staged_load.svg")}, writes("staged_load.svg", "layer 3"), kOnStages},
      {"--hashes", {in_folder("hashes.jsonl")}, says("--hashes needs --bit-identical")},
      {"--operator-hashes", {}, says("--operator-hashes needs --hashes")},
      {"--replay", {"2"}, says("--replay needs --hashes")},
      {"--check-ranks", {"1"}, says("--check-ranks needs --bit-identical")},
      {"--wrong-rank", {"report"}, says("--wrong-rank needs --check-ranks")},
  };
}

Words joined(std::initializer_list<Words> parts) {
  Words all;
  for (const auto& part : parts) {
    for (std::size_t i = 0; i < part.size(); ++i) {
      const auto earlier = std::find(all.begin(), all.end(), part[i]);  // The last occurrence of a flag is used.
      if (earlier != all.end() && part[i].rfind("--", 0) == 0 && i + 1 < part.size()) {
        *(earlier + 1) = part[++i];
      } else {
        all.push_back(part[i]);
      }
    }
  }
  return all;
}

Words small() {
  return {"--hidden", "16",
          "--layers", "1",
          "--batch",  "4",
          "--seq",    "8",
          "--steps",  "3",
          "--warmup", "2",
          "--data",   dtensor::test::data_path("oracles/transformer.json")};
}

void expect_each_changes_something(Kind program, const std::vector<Row>& rows) {
  for (const auto& row : rows) {
    const bool logs = row.flag != "--log";
    const auto without = run(program, joined({small(), row.common}));
    const Words flag = joined({Words{row.flag}, row.words});
    const auto with = run(program, joined({small(), row.common, flag}), logs);
    EXPECT_EQ(without.status, 0) << row.flag << ": " << without.error;
    EXPECT_TRUE(row.changes(with, without))
        << train::to_string(program) << " " << row.flag << " changes nothing\n"
        << with.out << with.error << (with.log.empty() ? "" : with.log.back().dump()) << "\n"
        << (without.log.empty() ? "" : without.log.back().dump());
  }
}

TEST(FlagsOfPrograms, EachFlagOfTrainHasAnEffect) {
  expect_each_changes_something(Kind::dense, rows_of_both());
  expect_each_changes_something(Kind::dense, rows_of_train());
}
TEST(FlagsOfPrograms, EachFlagOfMoeHasAnEffect) {
  expect_each_changes_something(Kind::experts, rows_of_both());
  expect_each_changes_something(Kind::experts, rows_of_moe());
}

std::set<std::string> flags_in_help(Kind program) {
  const auto help = run(program, {"--help"}, false).out;
  std::set<std::string> flags;
  const std::regex flag("--[a-z0-9-]+");
  for (std::sregex_iterator it(help.begin(), help.end(), flag); it != std::sregex_iterator(); ++it) {
    flags.insert(it->str());
  }
  flags.erase("--help");
  return flags;
}

TEST(FlagsOfPrograms, EachFlagHasARow) {
  std::set<std::string> rows;
  for (const auto& row : rows_of_both()) rows.insert(row.flag);
  for (const auto& row : rows_of_train()) rows.insert(row.flag);
  EXPECT_EQ(flags_in_help(Kind::dense), rows);
  for (const auto& row : rows_of_moe()) rows.insert(row.flag);
  EXPECT_EQ(flags_in_help(Kind::experts), rows);
}

TEST(FlagsOfPrograms, SavesDuringTraining) {
  const auto path = in_folder("on_the_way");
  train::Options o;
  o.steps = 3, o.batch = 2, o.seq = 4, o.hidden = 16, o.layers = 1, o.save = path, o.save_every = 1;
  std::vector<bool> there;
  dtensor::run_local(1, [&](dtensor::Communicator world) {
    const auto corpus = train::Corpus::read({dtensor::test::data_path("oracles/transformer.json")}, o.seq);
    train::train_on_mesh(world, o, corpus, [&](const train::StepRecord&) { there.push_back(fs::exists(path)); });
  });
  EXPECT_TRUE(!there.at(0) && there.at(2));  // The second save waits for the first.
}

}  // namespace
