// The printed tree of modules.
#include "dtensor/nn.h"

#include <gtest/gtest.h>

#include <sstream>

#include "support/ranks.h"

namespace dtensor::test {
namespace {

struct Tower : nn::Module {
  Tower() : scale(at::ones({2})), first(4, 2), second(4, 2), last(2, 3, /*bias=*/false) {
    register_parameter("scale", scale);
    register_buffer("steps", steps);
    register_module("first", first);
    register_module("second", second);
    register_module("last", last);
  }
  at::Tensor scale, steps = at::zeros({}, at::kLong);
  nn::Linear first, second, last;
};

struct Outer : nn::Module {
  Outer() { register_module("tower", tower); }
  Tower tower;
};

TEST(PrintModule, ShowsTypesNamesTensorsAndEqualNeighborsOnce) {
  Tower tower;
  std::ostringstream out;
  out << tower;
  EXPECT_EQ(out.str(),
            "Tower(\n"
            "  scale: Float[2], steps: Long[]\n"
            "  (first to second): 2 x Linear(weight: Float[2, 4], bias: Float[2])\n"
            "  (last): Linear(weight: Float[3, 2])\n"
            ")");
}

TEST(PrintModule, ShowsPlacementsAndIndentsChildren) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Outer outer;
    outer.distribute(
        mesh, [](const std::string&, const at::Tensor& t) { return Placements{t.dim() > 0 ? Shard(0) : Replicate()}; });
    const auto text = nn::to_string(outer);
    EXPECT_NE(text.find("Outer(\n  (tower): Tower(\n    scale: f32[2] on [2] [S(0)], "), std::string::npos) << text;
    EXPECT_NE(text.find("\n    (last): Linear(weight: f32[3, 2] on [2] [S(0)])\n  )\n)"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace dtensor::test
