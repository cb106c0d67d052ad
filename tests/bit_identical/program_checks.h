// Compares programs on meshes with one device.
#pragma once

#include "bit_identical/programs.h"
#include "support/draws.h"

namespace dtensor::test {

inline const std::vector<Shape>& program_meshes() {
  static const std::vector<Shape> all{{2}, {3}, {4}, {2, 2}, {2, 3}};
  return all;
}

inline void run_on_mesh(const Shape& shape, const Program& program, const Computation& compute, const Tensors& expected,
                        std::uint64_t seed, std::int64_t block) {
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    std::vector<Placements> placements;
    std::string text = program.text + " on " + mesh.str();
    for (const at::Tensor& t : program.inputs) {
      placements.push_back(any_layout(draw, mesh, t, /*partial=*/false));
      text += c10::str(" ", to_string(placements.back()), " of ", t.sizes());
    }
    require_same_bits(run_placed(mesh, compute, program.inputs, placements, block), expected, text);
  });
}

// The results of one device; nothing if an operator is refused by name.
inline std::optional<Tensors> unless_refused(const Computation& compute, const Tensors& inputs, std::int64_t block,
                                             int threads) {
  try {
    return on_one_device(compute, inputs, threads, block);
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    TORCH_CHECK(what.find("has no bit-identical form") != std::string::npos, what);
    return std::nullopt;
  }
}

// The results on one device, after a comparison with two threads and with a mesh. Nothing if an operator is refused.
inline std::optional<Tensors> require_bits_of_one_device(const Program& program, const Shape& shape, std::uint64_t seed,
                                                         std::int64_t block) {
  const Computation compute = with_gradients(program.function);
  const auto expected = unless_refused(compute, program.inputs, block, 1);
  if (!expected) return expected;
  if (const auto threaded = unless_refused(compute, program.inputs, block, 2)) {
    require_same_bits(*threaded, *expected, program.text + " with 2 threads");
  }
  run_on_mesh(shape, program, compute, *expected, seed, block);
  return expected;
}

// Against ATen on regular tensors.
inline void require_values_of_aten(const Program& program, const Tensors& actual, double tolerance) {
  const Tensors expected = with_gradients(program.function)(program.inputs);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!expected[i].defined()) continue;
    const auto scale = 1 + expected[i].abs().max().item<double>();
    const auto difference = (actual[i] - expected[i]).abs().max().item<double>();
    TORCH_CHECK(difference <= tolerance * scale, program.text, ": result ", i, " differs from ATen by ", difference);
  }
}

// A drawn program, in which no operator may be refused.
inline void check_drawn(Program (*drawn)(Draw&, at::ScalarType)) {
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 1u << 30);
  const auto shape = *rc::gen::elementOf(program_meshes());
  const auto type = one_of({at::kFloat, at::kFloat, at::kBFloat16, at::kDouble});
  Draw draw(seed);
  const Program program = drawn(draw, type);
  const auto results = require_bits_of_one_device(program, shape, seed, one_of<std::int64_t>({8, 16, 32}));
  TORCH_CHECK(results, program.text, ": an operator is refused");
  // Norms of a few elements amplify rounding, so other types are not compared.
  if (type == at::kDouble) require_values_of_aten(program, *results, 1e-6);
}

}  // namespace dtensor::test
