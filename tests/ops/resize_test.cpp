// resize_ and resize_as_ with a memory format: the elements keep their order in memory, and are read with the strides
// of the new format.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pitfalls/all_placements.h"

namespace dtensor::test {
namespace {

using Resize = std::function<void(const at::Tensor&)>;

TEST(Resize, ReadsMemoryInTheRequestedFormat) {
  const auto like = at::empty({1, 2, 3, 4}).contiguous(at::MemoryFormat::ChannelsLast);
  const std::pair<const char*, Resize> resizes[] = {
      {"same sizes",
       [](const auto& t) {
         t.resize_({1, 2, 3, 4}, at::MemoryFormat::ChannelsLast);
       }},
      {"other sizes",
       [](const auto& t) {
         t.resize_({1, 4, 3, 2}, at::MemoryFormat::ChannelsLast);
       }},
      {"contiguous",
       [](const auto& t) {
         t.resize_({1, 2, 3, 4}, at::MemoryFormat::Contiguous);
       }},
      {"as another", [&](const auto& t) { t.resize_as_(like, at::MemoryFormat::Preserve); }},
      {"sizes alone", [&](const auto& t) { t.resize_as_(like); }}};
  for (const auto& [name, resize] : resizes) {
    on_mesh({2}, [&, name = name, &resize = resize](const DeviceMesh& mesh) {
      for (const Placement p : {Placement(Shard(1)), Placement(Shard(3)), Placement(Replicate())}) {
        for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
          auto regular = at::arange(24.0).view({1, 2, 3, 4}).contiguous(format);
          const auto x = distribute_tensor(regular.clone(), mesh, {p});
          resize(regular);
          resize(x);
          EXPECT_EQ(x.strides(), regular.strides()) << name;
          require_close(x, regular, name);
        }
      }
    });
  }
}

}  // namespace
}  // namespace dtensor::test
