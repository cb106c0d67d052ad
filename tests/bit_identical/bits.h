// Functions of tensors in a BitIdentical scope, on one rank and on meshes.
#pragma once

#include <ATen/Parallel.h>

#include <cstring>
#include <optional>

#include "dtensor/bit_identical.h"
#include "pitfalls/all_placements.h"

namespace dtensor::test {

using Tensors = std::vector<at::Tensor>;
using Computation = std::function<Tensors(const Tensors&)>;

// One NaN for all: the sign of a NaN depends on the order of operands.
inline at::Tensor with_one_nan(const at::Tensor& t) {
  return t.is_floating_point() ? t.masked_fill(t.isnan(), std::numeric_limits<double>::quiet_NaN()).contiguous()
                               : t.contiguous();
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const auto x = with_one_nan(a), y = with_one_nan(b);
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

inline void require_same_bits(const Tensors& actual, const Tensors& expected, const std::string& what) {
  TORCH_CHECK(actual.size() == expected.size(), what, ": ", actual.size(), " results, expected ", expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    TORCH_CHECK(same_bits(actual[i], expected[i]), what, ": result ", i, " differs by up to ",
                (actual[i].to(at::kDouble) - expected[i].to(at::kDouble)).abs().max().item<double>());
  }
}

// The full results of a computation on tensors in these placements.
inline Tensors run_placed(const DeviceMesh& mesh, const Computation& compute, const Tensors& inputs,
                          const std::vector<Placements>& placements, std::int64_t block = 32) {
  const BitIdentical scope(block);
  Tensors placed;
  for (std::size_t i = 0; i < inputs.size(); ++i) placed.push_back(distribute_tensor(inputs[i], mesh, placements[i]));
  Tensors results;
  for (const at::Tensor& t : compute(placed)) results.push_back(t.defined() ? full_of(t.detach()) : t);
  return results;
}

// What rank 0 of so many ranks returns, each with this number of threads.
inline Tensors on_rank_0(int ranks, int threads, const std::function<Tensors(const Communicator& world)>& fn) {
  Tensors results;
  RunOptions options;
  options.set_threads = false;
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  run_local(
      ranks,
      [&](const Communicator& world) {
        at::set_num_threads(threads);
        auto own = fn(world);
        if (world.rank() == 0) results = std::move(own);
      },
      options);
  at::set_num_threads(before);
  return results;
}

// The results on one rank with this number of threads.
inline Tensors on_one_device(const Computation& compute, const Tensors& inputs, int threads, std::int64_t block = 32) {
  return on_rank_0(1, threads, [&](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {1});
    return run_placed(mesh, compute, inputs, std::vector<Placements>(inputs.size(), {Replicate()}), block);
  });
}

// The results of a function of all inputs but the last, and the gradients of its floating-point inputs. The last input
// is the gradient of the result.
inline Computation with_gradients(const Function& function) {
  return [=](const Tensors& given) {
    Tensors inputs;
    for (std::size_t i = 0; i + 1 < given.size(); ++i) inputs.push_back(given[i].detach());
    for (at::Tensor& t : inputs) {
      if (t.is_floating_point()) t.requires_grad_();
    }
    const at::Tensor out = function(inputs);
    if (out.requires_grad()) out.backward(given.back());
    Tensors results{out};
    for (const at::Tensor& t : inputs) {
      if (t.is_floating_point()) results.push_back(t.grad());
    }
    return results;
  };
}

}  // namespace dtensor::test
