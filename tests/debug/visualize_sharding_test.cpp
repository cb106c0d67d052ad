// Visualizations of meshes whose dimension names have special characters of SVG.
#include <gtest/gtest.h>

#include "dtensor/debug.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

TEST(VisualizationNames, AreEscaped) {
  run_local(2, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"a<b&c"});
    const auto drawing = visualize_sharding_svg({4, 4}, mesh, {Shard(0)});
    EXPECT_EQ(drawing.find("a<b&c"), std::string::npos);
    EXPECT_NE(drawing.find("a&lt;b&amp;c"), std::string::npos);
    EXPECT_NE(visualize_sharding({4, 4}, mesh, {Shard(0)}).find("a<b&c"), std::string::npos);
  });
}

TEST(VisualizationLegend, SaysWhatNumbersMean) {
  run_local(2, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"tp"});
    const auto drawing = visualize_sharding_svg({4, 4, 4}, mesh, {Shard(2)});
    EXPECT_NE(drawing.find("in a cell: the ranks that store it; at its sides: elements of dimension 0 and 2<"),
              std::string::npos)
        << drawing;
  });
}

}  // namespace
}  // namespace dtensor::test
