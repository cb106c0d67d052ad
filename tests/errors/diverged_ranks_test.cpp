// Diverged ranks: each error names what the other ranks called, for which operator, in which module.
#include "reported_errors.h"

namespace dtensor {
namespace {

using test::Alike;
using test::expect_error;
using test::expect_reported;
using test::texts_of;

const std::string kMlp = "mlp", kAttention = "attn";

at::Tensor sums(const DeviceMesh& mesh, const std::string& axis) {
  Placements placements(static_cast<std::size_t>(mesh.ndim()));
  placements[static_cast<std::size_t>(mesh.dim(axis))] = Partial();
  return DTensor::from_local(at::ones({4, 8}), mesh, placements);
}

TEST(DivergedRanks, DifferentOperatorsOnOneAxis) {
  expect_error(
      {"ranks disagree on", " tp {0, 1}: ", "rank 0 called all_reduce #", "for aten::gelu in h.0.mlp.attn; rank 1 ",
       "called all_gather #", "for full_tensor in h.0.mlp.mlp; last of rank 0: "},
      [](const DeviceMesh& mesh) {
        const bool first = mesh.world().rank() % 2 == 0;
        const at::Tensor x = sums(mesh, "tp"), y = ones({4, 8}, mesh, {Replicate(), Shard(0)});
        const ModuleScope scope(first ? kAttention : kMlp);
        if (mesh.world().rank() > 1) return mesh.world().barrier();  // the other pair only waits
        first ? static_cast<void>(at::gelu(x)) : static_cast<void>(DTensor(y).full_tensor());
      },
      Alike::message);
}

TEST(DivergedRanks, OnlyOneRankCallsAnOperator) {
  const auto texts = texts_of(2, [](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"dp"});
    const at::Tensor x = sums(mesh, "dp");
    const ModuleScope scope(kMlp);
    if (world.rank() == 0) at::gelu(x);
  });
  EXPECT_EQ(texts[1], "no error");
  expect_reported({texts[0]},
                  {"returned from its function while others wait for it", "rank 1 ret", "rank 0 waits in all_reduce #",
                   "on dp {0, 1} for aten::gelu in mlp", "in aten::gelu(f32[4, 8] [P(sum)]) on DeviceMesh("});
}

// Ranks 0 and 3 start with one axis, ranks 1 and 2 with the other.
TEST(DivergedRanks, AxesInDifferentOrder) {
  expect_error(
      {"ranks wait for each other", "waits in all_reduce #", "for aten::gelu in h.0.mlp", "aten::gelu"},
      [](const DeviceMesh& mesh) {
        const at::Tensor x = sums(mesh, "dp"), y = sums(mesh, "tp");
        const bool dp_first = mesh.world().rank() == 0 || mesh.world().rank() == 3;
        at::gelu(dp_first ? x : y);
        at::gelu(dp_first ? y : x);
      },
      Alike::message);
}

// Only the rank with the invalid index gets an error; it catches the error and calls something else.
TEST(DivergedRanks, OneRankCaughtAnErrorOfItsOwn) {
  const auto look_up = [](const DeviceMesh& mesh) {
    const at::Tensor table = ones({4, 8}, mesh, {Replicate()});
    const at::Tensor ids = distribute_tensor(at::tensor({1, 2, 3, 99}, at::kLong), mesh, {Shard(0)});
    return DTensor(at::embedding(table, ids)).full_tensor();
  };
  const auto texts = texts_of(2, [&](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"dp"});
    try {
      look_up(mesh);
    } catch (const c10::Error&) {
      world.barrier();
    }
  });
  expect_reported(texts,
                  {"ranks disagree on", "rank 1 failed: index out of range in self", "; then ranks disagree on",
                   "rank 1 called barrier"},
                  Alike::message);
}

// An error that all ranks caught is not listed as the cause.
TEST(DivergedRanks, ErrorOfAllRanksIsNotReported) {
  const auto texts = texts_of(2, [&](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"dp"});
    EXPECT_THROW(at::mm(sums(mesh, "dp"), sums(mesh, "dp")), c10::Error);
    world.rank() == 0 ? world.barrier() : static_cast<void>(DTensor(sums(mesh, "dp")).full_tensor());
  });
  expect_reported(texts, {"ranks disagree on"}, Alike::message);
  for (const auto& text : texts) EXPECT_EQ(text.find("failed"), std::string::npos) << text;
}

TEST(DivergedRanks, TensorOfAnotherRank) {
  at::Tensor shared;
  const auto texts = texts_of(2, [&](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"dp"});
    if (world.rank() == 0) shared = ones({4, 8}, mesh, {Shard(0)});
    world.barrier();
    const ModuleScope scope(kMlp);
    if (world.rank() == 1) at::gelu(shared);
    world.barrier();
  });
  expect_reported({texts[1]}, {"is used by a thread of rank", "aten::gelu: a DTensor on DeviceMesh(", "of rank 0 of 2",
                               "thread of rank 1 of 2", "full_tensor(), to_local()",
                               "in aten::gelu(f32[4, 8] [S(0)]) on ", "in mlp"});
}

}  // namespace
}  // namespace dtensor
