// What `plan search --out` writes for a model, `llm train --plan` runs: its peak is what the plan says, and its losses
// are those of one rank.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "dtensor/checkpoint.h"
#include "dtensor/dry_run.h"
#include "dtensor/launch.h"
#include "llm/commands/train.h"
#include "llm/model.h"
#include "plan/any_hardware.h"
#include "plan/program.h"
#include "program_data.h"
#include "support/captured.h"
#include "support/draws.h"
#include "support/folder.h"
#include "train/layouts/plan_file.h"

namespace plan {
namespace {

using namespace dtensor;
using dtensor::test::one_of;
using nlohmann::json;
using Words = std::vector<std::string>;

json read(const std::string& file) {
  std::ifstream in(file);
  return json::parse(in);
}

// A preset's config.json with small sizes, `tiny` for products in float8, which are slow on CPUs.
json shrunk(const std::string& preset, bool tiny) {
  auto j = read(program_data("plan/presets/" + preset) + "/config.json");
  const json small = {{"vocab_size", 512},
                      {"hidden_size", tiny ? 32 : 64},
                      {"num_hidden_layers", tiny ? 2 : one_of({2, 5, 6})},
                      {"intermediate_size", tiny ? 64 : 192},
                      {"moe_intermediate_size", tiny ? 32 : 64},
                      {"num_attention_heads", 8},
                      {"num_key_value_heads", j.contains("kv_lora_rank") ? 8 : 4},
                      {"head_dim", 8},
                      {"q_lora_rank", 16},
                      {"kv_lora_rank", 8},
                      {"qk_rope_head_dim", 8},
                      {"qk_nope_head_dim", 8},
                      {"v_head_dim", 8},
                      {"n_routed_experts", 8},
                      {"num_local_experts", 8},
                      {"num_experts", 8},
                      {"num_experts_per_tok", 2},
                      {"n_group", 1},
                      {"topk_group", 1},
                      {"first_k_dense_replace", 0}};
  for (const auto& [name, value] : small.items()) {
    if (j.contains(name)) j[name] = value;
  }
  return j;
}

llm::Options parsed(const Words& words) {
  std::vector<const char*> argv;
  for (const auto& word : words) argv.push_back(word.c_str());
  std::optional<int> exit_status;
  auto options = llm::parse_args(static_cast<int>(argv.size()), const_cast<char**>(argv.data()), exit_status);
  RC_ASSERT(!exit_status);
  return options;
}

std::vector<double> losses_in(const std::string& log) {
  std::vector<double> losses;
  std::ifstream in(log);
  for (std::string line; std::getline(in, line);) losses.push_back(json::parse(line).at("loss"));
  return losses;
}

struct Run {
  std::vector<double> losses;
  std::int64_t peak_bytes = 0;  // of the rank that needs most, in a step after the first one
};

// Writes a log, and the trained model to `folder`/model.
Run train(const llm::Options& options, int ranks, const std::string& folder) {
  const std::string log = folder + "/log.jsonl";
  auto o = options;
  o.device = "cpu", o.train.log = log, o.train.steps = 3, o.out = folder + "/model";
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(o.train.batch * o.train.seq + 1));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * i % 509);
  const llm::TrainTexts texts{train::Corpus::of(tokens, o.train.seq), {}};
  Run run;
  run_local(ranks, [&](const Communicator& world) {
    const StepRecorder recorder;
    llm::run_train(o, llm::read_family(o.model), texts, world);
    auto peak = at::full({1}, recorder.report(world).peak.bytes, at::kLong);
    world.all_reduce(peak, ReduceOp::max).wait();
    if (world.rank() == 0) run.peak_bytes = peak.item<std::int64_t>();
  });
  run.losses = losses_in(log);
  return run;
}

// Of a model that was written.
dtensor::StateTensors written(const dtensor::test::Folder& folder) {
  dtensor::StateTensors state;
  for (const auto& entry : read_checkpoint_index(folder / "model").entries) {
    state.emplace_back(entry.name, at::empty(entry.sizes, at::TensorOptions(entry.dtype)));
  }
  run_local(1, [&](const Communicator& alone) { load_state(folder / "model", alone, state); });
  return state;
}

void plan_runs() {
  const auto preset = one_of<std::string>({"llama3-8b", "mixtral-8x7b", "qwen3-235b-a22b", "deepseek-v3"});
  const bool float8 = one_of({false, false, false, true});
  const dtensor::test::Folder folder, planned_folder, alone_folder;
  std::ofstream(folder / "config.json") << shrunk(preset, float8).dump();
  auto hardware = any_hardware();
  hardware.asynchronous = false;  // as thread ranks
  std::ofstream(folder / "hardware.json") << hardware.json();
  const std::string limit = one_of<std::string>({"1000", "0.004", "0.002"});
  const std::int64_t sequence = float8 ? 16 : 64;
  const std::string precision = one_of<std::string>({"float32", "bf16"});
  const std::string optimizer = one_of<std::string>({"adamw", "adamw", "muon"});
  const bool may_offload = preset == "llama3-8b" && optimizer == "adamw";
  const std::string offload = may_offload ? one_of<std::string>({"any", "true"}) : "false";
  Words search = {"plan",           "search",
                  "--model",        folder.str(),
                  "--ranks",        "4",
                  "--batch",        "8",
                  "--seq",          std::to_string(sequence),
                  "--hardware",     folder / "hardware.json",
                  "--precision",    precision,
                  "--parameters",   precision == "bf16" ? one_of<std::string>({"float32", "bf16"}) : "float32",
                  "--float8",       float8 ? "true" : "false",
                  "--optimizer",    optimizer,
                  "--offload",      offload,
                  "--max-pp",       "2",
                  "--max-cp",       "2",
                  "--ep",           "1,2,4",
                  "--microbatches", "1,2",
                  "--memory-limit", limit,
                  "--out",          folder / "plan.json"};
  if (optimizer == "muon") {  // whose dry runs of all blocks take long
    const auto mesh = one_of<std::string>({"shard=4", "shard=2,tp=2", "replicate=2,shard=2", "pp=2,shard=2"});
    search.insert(search.end(), {"--mesh", mesh, "--recompute", "full", "--reshard-after-forward", "true"});
  }
  const auto searched = dtensor::test::run_captured(search, run_program);
  if (searched.status == 1) RC_DISCARD("no layout fits");
  RC_ASSERT(searched.status == 0);
  const auto plan = read(folder / "plan.json");
  const Words train_words = {"llm", "train", "--model", folder.str(), "--from-scratch", "--data", "none"};
  auto words = train_words;
  words.insert(words.end(), {"--ranks", "4", "--plan", folder / "plan.json"});
  const auto options = parsed(words);
  RC_ASSERT(options.train.batch == 8 && options.train.seq == sequence);
  const auto planned = train(options, 4, planned_folder.str());
  std::cout << preset << ": " << options.layout->str() << std::endl;

  auto alone = parsed(train_words);
  alone.train.batch = 8, alone.train.seq = sequence;
  alone.train.optimizer = options.train.optimizer, alone.dtype = options.dtype;
  if (options.layout->float8) alone.layout = ParallelLayout{.float8 = true};
  const auto one_rank = train(alone, 1, alone_folder.str());
  const bool rounds = options.layout->bf16 || float8;
  RC_ASSERT(planned.losses.size() == one_rank.losses.size());
  for (std::size_t i = 0; i < planned.losses.size(); ++i) {
    const double apart = std::abs(planned.losses[i] / one_rank.losses[i] - 1);
    RC_ASSERT(apart < (rounds ? 0.02 : 1e-4) ||
              (RC_LOG() << "step " << i << ": " << planned.losses[i] << ", one rank " << one_rank.losses[i], false));
  }
  const auto expected = written(alone_folder), state = written(planned_folder);
  RC_ASSERT(state.size() == expected.size());
  for (std::size_t i = 0; i < state.size(); ++i) {
    RC_ASSERT(state[i].first == expected[i].first);
    RC_ASSERT(at::allclose(state[i].second, expected[i].second, 1e-3, rounds ? 1e-2 : 1e-3));
  }
  // Tokens go where their scores send them, not to the experts in turn; when messages of a pipeline arrive, no plan
  // knows (docs/design/dry_run.md). On CPUs ATen's products of bfloat16, as those of Muon, allocate their result in
  // float32 inside.
  const auto said = plan.at("peak_bytes").get<double>(), measured = static_cast<double>(planned.peak_bytes);
  const double share = preset == "llama3-8b" && optimizer == "adamw" ? 0.01 : 0.1;
  RC_ASSERT((std::abs(measured - said) < std::max(share * said, 4.0 * 4096)) ||
            (RC_LOG() << "peak: " << measured << " bytes, the plan says " << said, false));
}

TEST(LlmPlan, RunsAsPlanned) { dtensor::test::check_property("llm train runs a plan", plan_runs, 2); }

// A plan file that does not fit, with the model and the sizes of a run.
struct Misfit {
  std::string mesh;  // its sizes other than 1
  const char* more;  // further fields of the file
  int ranks;
  std::int64_t batch, sequence;
  const char* error;
};

std::string error_of(const Misfit& plan, const nn::DecoderConfig& model) {
  const dtensor::test::Folder folder;
  json mesh = {{"pp", 1}, {"replicate", 1}, {"shard", 1}, {"cp", 1}, {"tp", 1}, {"ep", 1}};
  mesh.update(json::parse(plan.mesh));
  std::ofstream(folder / "plan.json") << fmt::format(
      R"({{"mesh": {}, "microbatches": 2, "schedule": "1f1b", "recompute": "none", "bf16": false{}}})", mesh.dump(),
      plan.more);
  try {
    const auto layout = train::read_plan(folder / "plan.json").layout;
    llm::check_layout(layout, model, plan.batch, plan.sequence, plan.ranks);
  } catch (const train::UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(LlmPlan, UsageErrorsSayWhatToDo) {
  const nn::DecoderConfig dense{.vocabulary = 64, .hidden = 32, .layers = 2, .ffn = 64, .heads = 8, .kv_heads = 2};
  auto sparse = dense;
  sparse.experts.emplace().router.experts = 6;
  const std::string sharded = R"({"shard": 2, "tp": 2})";
  for (const auto& plan : std::vector<Misfit>{
           {sharded, "", 4, 8, 64, ""},
           {sharded, "", 2, 8, 64,
            "the layout shard=2,tp=2 microbatches=2 has 4 ranks, but the program runs on 2; --ranks sets it"},
           {sharded, "", 4, 6, 64, "expected --batch to be a multiple of replicate x shard x microbatches, 4, got 6"},
           {sharded, "", 4, 8, 65, "expected --seq to be a multiple of cp x tp, 2, got 65"},
           {sharded, R"(, "accumulate": "some")", 4, 8, 64,
            R"(expected "accumulate" to be "sharded" or "unsharded", got "some")"},
           {R"({"tp": 4})", "", 4, 8, 64,
            "the layout tp=4 microbatches=2 has tp=4, which does not divide the 2 heads of keys"},
           {R"({"shard": 2, "ep": 2})", "", 2, 8, 64,
            "the layout shard=2,ep=2 microbatches=2 has ep=2, but the model has no experts"},
           {R"({"shard": 2})", R"(, "offload": true)", 2, 8, 64, ""},
           {R"({"pp": 2})", R"(, "offload": true)", 2, 8, 64,
            R"("offload" needs pp=1, "accumulate": "sharded", "optimizer": "adamw" and a model without experts, got )"
            "the layout pp=2 microbatches=2 1f1b offload"},
           {R"({"shard": 2})", R"(, "offload": true, "optimizer": "muon")", 2, 8, 64,
            R"("offload" needs pp=1, "accumulate": "sharded", "optimizer": "adamw" and a model without experts, got )"
            "the layout shard=2 microbatches=2 offload optimizer=muon"}}) {
    EXPECT_EQ(error_of(plan, dense), *plan.error == '\0' ? "" : std::string("--plan: ") + plan.error);
  }
  for (const auto& plan : std::vector<Misfit>{
           {R"({"shard": 4, "ep": 2})", "", 4, 8, 64, ""},
           {R"({"shard": 4})", R"(, "offload": true)", 4, 8, 64,
            R"("offload" needs pp=1, "accumulate": "sharded", "optimizer": "adamw" and a model without )"
            "experts, got the layout shard=4 microbatches=2 offload and 6 experts"},
           {R"({"shard": 4, "ep": 4})", "", 4, 8, 64,
            "the layout shard=4,ep=4 microbatches=2 has ep=4, which does not divide the 6 experts"},
           {R"({"pp": 2, "shard": 4, "ep": 3})", "", 8, 8, 64,
            "the layout pp=2,shard=4,ep=3 microbatches=2 1f1b has ep=3, which does not divide the 4 "
            "ranks of a stage"}}) {
    EXPECT_EQ(error_of(plan, sparse), *plan.error == '\0' ? "" : std::string("--plan: ") + plan.error);
  }
}

}  // namespace
}  // namespace plan
