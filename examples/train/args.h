// The command line: what may be asked for, its defaults, and how a mistake is reported.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "run_flags.h"

namespace train {

constexpr std::int64_t kEndOfDocument = 256;  // where tokens are bytes: no byte

struct MeshShape {
  std::int64_t replicate = 1, shard = 1, tp = 1, pp = 1, cp = 1;
  std::int64_t size() const { return pp * stage_size(); }
  std::int64_t stage_size() const { return replicate * shard * cp * tp; }
  friend bool operator==(const MeshShape&, const MeshShape&) = default;
  // replicate=1, shard=2, tp=2; with pp=2 before them where there are stages, cp=2 after shard where sequences are
  // split.
  std::string str() const;
};

enum class Dtype : std::uint8_t { float32, float64, bfloat16 };
const char* to_string(Dtype dtype);

// Of --optimizer shampoo (dtensor/optim/shampoo.h).
struct ShampooFlags {
  std::int64_t frequency = 10, start = 10;  // steps between inverse roots, and the first that is preconditioned
  double eps = 1e-6;                        // added to the factors
  std::string grafting = "adam";            // whose length a step has: adam, none
};

// What the program moe is told about its experts.
struct ExpertFlags {
  std::int64_t ep = 0, etp = 1;                              // ep 0: as many as divide both the ranks and the experts
  std::int64_t experts = 8, top_k = 2, ffn = 0, shared = 0;  // ffn 0: the hidden size
  std::string dispatcher = "all-to-all", balance = "aux";
  std::string router = "tokens", backend = "automatic";  // who chooses; how experts are multiplied
  double capacity = 1.25, z_loss = 0, jitter = 0;
  std::int64_t groups = 1, top_groups = 1, block = 0;
  bool score_before = false, counters = false;
  bool show_load = true;  // counts tokens over ranks each step
  std::string load_plot = {};
};

// How the ranks of the dense mesh hold the experts.
struct SparseShape {
  std::int64_t edp = 1, ep = 1, etp = 1;
};

struct Options : RunFlags {
  std::optional<MeshShape> mesh = {};  // default: every rank on `shard`
  std::optional<int> ranks = {};
  std::string backend = {}, model = "tiny", optimizer = "adamw";
  std::string device = {};  // cpu or cuda; empty: as resolve_device says
  Dtype dtype = Dtype::float32;
  std::string parallel = "fsdp";  // or plain: placements alone, every parameter gathered where it is used
  std::string reshard = "true";   // after forward: true, false or a number of ranks
  bool loss_parallel = false, sequence_parallel = false, checkpoint_activations = false;
  bool compare = false, bf16 = false, memory = false;
  bool rope = false, documents = false;
  std::int64_t kv_heads = 0;         // 0: the model's heads
  std::int64_t predict_tokens = 1;   // each by a head of its own
  std::string cp_strategy = "auto";  // of attention over cp
  bool zigzag_sequence = false;      // over cp: head-tail pairs of chunks instead of chunks
  std::int64_t grad_accum = 1;
  std::string schedule = "1f1b";  // of a pipeline: a name, or a file with a schedule as text
  std::string schedule_plot = {};
  int microbatches = 4, chunks = 0;  // chunks: stages of a rank; 0: the schedule's own number
  ShampooFlags shampoo = {};
  double dropout = 0, lr = 1e-3, clip = 1;
  double peak_tflops = 0;  // of all devices together; 0: not said
  std::int64_t warmup = 10;
  std::int64_t hidden = 0, layers = 0;  // 0: the model's default, as of batch and seq
  std::vector<std::string> data = {};
  std::string tokenizer = {};                     // a file or folder, or "shipped"; empty: tokens are bytes
  std::int64_t vocabulary = 0;                    // the tokenizer's; 0: the model's
  std::int64_t end_of_document = kEndOfDocument;  // the tokenizer's end of a text
  std::string memory_plot = {}, trace = {};
  std::optional<ExpertFlags> experts = {};  // none: a dense model
};

// `replicate=1,shard=2,tp=2`: any of the names, once each; a missing one is 1.
MeshShape parse_mesh(const std::string& text);

enum class Kind : std::uint8_t { dense, experts };
const char* to_string(Kind kind);  // the program's name: train, moe

// Both programs take the same flags, moe those about experts too. Throws UsageError; `exit_status` is set where the
// program should end at once (--help).
Options parse_args(Kind kind, int argc, char** argv, std::optional<int>& exit_status);

// The device that ranks of this backend compute on: the one that was asked for, else cuda over NCCL and the CPU
// elsewhere.
Options resolve_device(Options options, const std::string& backend);

// The flags that change what the model computes, but no parameter's name or size.
std::string model_flags(const Options& options);

// The mesh to train on with this many ranks. Throws UsageError where it does not fit, or where the number of
// --reshard-after-forward does not divide its shard axis.
MeshShape fit_mesh(const Options& options, int ranks);
// Throws UsageError where it does not fit.
SparseShape fit_sparse(const ExpertFlags& flags, const MeshShape& dense);

}  // namespace train
