// Norms of lists on several meshes: each logical element counts once, scalars of one mesh and axis set share a
// collective, and a rank outside a mesh skips it.
#include <atomic>

#include "dtensor/events.h"
#include "local_kernels/local_kernel_fixture.h"
#include "mesh/mesh_impl.h"

namespace dtensor::testing {
namespace {

struct Entry {
  at::Tensor full_tensor;
  Placements placements;
  int mesh;  // 0: all four ranks as 2 x 2; 1: all four ranks in one dimension; 2: ranks 0 and 1 only
};

std::vector<DeviceMesh> meshes_of(const Communicator& world) {
  return {init_device_mesh(world, at::kCPU, {2, 2}), init_device_mesh(world, at::kCPU, {4}),
          device_mesh(world, at::kCPU, {0, 1}, {2})};
}

// Returns one norm per entry on this rank; undefined outside the mesh.
std::vector<at::Tensor> norms_on_rank(const std::vector<Entry>& entries, double p, const Communicator& world) {
  const auto meshes = meshes_of(world);
  std::vector<at::Tensor> locals;
  std::vector<SpecPtr> inputs, outputs;
  for (const auto& e : entries) {
    const auto& mesh = meshes[e.mesh];
    locals.push_back(mesh.is_member() ? slice_for(e.full_tensor, e.placements, *impl_of(mesh)) : at::Tensor());
    inputs.push_back(spec_for(e.full_tensor, e.placements, mesh));
    outputs.push_back(spec_for(at::zeros({}), Placements(e.placements.size()), mesh));
  }
  torch::jit::Stack stack{locals, at::Scalar(p), c10::IValue()};
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_foreach_norm", "Scalar");
  Decision decision;
  const OpInfo info(op);
  LocalCall call{info, stack, decision, inputs, outputs, as_mesh_impl(*impl_of(meshes[0]))};
  find_local_kernel("foreach_norm")(call);
  return stack.at(0).toTensorVector();
}

Entry any_entry() {
  Entry e{at::randn(any_sizes(1, 2, 1)), {}, static_cast<int>(pick(0, 2))};
  const std::vector<std::vector<std::int64_t>> shapes{{2, 2}, {4}, {2}};
  e.placements = any_shards(shapes[e.mesh], all_dims(e.full_tensor.dim()));
  return e;
}

RC_GTEST_PROP(ForeachNorm, NormsOnMixedMeshesEqualOneDevice, ()) {
  any_mesh();  // seeds ATen's generator
  std::vector<Entry> entries;
  for (std::int64_t i = pick(1, 6); i > 0; --i) entries.push_back(any_entry());
  const double p = *rc::gen::element(1.0, 2.0, 3.0, std::numeric_limits<double>::infinity());
  std::vector<std::vector<at::Tensor>> results(4);
  run_local(4, [&](Communicator world) { results[world.rank()] = norms_on_rank(entries, p, world); });
  for (std::size_t i = 0; i < entries.size(); ++i) {
    for (int rank = 0; rank < 4; ++rank) {
      const bool member = entries[i].mesh != 2 || rank < 2;
      RC_ASSERT(results[rank][i].defined() == member);
      if (member) check_close(at::linalg_vector_norm(entries[i].full_tensor, p), results[rank][i], "norm");
    }
  }
}

TEST(ForeachNorm, OneCollectivePerMeshAndAxes) {
  const auto x = at::randn({4, 4});
  const std::vector<Entry> entries{{x, {Shard(0), Shard(1)}, 0},       {x, {Shard(0), Replicate()}, 0},
                                   {x, {Shard(1), Replicate()}, 0},    {x, {Shard(1), Shard(0)}, 0},
                                   {x, {Replicate(), Replicate()}, 0}, {x, {Shard(0)}, 1}};
  std::atomic<int> collectives{0};
  run_local(4, [&](Communicator world) {
    norms_on_rank(entries, 2, world);  // creates the communicators
    EventListener listener([&](const Event& e) { collectives += e.kind == Event::Kind::collective; });
    norms_on_rank(entries, 2, world);
  });
  EXPECT_EQ(collectives, 4 * 3);
}

TEST(ForeachNorm, ManyLargeValuesDoNotOverflow) {
  const std::vector<Entry> entries{{at::full({1000}, 1e18f), {Shard(0)}, 1}, {at::full({8}, 1e19f), {Shard(0)}, 1}};
  run_local(4, [&](Communicator world) {
    const auto norms = norms_on_rank(entries, 2, world);
    check_close(at::full({}, 1e18f * std::sqrt(1000.f)), norms[0], "norm of 1e18");
    check_close(at::full({}, 1e19f * std::sqrt(8.f)), norms[1], "norm of 1e19");
  });
}

}  // namespace
}  // namespace dtensor::testing
