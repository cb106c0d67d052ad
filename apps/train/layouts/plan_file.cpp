#include "train/layouts/plan_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "input_file.h"
#include "train/output/output.h"
#include "train/run_flags.h"

namespace train {
namespace {

using dtensor::ParallelLayout;
using dtensor::Recomputation;
using Json = nlohmann::ordered_json;

// One of the words of a field, which is required if `fallback` is empty. Throws UsageError for others.
std::string word_of(const Json& json, const char* field, const std::string& fallback,
                    const std::vector<std::string>& words) {
  const auto word = fallback.empty() ? json.at(field).get<std::string>() : json.value(field, fallback);
  if (std::find(words.begin(), words.end(), word) != words.end()) return word;
  throw UsageError(fmt::format("--plan: expected \"{}\" to be \"{}\" or \"{}\", got \"{}\"", field,
                               fmt::join(words.begin(), words.end() - 1, "\", \""), words.back(), word));
}

Recomputation recomputation_of(const std::string& word) {
  for (const auto kind : {Recomputation::none, Recomputation::selective}) {
    if (word == to_string(kind)) return kind;
  }
  return Recomputation::full;
}

void check_fields(const Json& json, const std::string& path) {
  static const std::vector<std::string> known = {
      "model",        "ranks",     "batch",      "seq",        "mesh",
      "microbatches", "schedule",  "chunks",     "accumulate", "reshard_after_forward",
      "offload",      "recompute", "bf16",       "float8",     "parameters",
      "optimizer",    "seconds",   "peak_bytes", "host_bytes", "explanation"};
  for (const auto& [field, value] : json.items()) {
    if (std::find(known.begin(), known.end(), field) != known.end()) continue;
    throw UsageError(fmt::format("--plan: {} is not a plan: expected the fields {}; got \"{}\"", path,
                                 fmt::join(known, ", "), field));
  }
}

ParallelLayout mesh_of(const Json& mesh) {
  ParallelLayout l{.pp = mesh.at("pp"),
                   .replicate = mesh.at("replicate"),
                   .shard = mesh.at("shard"),
                   .cp = mesh.at("cp"),
                   .tp = mesh.at("tp"),
                   .ep = mesh.value("ep", 1)};
  for (const auto& [axis, size] : mesh.items()) {
    if (size.get<std::int64_t>() >= 1) continue;
    throw UsageError(fmt::format("--plan: expected sizes of at least 1 in \"mesh\", got {} of {}", size.dump(), axis));
  }
  return l;
}

ParallelLayout layout_of(const Json& json) {
  auto l = mesh_of(json.at("mesh"));
  l.microbatches = json.at("microbatches");
  if (l.microbatches < 1 || l.microbatches > 1 << 16) {
    throw UsageError(fmt::format("--plan: expected 1 to {} microbatches, got {}", 1 << 16, l.microbatches));
  }
  l.schedule = json.at("schedule");
  l.chunks = json.value("chunks", l.chunks);
  l.reshard = json.value("reshard_after_forward", l.reshard);
  l.accumulate_sharded = word_of(json, "accumulate", "sharded", {"sharded", "unsharded"}) == "sharded";
  l.offload = json.value("offload", false);
  l.recompute = recomputation_of(word_of(json, "recompute", "", {"none", "selective", "full"}));
  l.bf16 = json.at("bf16");
  l.float8 = json.value("float8", false);
  l.bf16_parameters = word_of(json, "parameters", "float32", {"float32", "bfloat16"}) == "bfloat16";
  l.optimizer = word_of(json, "optimizer", "adamw", {"adamw", "muon"});
  if (l.bf16_parameters && !l.bf16) throw UsageError("--plan: \"parameters\" of \"bfloat16\" need \"bf16\": true");
  return l;
}

}  // namespace

Plan read_plan(const std::string& path) {
  auto file = input_file::open<UsageError>("--plan, as `plan search --out` or --plan-out writes it", path);
  try {
    const auto json = Json::parse(file);
    const auto layout = layout_of(json);
    check_fields(json, path);
    return {layout, json.value("batch", std::int64_t{0}), json.value("seq", std::int64_t{0})};
  } catch (const nlohmann::json::exception& error) {
    throw UsageError("--plan: " + path + " is not a plan: " + error.what());
  }
}

void write_plan(const std::string& path, const Plan& plan, const dtensor::LayoutCost& cost, const std::string& model) {
  const auto& l = plan.layout;
  Json json = {{"ranks", l.ranks()}};
  if (!model.empty()) json["model"] = model;
  if (plan.batch > 0) json["batch"] = plan.batch;
  if (plan.seq > 0) json["seq"] = plan.seq;
  json.update(
      {{"mesh",
        {{"pp", l.pp}, {"replicate", l.replicate}, {"shard", l.shard}, {"cp", l.cp}, {"tp", l.tp}, {"ep", l.ep}}},
       {"microbatches", l.microbatches},
       {"schedule", l.schedule},
       {"chunks", l.chunks},
       {"reshard_after_forward", l.reshard},
       {"accumulate", l.accumulate_sharded ? "sharded" : "unsharded"},
       {"offload", l.offload},
       {"recompute", to_string(l.recompute)},
       {"bf16", l.bf16},
       {"float8", l.float8},
       {"parameters", l.bf16_parameters ? "bfloat16" : "float32"},
       {"optimizer", l.optimizer},
       {"seconds", cost.seconds},
       {"peak_bytes", cost.peak_bytes},
       {"host_bytes", cost.host_bytes},
       {"explanation", cost.explanation}});
  write_file(path, json.dump(1) + "\n");
}

}  // namespace train
