// Random programs on random meshes and placements have the bits of one device. RC_PARAMS="max_success=5000" runs more.
#include "bit_identical/program_checks.h"
#include "internal/gated_product.h"

namespace dtensor::test {
namespace {

void programs_have_equal_bits() {
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 1u << 30);
  const auto shape = *rc::gen::elementOf(program_meshes());
  const auto type = one_of({at::kFloat, at::kFloat, at::kBFloat16, at::kDouble});
  const auto block = one_of<std::int64_t>({8, 16, 32});
  Draw draw(seed);
  const Program program = ProgramBuilder(draw, type).build(draw.integer(5, 15));
  // Nothing if ATen chose a kernel without a form, such as the math kernel of attention.
  require_bits_of_one_device(program, shape, seed, block);
}

TEST(BitIdentical, ProgramsHaveTheBitsOfOneDevice) {
  check_property("programs in a BitIdentical scope", programs_have_equal_bits, 60);
}

// Of more elements than a thread computes at a time.
TEST(BitIdentical, GatedProductsHaveTheBitsOfOneThread) {
  Draw draw(1);
  Tensors inputs;
  for (int i = 0; i < 3; ++i) inputs.push_back(draw.normal({300, 301}, at::kFloat));
  for (const auto kind : {GateKind::silu, GateKind::gelu, GateKind::gelu_tanh}) {
    const auto compute = with_gradients([=](const Tensors& in) { return gated_product(kind, in[0], in[1]); });
    EXPECT_NO_THROW(require_same_bits(on_one_device(compute, inputs, 2), on_one_device(compute, inputs, 1), "threads"));
  }
}

}  // namespace
}  // namespace dtensor::test
