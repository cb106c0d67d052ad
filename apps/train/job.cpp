// Forward and backward of a batch in its pieces.
#include "job.h"

#include <ATen/ATen.h>

#include <optional>

#include "dtensor/attention.h"
#include "dtensor/hooks.h"
#include "dtensor/random.h"
#include "dtensor/tensor.h"
#include "run.h"
#include "train/model/plan.h"

namespace train {

at::Tensor value_of(const at::Tensor& scalar) {
  const at::Tensor value = scalar.detach();
  return (dtensor::is_dtensor(value) ? dtensor::DTensor(value).full_tensor() : value).to(at::kDouble);
}

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

// Forward and backward of one part of the batch; returns its contribution to the mean loss. Does not read it, so that
// the host runs ahead of the device.
at::Tensor run_piece(const Job& job, const Batch& piece, double weight) {
  if (job.stages != nullptr) return at::scalar_tensor(job.stages->run(piece, weight), at::kDouble);
  at::Tensor loss;
  {
    const auto tokens = batch_placements(job.options);
    const auto out = job.model(placed(job, piece.ids, tokens), placed(job, piece.documents, rows_placements()));
    const auto targets = placed(job, piece.targets, tokens);
    loss = (job.options.fused_loss ? fused_token_losses : token_losses)(out.logits, targets);
    if (!out.router_losses.empty()) loss = loss + at::stack(out.router_losses).sum();
  }
  if (job.load != nullptr) job.load->add(job.model);
  if (weight != 1) loss = loss * weight;
  loss.backward();
  return value_of(loss);
}

// A mean over a part, times the part's weight, is exact for halves of a batch only.
void check_parts(const Job& job) {
  const auto parts = job.stages != nullptr ? pieces_of_batch(job.options) : job.pieces;
  if (!job.options.bit_identical || parts.size() == 1) return;
  TORCH_CHECK_NOT_IMPLEMENTED(parts.size() == 2 && parts[0] == parts[1] && !job.options.documents,
                              "a batch in parts has no bit-identical form but in equal halves without --documents");
}

at::Tensor run_pieces(const Job& job, const Batch& batch) {
  const dtensor::AttentionStrategyScope strategy(dtensor::parse_attention_strategy(job.options.cp_strategy));
  if (job.pieces.size() == 1) return run_piece(job, batch, 1);
  const auto draws = mesh_of_draws(job);
  const auto random = draws ? get_rng_state(draws) : dtensor::RngState();
  at::Tensor loss;
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
    const double weight = static_cast<double>(count) / static_cast<double>(batch.ids.size(0));
    const at::Tensor part = run_piece(job, batch.narrow(first, count), weight);
    loss = loss.defined() ? loss + part : part;
    if (job.memory != nullptr) job.memory->measure_now();
    first += count;
  }
  return loss;
}

}  // namespace

at::Tensor run_batch(const Job& job, const Batch& batch) {
  check_parts(job);
  const at::Tensor loss = run_pieces(job, batch);
  // The sum of two parts is exact in float64. One device's loss is the same number in float32.
  const bool rounds = job.options.bit_identical && job.options.dtype != Dtype::float64;
  return rounds ? loss.to(at::kFloat) : loss;
}

}  // namespace train
