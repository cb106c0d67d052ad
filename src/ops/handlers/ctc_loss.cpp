// CTC over a batch that is split: each sequence's paths are its own. Lengths are given for the whole batch, and
// concatenated targets are whole: the local call takes those of this rank's sequences.
#include <limits>
#include <numeric>

#include "ops/handlers/local_args.h"

namespace dtensor {
namespace {

struct Sequences {
  std::vector<std::int64_t> input_lengths, target_lengths;
  at::Tensor targets;  // rows, or concatenated
};

std::int64_t longest(const std::vector<std::int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

// log_alpha has a place for each target and each blank around it.
std::int64_t paths(const std::vector<std::int64_t>& target_lengths) { return 2 * longest(target_lengths) + 1; }

std::vector<std::int64_t> begins_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> begins(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), begins.begin(), std::int64_t{0});
  return begins;
}

Sequences own_sequences(const LocalArgs& args) {
  const auto inputs = args.value("input_lengths").toIntVector(), targets = args.value("target_lengths").toIntVector();
  const std::int64_t batch = args.global_sizes("log_probs")[1];
  TORCH_CHECK(std::ssize(inputs) == batch && std::ssize(targets) == batch, "ctc_loss: ", inputs.size(),
              " input_lengths and ", targets.size(), " target_lengths for a batch of ", batch);
  Sequences own{{}, {}, args.tensor("targets")};
  const bool rows = own.targets.dim() == 2;
  std::vector<at::Tensor> parts;
  const auto begins = begins_of(targets);
  for (const Segment& s : own_segments(args.spec("log_probs"), 1, batch)) {
    for (auto i = static_cast<std::size_t>(s.offset); i < static_cast<std::size_t>(s.offset + s.length); ++i) {
      own.input_lengths.push_back(inputs[i]);
      own.target_lengths.push_back(targets[i]);
      if (!rows) parts.push_back(own.targets.narrow(0, begins[i], targets[i]));
    }
  }
  if (!rows && !parts.empty()) own.targets = at::cat(parts);
  return own;
}

void ctc_loss(LocalCall& call) {
  if (give_zeros_if_empty(call)) return;
  const LocalArgs args(call);
  const Sequences own = own_sequences(args);
  auto [loss, alpha] = at::_ctc_loss(args.tensor("log_probs"), own.targets, own.input_lengths, own.target_lengths,
                                     args.integer("blank"), args.flag("zero_infinity"));
  const std::int64_t missing = paths(args.value("target_lengths").toIntVector()) - alpha.size(2);
  if (missing > 0) alpha = at::constant_pad_nd(alpha, {0, missing}, -std::numeric_limits<double>::infinity());
  give(call, {loss, alpha});
}

void ctc_loss_backward(LocalCall& call) {
  if (give_zeros_if_empty(call)) return;
  const LocalArgs args(call);
  const Sequences own = own_sequences(args);
  const auto alpha = args.tensor("log_alpha").narrow(2, 0, paths(own.target_lengths)).contiguous();
  give(call, {at::_ctc_loss_backward(args.tensor("grad"), args.tensor("log_probs"), own.targets, own.input_lengths,
                                     own.target_lengths, args.tensor("neg_log_likelihood"), alpha,
                                     args.integer("blank"), args.flag("zero_infinity"))});
}

}  // namespace

void register_ctc_loss_kernels() {
  register_local_kernel("ctc_loss_batch", ctc_loss);
  register_local_kernel("ctc_loss_backward_batch", ctc_loss_backward);
}

}  // namespace dtensor
