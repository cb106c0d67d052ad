// The command line: that of examples/train, and what is said about experts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model.h"
#include "train/args.h"

namespace moe_example {

struct Options {
  train::Options job;
  std::int64_t ep = 0, etp = 1;                              // ep 0: as many as divide both the ranks and the experts
  std::int64_t layers = 0;                                   // 0: the model's
  std::int64_t experts = 8, top_k = 2, ffn = 0, shared = 0;  // ffn 0: the hidden size
  std::string dispatcher = "all-to-all", balance = "aux";
  double capacity = 1.25;
  bool show_load = true;  // counts tokens over ranks each step
  std::string load_plot;
};

Options parse_args(int argc, char** argv, std::optional<int>& exit_status);

struct SparseShape {
  std::int64_t edp = 1, ep = 1, etp = 1;
};
// How the ranks of the dense mesh hold the experts. Throws train::UsageError where it does not fit.
SparseShape fit_sparse(const Options& options, const train::MeshShape& dense);

ModelConfig model_config(const Options& options);
dtensor::DispatchKind dispatch_kind(const Options& options);

}  // namespace moe_example
