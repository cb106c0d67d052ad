// Forward and backward of a batch in its pieces.
#include "job.h"

#include <ATen/ATen.h>

#include <optional>

#include "dtensor/attention.h"
#include "dtensor/hooks.h"
#include "dtensor/random.h"
#include "dtensor/tensor.h"
#include "run.h"
#include "train/model/loss.h"
#include "train/model/plan.h"

namespace train {

std::vector<std::int64_t> equal_parts(std::int64_t rows, std::int64_t count) {
  std::vector<std::int64_t> parts;
  for (std::int64_t i = 0; i < count; ++i) parts.push_back(rows / count + (i < rows % count ? 1 : 0));
  return parts;
}

GptConfig meta_config(const Options& options) {
  GptConfig config = gpt_config(options);
  config.tensor = config.tensor.device(at::kMeta);
  return config;
}

namespace {

at::Tensor placed(const Job& job, const at::Tensor& t, const dtensor::Placements& where) {
  if (!t.defined()) return t;
  return job.batch_mesh ? place_batch(t, job.batch_mesh, where) : to_device(t, device_type(job.options));
}

// Forward and backward of one part of the batch. Does not read its loss, so that the host runs ahead of the device.
void run_piece(const Job& job, const Batch& piece, BatchLoss& loss) {
  if (job.stages != nullptr) return job.stages->run(piece, loss);
  at::Tensor part;
  {
    const auto tokens = batch_placements(job.options);
    const auto out = job.model(placed(job, piece.ids, tokens), placed(job, piece.documents, rows_placements()));
    part = loss.add(out.logits, out.router_losses, placed(job, piece.targets, tokens));
  }
  if (job.load != nullptr) job.load->add(job.model);
  part.backward();
}

void run_pieces(const Job& job, const Batch& batch, BatchLoss& loss) {
  const dtensor::AttentionStrategyScope strategy(dtensor::parse_attention_strategy(job.options.cp_strategy));
  if (job.pieces.size() == 1) return run_piece(job, batch, loss);
  const auto draws = mesh_of_draws(job);
  const auto random = draws ? get_rng_state(draws) : dtensor::RngState();
  std::int64_t first = 0;
  for (std::size_t i = 0; i < job.pieces.size(); ++i) {
    const auto count = job.pieces[i];
    const dtensor::MicrobatchRandomScope rows({first, count, batch.ids.size(0)});  // Dropout as for the full batch.
    if (draws) set_rng_state(draws, random);
    std::optional<dtensor::NoGradientSync> unsharded;
    std::optional<dtensor::NoReplicaSync> sharded;  // Sums over replicas wait, since they need no memory.
    const bool last = i + 1 == job.pieces.size(),
               shards = job.options.accumulate_sharded && job.options.parallel == "fsdp" && job.stages == nullptr;
    if (!last && !shards) unsharded.emplace();
    if (!last && shards) sharded.emplace();
    run_piece(job, batch.narrow(first, count), loss);
    if (job.memory != nullptr) job.memory->measure_now();
    first += count;
  }
}

}  // namespace

at::Tensor run_batch(const Job& job, const Batch& batch) {
  const Options& o = job.options;
  const auto parts = job.pieces.size() * (job.stages != nullptr ? static_cast<std::size_t>(o.microbatches) : 1);
  BatchLoss loss(batch.targets, parts, o.predict_tokens, o.fused_loss);
  run_pieces(job, batch, loss);
  return job.stages != nullptr ? job.stages->on_every_rank(loss) : value_of(loss.mean());
}

}  // namespace train
