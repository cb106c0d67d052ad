// Properties over meshes, draws and placements: a function of regular tensors, called with DTensors, gives the values
// and gradients of one device. Failures are exceptions that name the placements, so that rapidcheck counts and shrinks
// them.
#pragma once

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include "dtensor/events.h"
#include "internal/shard_segments.h"
#include "support/ranks.h"

namespace dtensor::test {

using Function = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

inline at::Tensor full_of(const at::Tensor& t) { return is_dtensor(t) ? DTensor(t).full_tensor() : t; }

inline void require_close(const at::Tensor& actual, const at::Tensor& expected, const std::string& what,
                          double tolerance = 1e-8) {
  TORCH_CHECK(actual.defined() == expected.defined(), what, ": expected both results to be defined, or neither");
  if (!expected.defined()) return;
  const auto got = full_of(actual);
  const auto wide = [](const at::Tensor& t) { return t.to(t.is_complex() ? at::kComplexDouble : at::kDouble); };
  TORCH_CHECK(got.sizes() == expected.sizes(), what, ": sizes ", got.sizes(), ", expected ", expected.sizes());
  TORCH_CHECK(got.scalar_type() == expected.scalar_type(), what, ": ", got.dtype(), ", expected ", expected.dtype());
  TORCH_CHECK(at::allclose(wide(got), wide(expected), tolerance, tolerance, true), what, "\nexpected\n", expected.cpu(),
              "\nactual\n", got);
}

// Bit-equal values and equal sizes.
inline void require_same(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  TORCH_CHECK(at::equal(actual, expected), what, "\nexpected\n", expected, "\nactual\n", actual);
}

// Draw::placements, and also strided shards (with and without the axes of their stride), zigzag shards and averages.
inline Placement any_placement(Draw& draw, std::int64_t tensor_ndim, bool partial) {
  const auto pick = draw.integer(-2, 2 * tensor_ndim - 1);
  if (pick == -2 && partial) return Partial(draw.coin() ? ReduceOp::sum : ReduceOp::avg);
  if (pick < 0) return Replicate();
  const auto dim = pick / 2;
  if (pick % 2 == 0) return Shard(dim);
  return draw.coin() ? ZigzagShard(dim) : StridedShard(dim, draw.integer(2, 3));
}

inline Placements any_placements(Draw& draw, const DeviceMesh& mesh, std::int64_t tensor_ndim, bool partial = true) {
  Placements result;
  for (std::int64_t axis = 0; axis < mesh.ndim(); ++axis) result.push_back(any_placement(draw, tensor_ndim, partial));
  return result;
}

// The same with ragged shards and more zigzag shards.
inline Placements any_layout(Draw& draw, const DeviceMesh& mesh, const at::Tensor& tensor, bool partial = true) {
  return draw.replace_some_shards(any_placements(draw, mesh, tensor.dim(), partial), mesh, tensor.sizes());
}

inline Placements all_axes(const DeviceMesh& mesh, Placement placement) {
  return Placements(static_cast<std::size_t>(mesh.ndim()), placement);
}

// Runs `body` on every rank of random meshes, with equal draws on all ranks.
inline void for_all(const char* name, const std::function<void(const DeviceMesh&, Draw&)>& body,
                    const std::vector<Shape>& shapes = mesh_shapes()) {
  EXPECT_TRUE(rc::check(name, [&] {
    const auto shape = *rc::gen::elementOf(shapes);
    const auto seed = *rc::gen::inRange<std::uint64_t>(0, 1u << 20);
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      Draw draw(seed);
      body(mesh, draw);
    });
  }));
}

// Whether `fn` throws. Fails if only some ranks throw.
inline bool raises(const DeviceMesh& mesh, const std::function<void()>& fn) {
  bool raised = false;
  try {
    fn();
  } catch (const c10::Error&) {
    raised = true;
  }
  const auto count = at::full({1}, raised ? 1.0 : 0.0);
  mesh.communicator().all_reduce(count, ReduceOp::sum).wait();
  const auto ranks = count.item<double>();
  TORCH_CHECK(ranks == 0 || ranks == static_cast<double>(mesh.size()), ranks, " of ", mesh.size(), " ranks raise");
  return raised;
}

// The local tensor on this rank of a tensor that all ranks have.
inline at::Tensor part_of(at::Tensor unsharded, const DeviceMesh& mesh, const Placements& placements) {
  for (std::int64_t d = 0; d < unsharded.dim(); ++d) {
    std::vector<at::Tensor> pieces{unsharded.narrow(d, 0, 0)};
    for (const auto& s : shard_segments(unsharded.size(d), d, placements, mesh.shape(), *mesh.coordinate()))
      pieces.push_back(unsharded.narrow(d, s.offset, s.length));
    unsharded = at::cat(pieces, d);
  }
  return unsharded;
}

// Like distribute_tensor, but the ranks of a Partial axis get different values of any sign, to detect wrong rules for
// Partial operands.
inline DTensor place_unequal(Draw& draw, const at::Tensor& t, const DeviceMesh& mesh, const Placements& placements) {
  auto share = t;
  bool partial = false;
  for (std::size_t a = 0; a < placements.size(); ++a) {
    if (!placements[a].is_partial()) continue;
    partial = true;
    const auto ranks = mesh.size(static_cast<std::int64_t>(a)), mine = mesh.coordinate()->at(a);
    if (placements[a].is_partial(ReduceOp::sum) && mine > 0) share = at::zeros_like(t);
    auto rest = at::zeros_like(t);
    for (std::int64_t r = 0; r < ranks; ++r) {
      // Values have few bits, so that sums are exact if the inputs have few bits (ties stay ties).
      const auto drawn = (draw.normal(t.sizes().vec()) * 64).round().div(64).to(t.scalar_type());
      const auto noise = r + 1 < ranks ? drawn : -rest;
      rest = rest + noise;
      if (r == mine) share = share + noise;
    }
  }
  if (!partial) return distribute_tensor(t.clone(), mesh, placements);
  return DTensor::from_local(part_of(share, mesh, placements), mesh, placements, t.sizes(), t.strides());
}

struct Everywhere {
  bool partial = true;  // Whether inputs may be Partial.
  double tolerance = 1e-8;
  bool grad = true;
  bool frozen = false;  // Some inputs, at random, do not require grad.
};

inline std::vector<at::Tensor> as_leaves(std::vector<at::Tensor> tensors, const std::vector<bool>& trained) {
  for (auto& t : tensors) t = t.detach();
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    if (trained[k] && (tensors[k].is_floating_point() || tensors[k].is_complex())) tensors[k].requires_grad_();
  }
  return tensors;
}

// Operators skip gradients of frozen inputs: of all inputs, or of some at random.
inline std::vector<bool> drawn_trained(Draw& draw, std::size_t inputs, const Everywhere& how) {
  std::vector<bool> trained(inputs, how.grad);
  for (std::size_t k = 0; how.grad && how.frozen && k < inputs; ++k) trained[k] = draw.coin();
  return trained;
}

inline void run_backward(const at::Tensor& result, const at::Tensor& weight) {
  const auto sum = (result * weight).sum();
  (sum.is_complex() ? at::real(sum) : sum).backward();
}

// Calls fn on `inputs`, each distributed by `place`; floating-point inputs require grad.
inline void equal_placed(const DeviceMesh& mesh, Draw& draw, std::string what, const std::vector<at::Tensor>& inputs,
                         const Function& fn, const std::function<Placements(const at::Tensor&)>& place,
                         const Everywhere& how = {}) {
  std::vector<at::Tensor> regular, sharded;
  const auto trained = drawn_trained(draw, inputs.size(), how);
  for (const auto& t : inputs) regular.push_back(t.clone());
  regular = as_leaves(std::move(regular), trained);
  const auto expected = fn(regular);
  for (const auto& t : inputs) {
    sharded.push_back(place_unequal(draw, t, mesh, place(t)));
    what += " " + DTensor(sharded.back()).spec_str();
  }
  sharded = as_leaves(std::move(sharded), trained);
  const auto actual = fn(sharded);
  require_close(actual.detach(), expected.detach(), what, how.tolerance);
  if (!expected.requires_grad()) return;
  TORCH_CHECK(actual.requires_grad(), what, ": expected a result that requires grad");
  const auto weight = draw.normal(expected.sizes().vec()).to(expected.scalar_type());
  run_backward(expected, weight);
  run_backward(actual, distribute_tensor(weight, mesh, any_layout(draw, mesh, weight, false)));
  for (std::size_t k = 0; k < sharded.size(); ++k) {
    if (trained[k]) require_close(sharded[k].grad(), regular[k].grad(), c10::str(what, " grad ", k), how.tolerance);
  }
}

inline void equal_here(const DeviceMesh& mesh, Draw& draw, const std::string& what,
                       const std::vector<at::Tensor>& inputs, const Function& fn, const Everywhere& how = {}) {
  equal_placed(
      mesh, draw, what, inputs, fn,
      [&](const at::Tensor& t) { return any_layout(draw, mesh, t, how.partial && t.is_floating_point()); }, how);
}

// On all meshes: first every input sharded along one dimension (nested on meshes of several axes), then with random
// placements, and finally with frozen inputs.
inline void equal_everywhere(const char* name, const std::vector<at::Tensor>& inputs, const Function& fn,
                             bool partial = true, int tries = 8, double tolerance = 1e-8) {
  for (const Shape& shape : mesh_shapes()) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      for (int i = 0; i < tries; ++i) {
        Draw draw(static_cast<std::uint64_t>(17 * i + mesh.size()));
        const auto place = [&](const at::Tensor& t) {
          if (i < 2) return all_axes(mesh, t.dim() > i ? Placement(Shard(i)) : Placement(Replicate()));
          return any_layout(draw, mesh, t, partial && t.is_floating_point());
        };
        const auto what = c10::str(name, " try ", i, " mesh ", at::IntArrayRef(shape));
        ASSERT_NO_THROW(equal_placed(mesh, draw, what, inputs, fn, place, {partial, tolerance, true, i > 3})) << what;
      }
    });
  }
}

}  // namespace dtensor::test
