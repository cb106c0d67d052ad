// The BitIdentical scope on a GPU: products and sums have the bits of the host, and rows those of one rank on every
// mesh. Elementwise kernels do not depend on positions.
#include "dtensor/bit_identical.h"

#include "bit_identical/bits.h"
#include "gpu/gpu.h"
#include "support/leaf_products.h"

namespace dtensor::test {
namespace {

using GpuBits = Gpu;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

TEST_F(GpuBits, ProductsHaveTheBitsOfTheHost) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("dtensor::multiply_leaves", "")
                             .typed<decltype(multiply_by_threads)>();
  for (const auto type : kTypes) {
    for (std::uint64_t seed = 0; seed < 25; ++seed) {
      Draw draw(seed);
      const auto batch = draw.integer(1, 3), m = draw.integer(1, 140), n = draw.integer(1, 140);
      Shape lengths, merges;
      for (auto i = draw.integer(0, 6); i >= 0; --i) {
        const auto before = std::ssize(merges) - c10::sum_integers(merges);
        lengths.push_back(draw.integer(0, 70)), merges.push_back(draw.integer(0, before));
      }
      const auto k = c10::sum_integers(lengths);
      at::Tensor a = draw.normal({batch, m, k}).to(type), b = draw.normal({batch, k, n}).to(type);
      if (draw.coin()) a = a.transpose(1, 2).contiguous().transpose(1, 2);
      if (draw.coin()) b = b.transpose(1, 2).contiguous().transpose(1, 2);
      EXPECT_TRUE(
          same_bits(op.call(a.cuda(), b.cuda(), lengths, merges).cpu(), multiply_by_threads(a, b, lengths, merges)))
          << type << " seed " << seed;
    }
  }
}

// The results on rank 0 of a mesh of so many ranks, with the rows of tensors sharded.
Tensors on_ranks(c10::DeviceType device, std::int64_t ranks, const Computation& compute, const Tensors& inputs) {
  Tensors results = on_rank_0(static_cast<int>(ranks), 1, [&](const Communicator& world) {
    const auto mesh = init_device_mesh(world, device, {ranks});
    std::vector<Placements> placements;
    for (const at::Tensor& t : inputs) placements.push_back({t.dim() > 1 ? Placement(Shard(0)) : Replicate()});
    return run_placed(mesh, compute, inputs, placements);
  });
  for (at::Tensor& t : results) t = t.cpu();
  return results;
}

TEST_F(GpuBits, SumsHaveTheBitsOfTheCpu) {
  const Computation compute = [](const Tensors& in) -> Tensors { return {in[0].sum(0), in[0].sum(1), in[0].sum()}; };
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      Draw draw(seed);
      const Tensors inputs{draw.normal({draw.integer(1, 300), draw.integer(1, 90)}, type)};
      const Tensors expected = on_ranks(at::kCPU, 1, compute, inputs);
      for (const std::int64_t ranks : {1, 2, 3}) {
        EXPECT_NO_THROW(require_same_bits(on_ranks(at::kCUDA, ranks, compute, inputs), expected, c10::str(ranks)));
      }
    }
  }
}

// Rows that begin at any address.
TEST_F(GpuBits, RowsHaveTheBitsOfOneRank) {
  const std::pair<const char*, Function> functions[] = {
      {"softmax", [](const Tensors& in) { return at::softmax(in[0], -1); }},
      {"log_softmax", [](const Tensors& in) { return at::log_softmax(in[0], -1); }},
      {"layer_norm", [](const Tensors& in) { return at::layer_norm(in[0], {in[1].size(0)}, in[1], in[2]); }},
      {"rms_norm", [](const Tensors& in) { return at::rms_norm(in[0], {in[1].size(0)}, in[1], 1e-5) + in[2]; }},
      {"gelu", [](const Tensors& in) { return at::gelu(in[0] * in[1] + in[2], "tanh"); }},
      {"silu", [](const Tensors& in) { return at::silu(in[0] * in[1] + in[2]); }}};
  for (const auto& [name, function] : functions) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const std::int64_t width : {7, 100, 1027, 5003}) {
        Draw draw(static_cast<std::uint64_t>(width));
        const Tensors inputs{draw.normal({31, width}, type), draw.normal({width}, type), draw.normal({width}, type),
                             draw.normal({31, width}, type)};
        const Tensors one = on_ranks(at::kCUDA, 1, with_gradients(function), inputs);
        for (const std::int64_t ranks : {2, 3}) {
          EXPECT_NO_THROW(require_same_bits(on_ranks(at::kCUDA, ranks, with_gradients(function), inputs), one,
                                            c10::str(name, ' ', type, ' ', width)));
        }
      }
    }
  }
}

TEST_F(GpuBits, ElementwiseKernelsDoNotDependOnPositions) {
  const std::pair<const char*, Function> functions[] = {
      {"exp", [](const Tensors& in) { return at::exp(in[0]); }},
      {"log", [](const Tensors& in) { return at::log(in[0].abs()); }},
      {"rsqrt", [](const Tensors& in) { return at::rsqrt(in[0].abs()); }},
      {"tanh", [](const Tensors& in) { return at::tanh(in[0]); }},
      {"sigmoid", [](const Tensors& in) { return at::sigmoid(in[0]); }},
      {"silu", [](const Tensors& in) { return at::silu(in[0]); }},
      {"silu_backward", [](const Tensors& in) { return at::silu_backward(in[0], in[1]); }},
      {"gelu", [](const Tensors& in) { return at::gelu(in[0], "tanh"); }},
      {"gelu_backward", [](const Tensors& in) { return at::gelu_backward(in[0], in[1], "tanh"); }},
      {"add", [](const Tensors& in) { return at::add(in[0], in[1], 0.3); }},
      {"addcmul", [](const Tensors& in) { return at::addcmul(in[0], in[1], in[0], 0.3); }},
      {"lerp", [](const Tensors& in) { return at::lerp(in[0], in[1], 0.3); }}};
  for (const auto& [name, function] : functions) {
    for (const auto type : kTypes) {
      Draw draw(3);
      const at::Tensor x = draw.normal({20000}).to(type).cuda(), y = draw.normal({20000}).to(type).cuda();
      const at::Tensor all = function({x, y}).cpu();
      for (int i = 0; i < 40; ++i) {
        const auto begin = draw.integer(0, 19000), length = draw.integer(1, 20000 - begin);
        const auto part = [&](const at::Tensor& t) { return t.narrow(0, begin, length); };
        EXPECT_TRUE(same_bits(function({part(x), part(y)}).cpu(), part(all))) << name << ' ' << type;
      }
    }
  }
}

}  // namespace
}  // namespace dtensor::test
