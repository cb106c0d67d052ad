// Tensors of a collective may be dropped before it has run.
#include <ATen/ATen.h>

#include "fake_cuda/calls.h"

namespace dtensor::test::fake_cuda {
namespace {

// A tensor of this shape; without contiguous memory if `strided`.
at::Tensor values(at::IntArrayRef sizes, bool strided) {
  const auto options = at::TensorOptions(at::kFloat).device(at::kCUDA);
  return strided ? at::ones({sizes[0], 2 * sizes[1]}, options).slice(1, 0, 2 * sizes[1], 2) : at::ones(sizes, options);
}

// Runs a collective and drops its tensors before waiting.
void drop_tensors(const Communicator& world, bool strided, int kind) {
  std::vector<at::Tensor> many;
  for (int i = 0; i < world.size(); ++i) many.push_back(values({3, 4}, strided));
  const auto one = values({3, 4}, strided);
  Work work;
  if (kind == 0) work = world.all_gather(many, one);
  if (kind == 1) work = world.reduce_scatter(one, many, ReduceOp::sum);
  if (kind == 2) work = world.all_reduce(one, ReduceOp::sum);
  if (kind == 3) work = world.broadcast(one, 0);
}

TEST(FakeLifetime, TensorsMayBeDroppedBeforeTheWait) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (const bool strided : {false, true}) {
      for (int kind = 0; kind < 4; ++kind) {
        SCOPED_TRACE(c10::str(strided ? "strided, " : "contiguous, ", "collective ", kind));
        expect_none(errors_of_ranks(2, {seed}, [&](const Communicator& world) { drop_tensors(world, strided, kind); }));
      }
    }
  }
}

}  // namespace
}  // namespace dtensor::test::fake_cuda
