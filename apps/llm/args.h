// The command line of llm: the command, the model and mesh, and the options of each command.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/estimate.h"
#include "train/run_flags.h"
#include "usage_error.h"

namespace llm {

enum class Command : std::uint8_t { logits, generate, train, exports };

// Sizes of the mesh's axes. Dense parameters are on (dp ep) x shard x tp; experts are split over ep.
struct MeshSizes {
  std::int64_t dp = 1, shard = 1, ep = 1, tp = 1;
  std::int64_t ranks() const { return dp * shard * ep * tp; }
  std::string str() const;
};
// `dp=2,shard=2`: any of the names, once each; the default size is 1.
MeshSizes parse_mesh(const std::string& text);

struct SampleOptions {
  std::int64_t max_new_tokens = 64;
  double temperature = 0;  // 0: the most likely token.
  double top_p = 1;        // Draws from the most likely tokens whose probabilities sum up to this.
  std::uint64_t seed = 0;
  std::string split_cache = {};  // Axis that splits the KV cache; empty: none.
  bool print_tokens = false, ignore_end = false;
};

struct TrainOptions : train::RunFlags {
  TrainOptions() { batch = 4, seq = 64; }

  std::vector<std::string> data;  // text files, folders of them, JSONL files
  std::string field = "text";     // Field of each line of a JSONL file.
  std::vector<std::string> eval;  // Like `data`, for evaluation.
  std::int64_t eval_every = 0;    // Steps; 0: at the end.
  std::int64_t warmup = 0;
  std::string schedule = "constant";
  double lr = 1e-4, weight_decay = 0.01, clip = 1;
  std::int64_t lora_rank = 0;
  double lora_alpha = 0;                  // 0: twice the rank.
  std::vector<std::string> lora_targets;  // Empty: the projections of queries and values.
  std::string plan;                       // A file; its layout is Options::layout.
  std::string optimizer = "adamw";        // Of the plan.
  bool from_scratch = false;              // Initializes the parameters instead of reading them.
  bool dry_run = false;
  std::string dry_run_json;
  double memory_limit = 0;  // GB; 0: none.
};

struct Options {
  Command command = Command::logits;
  std::string model;  // A folder.
  std::optional<MeshSizes> mesh;
  std::optional<dtensor::ParallelLayout> layout = {};  // Of --plan, instead of a mesh.
  at::ScalarType dtype = at::kFloat;
  std::optional<at::ScalarType> asked_dtype = {};  // If --dtype was given.
  std::vector<std::int64_t> tokens;
  std::string prompt, out;
  bool bit_identical = false;  // The same bits on every mesh.
  std::string device;          // cpu or cuda; empty: the default of the backend (device_flag.h).
  SampleOptions sample;
  TrainOptions train;
};

// Throws UsageError. Sets `exit_status` if the program should exit at once (--help).
Options parse_args(int argc, char** argv, std::optional<int>& exit_status);

}  // namespace llm
