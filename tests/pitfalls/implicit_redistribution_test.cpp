// Reports of redistributions that the program did not request: ImplicitRedistributionScope and events of operators.
#include "pitfalls/all_placements.h"

namespace dtensor::test {
namespace {

struct Said : c10::WarningHandler {
  void process(const c10::Warning& warning) override { text += warning.msg() + "\n"; }
  std::string text;
};

TEST(ImplicitRedistribution, AreRefusedWarnedOrLogged) {
  for_all("an operator whose operands need redistribution", [](const DeviceMesh& mesh, Draw& draw) {
    const auto x = draw.normal(draw.sizes(2, 1, 9));
    const auto a = distribute_tensor(x, mesh, any_placements(draw, mesh, 2));
    const auto b = distribute_tensor(x, mesh, any_placements(draw, mesh, 2));
    // Copies, since a Partial that was reduced once keeps its reduced form.
    const auto run = [&] { return at::mul(a.clone(), b.clone()).cumsum(0); };
    std::int64_t logged = 0;
    std::string names;
    {
      const EventListener listener(
          [&](const Event& e) {
            logged += e.bytes;
            if (e.bytes > 0) names += e.name;
          },
          {Event::Kind::op});
      require_close(run(), x.mul(x).cumsum(0), "off");
    }
    Said said;
    {
      const c10::WarningUtils::WarningHandlerGuard guard(&said);
      const ImplicitRedistributionScope warn(ImplicitRedistribution::warn);
      require_close(run(), x.mul(x).cumsum(0), "warned");
    }
    const ImplicitRedistributionScope strict;
    const auto what = a.spec_str() + b.spec_str() + said.text;
    TORCH_CHECK(raises(mesh, [&] { run(); }) == (logged > 0), what, " logged ", logged);
    const bool speaks = mesh.ranks()[0] == mesh.world().rank();  // One rank reports for all, since all texts are equal.
    TORCH_CHECK((said.text.find(c10::str("moves ")) != std::string::npos) == (logged > 0 && speaks), what);
    TORCH_CHECK((logged > 0) == (names.find("aten::") != std::string::npos), names);
    const ImplicitRedistributionScope off(ImplicitRedistribution::allow);  // The innermost scope is current.
    require_close(run(), x.mul(x).cumsum(0), "off again");
  });
}

// An explicit redistribution is not implicit.
TEST(ImplicitRedistribution, ExplicitRedistributionsAreNotReported) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    const auto regular = Draw(1).normal({6, 5});
    const auto x = distribute_tensor(regular, mesh, {Shard(0), Shard(1)});
    const auto stored = distribute_tensor(regular, mesh, {Shard(0).as_storage(), Replicate()});
    const ImplicitRedistributionScope strict;
    require_same(x.full_tensor(), regular, "full_tensor");
    require_same(x.redistribute({Shard(1), Replicate()}).full_tensor(), regular, "redistribute");
    require_close(at::mm(stored, stored.t()), at::mm(regular, regular.t()), "a stored parameter");
    TORCH_CHECK(std::abs(x.sum().item<double>() - regular.sum().item<double>()) < 1e-12);
    EXPECT_TRUE(raises(mesh, [&] { at::mm(x, x.t()).relu(); }));
  });
}

// On an axis of one rank any placements are equivalent: a tensor-parallel model causes no redistribution there.
TEST(ImplicitRedistribution, AxisOfOneRankCausesNone) {
  on_mesh({2, 1}, [](const DeviceMesh& mesh) {
    const auto regular = Draw(1).normal({6, 5});
    const auto x = distribute_tensor(regular, mesh, {Shard(0), Shard(0)});
    const ImplicitRedistributionScope strict;
    for (const Placement& one : {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate())}) {
      const auto stored = distribute_tensor(regular, mesh, {Shard(0).as_storage(), one});
      require_close(at::linear(x, stored), at::linear(regular, regular), c10::str(one));
    }
  });
}

}  // namespace
}  // namespace dtensor::test
