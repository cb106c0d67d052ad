// Registers the CUDA kernel of dtensor::multiply_leaves when the library dtensor_cuda is loaded.
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/library.h>

#include <cstring>

#include "internal/device_copy.h"
#include "internal/kernels/cuda_launch.h"
#include "ops/cuda/leaf_products.h"

namespace dtensor::bit_identical {
namespace {

// The leaves as bytes on the device.
at::Tensor on_device(const std::vector<leaf_products::Leaf>& leaves, c10::Device device) {
  const std::size_t bytes = leaves.size() * sizeof(leaf_products::Leaf);
  const at::Tensor host = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
  std::memcpy(host.mutable_data_ptr(), leaves.data(), bytes);
  return copy_without_wait(host, device);
}

at::Tensor multiply_leaves(const at::Tensor& a, const at::Tensor& b, at::IntArrayRef lengths, at::IntArrayRef merges) {
  TORCH_CHECK(lengths.size() < std::size_t{1} << leaf_products::kMostLevels,
              "a product in a BitIdentical scope: expected less than 2^", leaf_products::kMostLevels, " blocks, got ",
              lengths.size());
  const at::Tensor nodes = at::empty({std::ssize(merges) - c10::sum_integers(merges), a.size(0), a.size(1), b.size(2)},
                                     a.options().dtype(at::toOpMathType(a.scalar_type())));
  if (nodes.numel() == 0) return nodes;
  const auto leaves = leaf_products::leaves_of(lengths.data(), merges.data(), lengths.size());
  const at::Tensor table = on_device(leaves, a.device());
  const auto matrices = [](const at::Tensor& t) {
    return cuda::Matrices{t.const_data_ptr(), t.stride(0), t.stride(1), t.stride(2)};
  };
  const cuda::Product product{.type = kernel_type_of<lanes::Type>(a, "a product in a BitIdentical scope", "operands"),
                              .batch = a.size(0),
                              .m = a.size(1),
                              .n = b.size(2),
                              .a = matrices(a),
                              .b = matrices(b),
                              .leaves = static_cast<const leaf_products::Leaf*>(table.const_data_ptr()),
                              .count = std::ssize(leaves),
                              .nodes = nodes.mutable_data_ptr()};
  launch_on_device_of(a, "a product in a BitIdentical scope",
                      [&](auto stream) { return cuda::launch_multiply_leaves(product, stream); });
  return nodes;
}

TORCH_LIBRARY_IMPL(dtensor, CUDA, m) { m.impl("multiply_leaves", multiply_leaves); }

}  // namespace
}  // namespace dtensor::bit_identical
