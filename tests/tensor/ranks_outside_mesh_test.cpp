// Ranks outside a mesh run the same program and do not participate: their tensors have the sizes and specs of the
// members.
#include <ATen/CPUGeneratorImpl.h>

#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

// Rank 2 is outside.
void with_outsider(const std::function<void(const DeviceMesh&)>& body) {
  run_local(3, [&](Communicator world) { body(init_device_mesh(world, at::kCPU, {2})); });
}

at::Tensor numbers(const std::vector<std::int64_t>& sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kDouble).view(sizes) + 1;
}

// Compares sizes on all ranks, and values on members.
void expect_here(const at::Tensor& actual, const at::Tensor& expected, const char* what) {
  EXPECT_EQ(actual.sizes(), expected.sizes()) << what;
  if (DTensor(actual).mesh().is_member()) expect_close(actual, expected, what, 1e-9);
}

TEST(NonMemberRanks, ViewsInPlace) {
  with_outsider([](const DeviceMesh& mesh) {
    const at::Tensor x = distribute_tensor(numbers({4, 2}), mesh, {Shard(0)}) * 2;
    x.t_();
    expect_here(x, numbers({4, 2}).t() * 2, "t_");
    x.unsqueeze_(0);
    expect_here(x + 1, numbers({4, 2}).t().unsqueeze(0) * 2 + 1, "unsqueeze_");
  });
}

TEST(NonMemberRanks, StridedViewsReachTheirBase) {
  with_outsider([](const DeviceMesh& mesh) {
    for (const auto& p : {Placement(Shard(0)), Placement(Replicate())}) {
      const at::Tensor x = distribute_tensor(numbers({4, 4}), mesh, {p});
      const at::Tensor diagonal = at::as_strided(x, {4}, {5});
      x.mul_(2);
      expect_here(diagonal + 0, numbers({4, 4}).diagonal() * 2, "as_strided");
      diagonal.fill_(0);
      expect_here(x, numbers({4, 4}).mul_(2).fill_diagonal_(0), "after a write to the view");
    }
  });
}

TEST(NonMemberRanks, OutArgumentsAreResized) {
  with_outsider([](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(numbers({4, 2}), mesh, {Shard(0)});
    at::Tensor out = distribute_tensor(at::zeros({0}, at::kDouble), mesh, {Replicate()});
    at::add_out(out, x, x);
    expect_here(out + x, numbers({4, 2}) * 3, "out=");
  });
}

TEST(NonMemberRanks, GradientsOfDistributedTensors) {
  with_outsider([](const DeviceMesh& mesh) {
    const auto p = numbers({4, 2}).requires_grad_();
    const auto x = distribute_tensor(p, mesh, {Shard(0)});
    (x * x).sum().backward();
    EXPECT_EQ(p.grad().defined(), mesh.is_member());
    if (mesh.is_member()) expect_close(p.grad(), p.detach() * 2, "gradient");
  });
}

TEST(NonMemberRanks, InversesAreCheckedByMembers) {
  with_outsider([](const DeviceMesh& mesh) {
    const auto full = at::eye(4, at::kDouble).expand({2, 4, 4}) * 2;
    const at::Tensor x = distribute_tensor(full.contiguous(), mesh, {Shard(0)});
    expect_here(at::linalg_inv(x), full / 4, "inverse");
    expect_here(at::linalg_cholesky(x), full / std::sqrt(2.0), "cholesky");
    expect_here(at::cholesky_inverse(x), full / 8, "cholesky_inverse");
  });
}

TEST(NonMemberRanks, FromLocalAcceptsGlobalSizes) {
  with_outsider([](const DeviceMesh& mesh) {
    const auto local = mesh.is_member() ? numbers({4, 3}) : at::empty({0}, at::kDouble);
    for (const std::int64_t dim : {1, -1}) {
      EXPECT_EQ(DTensor::from_local(local, mesh, {Shard(dim)}, {4, 6}).spec_str(), "f64[4, 6] on [2] [S(1)]");
    }
  });
}

TEST(NonMemberRanks, FromLocalReceivesTheDtype) {
  with_outsider([](const DeviceMesh& mesh) {
    const auto local = mesh.is_member() ? numbers({2, 2}) : at::Tensor();
    const auto error = error_of([&] { DTensor::from_local(local, mesh, {Shard(0)}, {4, 2}); });
    EXPECT_EQ(error.find("from_local: expected a defined tensor") != std::string::npos, !mesh.is_member()) << error;
  });
}

// Otherwise the world's count of random operators would differ between ranks.
TEST(NonMemberRanks, GeneratorIsRefusedOnEveryRankWithoutCounting) {
  with_outsider([](const DeviceMesh& mesh) {
    const at::Tensor x = distribute_tensor(numbers({4, 2}), mesh, {Shard(0)});
    at::Tensor out = distribute_tensor(at::zeros({4}, at::kDouble), mesh, {Shard(0)});
    const auto generator = at::detail::createCPUGenerator(1);
    const auto before = get_rng_state(mesh);
    const std::vector<std::function<void()>> calls{
        [&] { x.normal_(0, 1, generator); },
        [&] { at::bernoulli(x / 10, generator); },
        [&] { at::multinomial(x, 1, false, generator); },
        [&] { at::normal_out(out, 0., 1., {4}, generator); },
        [&] { at::randint_out(out, 10, {4}, generator); },
    };
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const auto error = error_of(calls[i]);
      EXPECT_NE(error.find("expected no generator"), std::string::npos) << i << ": " << error;
      EXPECT_EQ(get_rng_state(mesh), before) << i;
    }
  });
}

TEST(NonMemberRanks, DistributeTensorFromGivesAHandle) {
  with_outsider([](const DeviceMesh& mesh) {
    const auto mine = numbers({4, 2}) * static_cast<double>(mesh.world().rank());
    expect_here(distribute_tensor_from(mine, mesh, {Shard(0)}, 1), numbers({4, 2}), "of rank 1");
  });
}

TEST(NonMemberRanks, LiteralTensorsInAScope) {
  with_outsider([](const DeviceMesh& mesh) {
    const at::Tensor x = [&] {
      const MeshScope scope(mesh, {Shard(0)});
      return at::tensor(std::vector<float>{1, 2, 3});
    }();
    expect_here(x * 2, at::arange(2, 8, 2, at::kFloat), "at::tensor");
  });
}

TEST(NonMemberRanks, DataDependentSizesAreAnErrorOutsideTheMesh) {
  with_outsider([](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(numbers({4, 2}), mesh, {Shard(0)});
    const auto error = error_of([&] { at::nonzero(x); });
    EXPECT_EQ(error.find("world rank 2, which is outside the mesh") != std::string::npos, !mesh.is_member()) << error;
  });
}

}  // namespace
}  // namespace dtensor::test
