// Random programs on random meshes and placements have the bits of one device. RC_PARAMS="max_success=5000" runs more.
#include "bit_identical/programs.h"
#include "internal/gated_product.h"
#include "support/draws.h"

namespace dtensor::test {
namespace {

const std::vector<Shape> kMeshes{{2}, {3}, {4}, {2, 2}, {2, 3}};

std::string placements_text(const std::vector<Placements>& placements) {
  std::string text;
  for (const Placements& p : placements) text += " " + to_string(p);
  return text;
}

void run_on_mesh(const Shape& shape, const Program& program, const Computation& compute, const Tensors& expected,
                 std::uint64_t seed, std::int64_t block) {
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    std::vector<Placements> placements;
    for (const at::Tensor& t : program.inputs) placements.push_back(any_layout(draw, mesh, t, /*partial=*/false));
    const auto actual = run_placed(mesh, compute, program.inputs, placements, block);
    require_same_bits(actual, expected,
                      program.text + " on " + mesh.str() + placements_text(placements) + " rows " +
                          std::to_string(program.inputs[0].size(0)) + " columns " +
                          std::to_string(program.inputs[0].size(1)));
  });
}

// The results of one device; nothing if an operator is refused by name.
std::optional<Tensors> unless_refused(const Computation& compute, const Tensors& inputs, std::int64_t block,
                                      int threads) {
  try {
    return on_one_device(compute, inputs, threads, block);
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    TORCH_CHECK(what.find("has no bit-identical form") != std::string::npos, what);
    return std::nullopt;
  }
}

void programs_have_equal_bits() {
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 1u << 30);
  const auto shape = *rc::gen::elementOf(kMeshes);
  const auto type = one_of({at::kFloat, at::kFloat, at::kBFloat16, at::kDouble});
  const auto block = one_of<std::int64_t>({8, 16, 32});
  Draw draw(seed);
  const Program program = ProgramBuilder(draw, type).build(draw.integer(5, 15));
  const Computation compute = with_gradients(program.function);
  const auto found = unless_refused(compute, program.inputs, block, 1);
  if (!found) return;  // ATen chose a kernel without a form, such as the math kernel of attention
  const Tensors& expected = *found;
  if (const auto threaded = unless_refused(compute, program.inputs, block, 2)) {
    require_same_bits(*threaded, expected, program.text + " with 2 threads");
  }
  run_on_mesh(shape, program, compute, expected, seed, block);
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
