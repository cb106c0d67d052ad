// Elementwise operators in a BitIdentical scope, in chunks of full vectors. ATen's kernels compute what is left beyond
// the last full vector of a buffer, or of a thread's part of it, by other code.
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>

#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

constexpr std::int64_t kVector = 64;    // a multiple of the elements of any vector, unrolled twice
constexpr std::int64_t kChunk = 16384;  // below the size at which ATen splits a buffer over threads

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
  const std::int64_t chunks = (length + kChunk - 1) / kChunk;
  std::vector<std::vector<at::Tensor>> parts(static_cast<std::size_t>(chunks));
  at::parallel_for(0, chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      parts[static_cast<std::size_t>(i)] =
          run_chunk(call.info.op, args, flat, i * kChunk, std::min(kChunk, length - i * kChunk));
    }
  });
  std::vector<at::Tensor> results;
  for (std::size_t r = 0; r < parts[0].size(); ++r) {
    std::vector<at::Tensor> of_result;
    for (const auto& part : parts) of_result.push_back(part[r]);
    results.push_back(at::cat(of_result).narrow(0, 0, count).view(sizes));
  }
  set_results(call, std::move(results));
}

}  // namespace

void add_full_vector_kernels(LocalKernels& kernels) { kernels.emplace("full_vectors", full_vectors); }

}  // namespace dtensor
