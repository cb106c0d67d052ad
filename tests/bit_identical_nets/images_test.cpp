// Operators on images and volumes on random meshes and placements have the bits of one device, and the values of ATen.
#include "bit_identical/program_checks.h"
#include "bit_identical_nets/image_programs.h"
#include "dtensor/events.h"

namespace dtensor::test {
namespace {

void image_programs_have_equal_bits() {
  check_drawn(
      [](Draw& draw, at::ScalarType type) { return ImageProgramBuilder(draw, type).build(draw.integer(1, 4)); });
}

TEST(BitIdenticalImages, ProgramsHaveTheBitsOfOneDevice) {
  check_property("programs of images in a BitIdentical scope", image_programs_have_equal_bits, 80);
}

// Results of more columns than are copied at a time: parts of a line, and parts of an image.
TEST(BitIdenticalImages, LargeConvolutionsHaveTheBitsOfOneDevice) {
  Draw draw(3);
  const auto drawn = [&](const Shape& sizes) { return draw.normal(sizes, at::kFloat); };
  const Program programs[] = {{{drawn({2, 8, 30000}), drawn({4, 8, 9}), drawn({2, 4, 29992})},
                               "conv1d",
                               [](const Tensors& in) { return at::conv1d(in[0], in[1]); }},
                              {{drawn({3, 32, 60, 70}), drawn({40, 32, 3, 3}), drawn({3, 40, 60, 70})},
                               "conv2d",
                               [](const Tensors& in) { return at::conv2d(in[0], in[1], {}, 1, 1); }}};
  for (const Program& program : programs) {
    for (const std::uint64_t seed : {1, 2, 3}) {
      std::optional<Tensors> results;
      EXPECT_NO_THROW(results = require_bits_of_one_device(program, {2, 2}, seed, 32));
      ASSERT_TRUE(results);
      EXPECT_NO_THROW(require_values_of_aten(program, *results, 2e-3));
    }
  }
}

// Bytes that this rank receives in a convolution and in its gradient, whose shards stay where they are.
std::pair<std::int64_t, std::int64_t> bytes_of_convolution(const DeviceMesh& mesh, const Shape& sizes, Placement data) {
  const auto place = [&](const Shape& s, Placement p) {
    return at::Tensor(distribute_tensor(at::ones(s), mesh, {p})).requires_grad_();
  };
  const at::Tensor x = place(sizes, data), w = place({4, 4, 3, 3}, Replicate());
  std::int64_t bytes = 0;
  const EventListener listener([&](const Event& e) { bytes += e.bytes; }, {Event::Kind::collective});
  const BitIdentical scope;
  const at::Tensor y = at::conv2d(x, w, {}, 1, 1), grad = at::ones_like(y);
  const auto forward = bytes;
  y.backward(grad);
  EXPECT_EQ(DTensor(y.detach()).placements()[0], data);
  EXPECT_EQ(DTensor(x.grad()).placements()[0], data);
  EXPECT_EQ(DTensor(w.grad()).placements()[0], Replicate());
  return {forward, bytes - forward};
}

// Forward sends the rows that windows reach. Backward sends rows of the input and of the gradient, and for each image a
// node of the weight's gradient.
TEST(BitIdenticalImages, ShardsOfConvolutionsSendHalosAndNodes) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    constexpr std::int64_t kHalo = 4 * 4 * 32, kNode = 4 * 4 * 4 * 9;
    EXPECT_EQ(bytes_of_convolution(mesh, {1, 4, 64, 32}, Shard(2)), (std::pair{kHalo, 2 * kHalo + kNode}));
    EXPECT_EQ(bytes_of_convolution(mesh, {4, 4, 64, 32}, Shard(0)), (std::pair{std::int64_t{0}, kNode}));
  });
}

}  // namespace
}  // namespace dtensor::test
