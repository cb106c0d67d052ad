// The command line: what may be asked for, its defaults, and how a mistake is reported.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace train {

// The user asked for something that cannot be: one line, exit status 2.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct MeshShape {
  std::int64_t replicate = 1, shard = 1, tp = 1;
  std::int64_t size() const { return replicate * shard * tp; }
  std::string str() const;  // replicate=1, shard=2, tp=2
};

enum class Dtype : std::uint8_t { float32, float64, bfloat16 };
const char* to_string(Dtype dtype);

struct Options {
  std::optional<MeshShape> mesh;  // default: every rank on `shard`
  std::optional<int> ranks;
  std::string backend, model = "tiny", optimizer = "adamw";
  Dtype dtype = Dtype::float32;
  std::string parallel = "fsdp";  // or plain: placements alone, every parameter gathered where it is used
  std::string reshard = "true";   // after forward: true, false or a number of ranks
  bool loss_parallel = false, sequence_parallel = false, checkpoint_activations = false;
  bool compare = false, bf16 = false, memory = false;
  std::int64_t grad_accum = 1;
  double dropout = 0, lr = 1e-3, clip = 1;
  std::int64_t steps = 100, warmup = 10;
  std::int64_t batch = 0, seq = 0, hidden = 0;  // 0: the model's default
  std::uint64_t seed = 0;
  std::vector<std::string> data;
  std::string log, plot, trace;
  std::string save, load;       // folders of checkpoints
  std::int64_t save_every = 0;  // 0: only at the end
};

// `replicate=1,shard=2,tp=2`: any of the names, once each; a missing one is 1.
MeshShape parse_mesh(const std::string& text);

// Throws UsageError. `exit_status` is set where the program should end at once (--help). `more` adds a program's own
// flags.
Options parse_args(int argc, char** argv, std::optional<int>& exit_status,
                   const std::function<void(CLI::App&)>& more = {});

// The mesh to train on with this many ranks. Throws UsageError where it does not fit.
MeshShape fit_mesh(const Options& options, int ranks);

// Prints `train: message` on stderr, from the first process of a launched program only. Returns 2.
int report_usage_error(const std::string& message);

}  // namespace train
