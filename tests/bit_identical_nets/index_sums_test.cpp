// Sums of equal indices on random meshes and placements have the bits of one device, and the values of ATen.
#include "bit_identical/program_checks.h"

namespace dtensor::test {
namespace {

// Sums along a random dimension, into fewer rows than there are indices.
Program index_sum(Draw& draw, at::ScalarType type) {
  const Shape sizes = draw.sizes(draw.integer(1, 3), 1, 9);
  const auto dim = draw.integer(0, std::ssize(sizes) - 1);
  const std::int64_t rows = sizes[static_cast<std::size_t>(dim)], count = draw.integer(1, 40);
  auto source = sizes;
  source[static_cast<std::size_t>(dim)] = count;
  const Tensors pair{draw.integers({count}, sizes[0]), draw.integers({2, 1}, sizes.back())};
  if (std::ssize(sizes) > 1 && draw.coin()) {  // the gradient of advanced indexing
    const Tensors inputs{draw.normal(sizes, type), pair[0], pair[1]};
    const bool adjacent = std::ssize(sizes) == 2 || draw.coin();
    const Function pick = [adjacent](const Tensors& in) {
      using Indices = c10::List<std::optional<at::Tensor>>;
      return at::index(in[0], adjacent ? Indices({in[1]}) : Indices({in[1], std::nullopt, in[2]}));
    };
    Program program{inputs, "index", pick};
    program.inputs.push_back(draw.normal(program.function(inputs).sizes().vec(), type));
    return program;
  }
  const bool scatters = draw.coin();
  const at::Tensor index = draw.integers(scatters ? source : Shape{count}, rows);
  const Tensors inputs{draw.normal(sizes, type), draw.normal(source, type), index, draw.normal(sizes, type)};
  if (scatters) {
    return {inputs, "scatter_add", [=](const Tensors& in) { return at::scatter_add(in[0], dim, in[2], in[1]); }};
  }
  return {inputs, "index_add", [=](const Tensors& in) { return at::index_add(in[0], dim, in[2], in[1], 0.3); }};
}

TEST(BitIdenticalIndexSums, HaveTheBitsOfOneDevice) {
  check_property(
      "sums of equal indices in a BitIdentical scope", [] { check_drawn(index_sum); }, 60);
}

// Gradients of two halves of the indices add to the gradient of all of them.
TEST(BitIdenticalIndexSums, HalvesAddToTheSumOfAll) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Draw draw(4);
    const auto place = [&](const at::Tensor& t, Placement p) { return at::Tensor(distribute_tensor(t, mesh, {p})); };
    const at::Tensor table = draw.normal({3, 6}, at::kFloat), index = draw.integers({64}, 3);
    const at::Tensor grad = draw.normal({64, 6}, at::kFloat);
    const auto gradient = [&](std::int64_t parts) {
      const at::Tensor x = place(table, Shard(1)).requires_grad_();
      const BitIdentical scope;
      for (std::int64_t i = 0; i < parts; ++i) {
        const auto part = [&](const at::Tensor& t) { return t.chunk(parts)[static_cast<std::size_t>(i)].contiguous(); };
        x.index_select(0, place(part(index), Shard(0))).backward(place(part(grad), Shard(1)));
      }
      return full_of(x.grad());
    };
    EXPECT_TRUE(same_bits(gradient(2), gradient(1)));
  });
}

}  // namespace
}  // namespace dtensor::test
