// The command line: flags, defaults and errors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "run_flags.h"

namespace train {

constexpr std::int64_t kEndOfDocument = 256;  // For byte tokens: not a byte.

struct MeshShape {
  std::int64_t replicate = 1, shard = 1, tp = 1, pp = 1, cp = 1;
  std::int64_t size() const { return pp * stage_size(); }
  std::int64_t stage_size() const { return replicate * shard * cp * tp; }
  friend bool operator==(const MeshShape&, const MeshShape&) = default;
  // replicate=1, shard=2, tp=2; with pp=2 before them if there are stages, and cp=2 after shard if sequences are split.
  std::string str() const;
};

enum class Dtype : std::uint8_t { float32, float64, bfloat16 };
const char* to_string(Dtype dtype);

// Flags of --optimizer shampoo (dtensor/optim/shampoo.h).
struct ShampooFlags {
  std::int64_t frequency = 10, start = 10;  // Steps between inverse roots, and the first preconditioned step.
  double eps = 1e-6;                        // Added to the factors.
  double graft_eps = 1e-8;                  // Added to the denominator of the grafting.
  std::string grafting = "adam";            // Grafting of the step's length: adam, none.
};

// Flags of the program moe about its experts.
struct ExpertFlags {
  std::int64_t ep = 0, etp = 1;  // ep 0: the largest number that divides both ranks and experts.
  std::int64_t experts = 8, top_k = 2, ffn = 0, shared = 0;  // ffn 0: the hidden size.
  std::string dispatcher = "all-to-all", balance = "aux";
  std::string router = "tokens",
              backend = "automatic";  // router: which side chooses; backend: how experts are multiplied.
  double capacity = 1.25, z_loss = 0, jitter = 0;
  double load = 1;  // Of the first expert in a dry run, in multiples of the mean.
  std::int64_t groups = 1, top_groups = 1, block = 0;
  bool score_before = false, counters = false;
  bool show_load = true;  // Counts tokens over ranks in each step.
  std::string load_plot = {};
};

// How the experts are split over the ranks of the dense mesh.
struct SparseShape {
  std::int64_t edp = 1, ep = 1, etp = 1;
};

struct Options : RunFlags {
  std::optional<MeshShape> mesh = {};  // Default: every rank on `shard`.
  std::optional<int> ranks = {};
  std::string backend = {}, model = "tiny", optimizer = "adamw";
  std::string device = {};  // cpu or cuda; empty: the default of the backend (device_flag.h).
  Dtype dtype = Dtype::float32;
  std::string parallel = "fsdp";  // Or plain: placements only, every parameter gathered where it is used.
  std::string reshard = "true";   // After forward: true, false or a number of ranks.
  bool fused_loss = false, loss_parallel = false, sequence_parallel = false, checkpoint_activations = false;
  bool bit_identical = false;    // The same bits on every mesh.
  std::string hashes = {};       // A file with the hashes of each step.
  bool operator_hashes = false;  // Also of each operator's results.
  std::int64_t replay = 0;       // The last step that is repeated and compared with `hashes`; 0: none.
  std::int64_t check_ranks = 0;  // Steps between checks of ranks; 0: none.
  bool stop_on_wrong_rank = true;
  bool compare = false, bf16 = false, float8 = false, memory = false;
  bool rope = false, documents = false;
  std::int64_t kv_heads = 0;         // 0: the model's heads.
  std::int64_t predict_tokens = 1;   // Each with a separate head.
  std::string cp_strategy = "auto";  // Of attention over cp.
  bool zigzag_sequence = false;      // Over cp: head-tail pairs of chunks instead of chunks.
  std::int64_t grad_accum = 1;
  bool accumulate_sharded = true;  // Else gradients of earlier parts of a batch stay unsharded.
  std::string schedule = "1f1b";   // Of a pipeline: a name, or a file with a schedule as text.
  std::string schedule_plot = {};
  int microbatches = 4, chunks = 0;  // chunks: stages of a rank; 0: the schedule's default.
  ShampooFlags shampoo = {};
  double dropout = 0, lr = 1e-3, clip = 1;
  double peak_tflops = 0;  // Of all devices together; 0: unknown.
  std::int64_t warmup = 10;
  std::int64_t hidden = 0, layers = 0;  // 0: the model's default, as for batch and seq.
  std::vector<std::string> data = {};
  std::string tokenizer = {};                     // A file or folder, or "shipped"; empty: tokens are bytes.
  std::int64_t vocabulary = 0;                    // The tokenizer's; 0: the model's.
  std::int64_t end_of_document = kEndOfDocument;  // The tokenizer's end-of-text token.
  std::string memory_plot = {}, trace = {};
  bool dry_run = false;
  std::string dry_run_json = {}, dry_run_trace = {}, dry_run_plot = {}, hardware = {};  // hardware: a table.
  std::string plan = {}, plan_search = {}, plan_out = {};  // A layout to run; a hardware table; a file for the layout.
  double memory_limit = 0;                  // Of --dry-run and --plan-search, in GB (1e9 bytes); 0: none.
  std::optional<ExpertFlags> experts = {};  // None: a dense model.
};

// `replicate=1,shard=2,tp=2`: any of the names, once each; the default size is 1.
MeshShape parse_mesh(const std::string& text);

enum class Kind : std::uint8_t { dense, experts };
const char* to_string(Kind kind);  // The program's name: train, moe.

// Both programs have the same flags; moe has also those of experts. Throws UsageError. Sets `exit_status` if the
// program should exit at once (--help).
Options parse_args(Kind kind, int argc, char** argv, std::optional<int>& exit_status);

// The flags that change what the model computes, but not the names or sizes of its parameters.
std::string model_flags(const Options& options);

// The mesh for this number of ranks. Throws UsageError if it does not fit, or if the number of --reshard-after-forward
// does not divide the shard axis.
MeshShape fit_mesh(const Options& options, int ranks);
// Throws UsageError if it does not fit.
SparseShape fit_sparse(const ExpertFlags& flags, const MeshShape& dense);

}  // namespace train
