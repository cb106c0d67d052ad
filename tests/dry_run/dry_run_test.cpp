// A dry run predicts what the run on thread ranks does: number and bytes of collectives exactly, and the peak of memory.
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include "dry_run/compare.h"

namespace dry {
namespace {

using Options = train::Options;

const train::Corpus& corpus() {
  static const auto text = train::Corpus::read({}, 64);
  return text;
}

bool coin() { return *rc::gen::arbitrary<bool>(); }

train::MeshShape any_mesh() {
  return *rc::gen::elementOf(std::vector<train::MeshShape>{{.shard = 1},
                                                           {.shard = 2},
                                                           {.shard = 4},
                                                           {.tp = 2},
                                                           {.replicate = 2},
                                                           {.shard = 2, .tp = 2},
                                                           {.replicate = 2, .shard = 2}});
}

Options any_options() {
  Options options;
  options.mesh = any_mesh();
  options.steps = 2;
  options.batch = *rc::gen::elementOf(std::vector<std::int64_t>{4, 8});
  options.seq = *rc::gen::elementOf(std::vector<std::int64_t>{32, 64});
  options.hidden = *rc::gen::elementOf(std::vector<std::int64_t>{64, 128});
  options.layers = *rc::gen::inRange<std::int64_t>(1, 4);
  options.dtype = coin() ? train::Dtype::float32 : train::Dtype::float64;
  options.parallel = coin() ? "fsdp" : "plain";
  options.bf16 = options.parallel == "fsdp" && options.dtype == train::Dtype::float32 && coin();
  if (options.parallel == "fsdp" && coin()) options.reshard = "false";
  options.loss_parallel = coin(), options.sequence_parallel = coin(), options.checkpoint_activations = coin();
  options.rope = coin();
  options.kv_heads = coin() ? 2 : 0;
  options.grad_accum = coin() ? 1 : 2;
  options.optimizer = *rc::gen::elementOf(std::vector<std::string>{"adamw", "sgd", "muon"});
  options.dropout = coin() ? 0 : 0.1;
  return options;
}

std::string text(const Options& o) {
  return c10::str("mesh ", o.mesh->str(), " batch ", o.batch, " seq ", o.seq, " hidden ", o.hidden, " layers ", o.layers,
                  " ", to_string(o.dtype), " ", o.parallel, o.bf16 ? " bf16" : "", " reshard ", o.reshard,
                  o.loss_parallel ? " loss-parallel" : "", o.sequence_parallel ? " sequence-parallel" : "",
                  o.checkpoint_activations ? " checkpoint" : "", o.rope ? " rope" : "", " kv ", o.kv_heads, " accum ",
                  o.grad_accum, " ", o.optimizer, " dropout ", o.dropout);
}

using Counted = std::map<std::pair<std::string, std::string>, std::pair<std::int64_t, std::int64_t>>;

Counted counted(const dtensor::DryRunReport& report) {
  Counted all;
  for (const auto& [key, count] : report.collectives) all[key] = {count.calls, count.bytes};
  return all;
}

RC_GTEST_PROP(DryRun, PredictsCollectivesAndPeakOfTrain, ()) {
  const auto options = any_options();
  const auto rank = *rc::gen::inRange(0, static_cast<int>(options.mesh->size()));
  const auto [predicted, measured] = compare(options, corpus(), rank);
  RC_LOG() << "rank " << rank << " " << text(options) << "\npredicted\n" << predicted.table() << "measured\n" << measured.table();
  RC_ASSERT(counted(predicted) == counted(measured));
  const double ratio = static_cast<double>(predicted.peak.bytes) / static_cast<double>(measured.peak.bytes);
  RC_ASSERT(ratio >= 0.99);
  RC_ASSERT(ratio <= 1.03);
}

}  // namespace
}  // namespace dry
