// Elementwise operators and fused optimizers in a BitIdentical scope, in chunks of full vectors. ATen's kernels compute
// what is left beyond the last full vector of a buffer, or of a thread's part of it, by other code.
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>

#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

constexpr std::int64_t kVector = 64;  // a multiple of the elements of any vector, unrolled twice
constexpr std::int64_t kLeastChunk = 1 << 14, kMostChunk = 1 << 16;  // elements that a thread computes at a time

std::int64_t padded(std::int64_t n) { return (n + kVector - 1) / kVector * kVector; }

// 0-dimensional operands stay: they take part in type promotion as numbers do.
bool is_flattened(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().dim() > 0;
}

std::vector<std::int64_t> broadcast_sizes(const torch::jit::Stack& args) {
  std::vector<std::int64_t> sizes;
  for (const auto& value : args) {
    if (is_flattened(value)) sizes = at::infer_size(sizes, value.toTensor().sizes());
  }
  return sizes;
}

at::Tensor flattened(const at::Tensor& t, at::IntArrayRef sizes) {
  const auto flat = t.expand(sizes).reshape({-1});
  return flat.numel() == padded(flat.numel()) ? flat.contiguous()
                                              : at::constant_pad_nd(flat, {0, padded(flat.numel()) - flat.numel()}, 1);
}

// The results of one chunk of the flattened arguments.
std::vector<at::Tensor> run_chunk(const c10::OperatorHandle& op, torch::jit::Stack args, const std::vector<bool>& flat,
                                  std::int64_t begin, std::int64_t length) {
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (flat[i]) args[i] = args[i].toTensor().narrow(0, begin, length);
  }
  const at::NoGradGuard no_grad;  // composite kernels compute another formula for graphs; worker threads have own modes
  op.callBoxed(args);
  std::vector<at::Tensor> results;
  for (const auto& value : args) results.push_back(value.toTensor());
  return results;
}

void full_vectors(LocalCall& call) {
  const auto given = torch::jit::last(call.stack, call.info.args.size());
  torch::jit::Stack args(given.begin(), given.end());
  const auto sizes = broadcast_sizes(args);
  const std::int64_t count = c10::multiply_integers(sizes), length = padded(count);
  std::vector<bool> flat;
  for (auto& value : args) {
    flat.push_back(is_flattened(value));
    if (!flat.back()) continue;
    value = flattened(value.toTensor(), sizes);
    // In-place and out= operators write a copy.
    if (call.info.args[flat.size() - 1].mutated) value = value.toTensor().clone();
  }
  if (sizes.empty() || count == 0) return set_results(call, run_aten_operator(call));
  const std::int64_t of_thread = padded((length + at::get_num_threads() - 1) / at::get_num_threads());
  const std::int64_t chunk = std::clamp(of_thread, kLeastChunk, kMostChunk);
  std::vector<at::Tensor> results;
  for (const SpecPtr& spec : call.outputs) results.push_back(at::empty({length}, at::TensorOptions(spec->dtype)));
  // ATen does not split a chunk further: this thread is in a parallel region.
  at::parallel_for(0, (length + chunk - 1) / chunk, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * chunk; i < std::min(end * chunk, length); i += chunk) {
      const std::int64_t size = std::min(chunk, length - i);
      const auto part = run_chunk(call.info.op, args, flat, i, size);
      for (std::size_t r = 0; r < part.size(); ++r) results[r].narrow(0, i, size).copy_(part[r]);
    }
  });
  for (at::Tensor& result : results) result = result.narrow(0, 0, count).view(sizes);
  set_results(call, std::move(results));
}

// A call of a fused optimizer on flat tensors of entire vectors. ATen's kernels compute what is left beyond the last
// full vector of a tensor by other code, so that part runs as a padded copy.
class FusedCall {
 public:
  explicit FusedCall(LocalCall& call) : call_(call), args_(torch::jit::pop(call.stack, call.info.args.size())) {}

  void run() {
    for (std::size_t a = 0; a < args_.size(); ++a) {
      if (args_[a].isTensorList()) lists_.push_back(a), given_.push_back(args_[a].toTensorVector());
    }
    full_.resize(given_.size()), rest_.resize(given_.size());
    // Outside its mesh a rank has no tensor.
    for (std::size_t i = 0; i < given_[0].size(); ++i) {
      if (given_[0][i].defined()) add_position(i);
    }
    run_lists(full_), run_lists(rest_);
    for (const auto& [target, value] : written_after_) target.copy_(value);
  }

 private:
  bool is_number(std::size_t list) const {
    return call_.info.schema().arguments()[lists_[list]].name() == "state_steps";
  }

  bool are_dense_alike(std::size_t i) const {
    for (std::size_t list = 0; list < given_.size(); ++list) {
      if (given_[list].empty() || is_number(list)) continue;
      const at::Tensor& t = given_[list][i];
      if (!t.is_non_overlapping_and_dense() || !t.strides().equals(given_[0][i].strides())) return false;
    }
    return true;
  }

  void add_position(std::size_t i) {
    const std::int64_t count = given_[0][i].numel(), full = count / kVector * kVector;
    const bool in_place = are_dense_alike(i);
    for (std::size_t list = 0; list < given_.size(); ++list) {
      if (given_[list].empty()) continue;
      const at::Tensor& t = given_[list][i];
      if (is_number(list)) {
        add_parts(list, full > 0 ? t : at::Tensor(), full < count ? t : at::Tensor());
        continue;
      }
      const at::Tensor flat = in_place ? t.as_strided({count}, {1}) : t.contiguous().view({count});
      if (!flat.is_alias_of(t)) write_after(list, t, flat.view(t.sizes()));
      const at::Tensor end = flat.narrow(0, full, count - full);
      at::Tensor padded;
      if (full < count) {
        padded = at::ones({kVector}, t.options());
        padded.narrow(0, 0, count - full).copy_(end);
        write_after(list, end, padded.narrow(0, 0, count - full));
      }
      add_parts(list, full > 0 ? flat.narrow(0, 0, full) : at::Tensor(), padded);
    }
  }

  void add_parts(std::size_t list, const at::Tensor& full, const at::Tensor& rest) {
    if (full.defined()) full_[list].push_back(full);
    if (rest.defined()) rest_[list].push_back(rest);
  }

  // Parts are written to their flat tensor before that is written to its target.
  void write_after(std::size_t list, const at::Tensor& target, const at::Tensor& value) {
    if (call_.info.args[lists_[list]].mutated) written_after_.emplace(written_after_.begin(), target, value);
  }

  void run_lists(const std::vector<std::vector<at::Tensor>>& lists) {
    if (lists[0].empty()) return;
    torch::jit::Stack stack = args_;
    for (std::size_t list = 0; list < lists.size(); ++list) stack[lists_[list]] = lists[list];
    call_.info.op.callBoxed(stack);
  }

  LocalCall& call_;
  torch::jit::Stack args_;
  std::vector<std::size_t> lists_;  // arguments
  std::vector<std::vector<at::Tensor>> given_, full_, rest_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_after_;  // targets and values
};

void fused_optimizer(LocalCall& call) { FusedCall(call).run(); }

}  // namespace

void add_full_vector_kernels(LocalKernels& kernels) {
  kernels.emplace("full_vectors", full_vectors);
  kernels.emplace("fused_optimizer", fused_optimizer);
}

}  // namespace dtensor
