// KeptResults: what one run of a function gave is given out in another.
#include "dtensor/kept_results.h"

#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

// Of the run that was recorded last; of one that threw nothing is left.
TEST(KeptResults, AreThoseOfTheLastRun) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto whole = at::arange(16, at::kDouble).view({4, 4});
    const at::Tensor x = distribute_tensor(whole, mesh, {Shard(0)}), y = x + 1;
    const KeptResults kept({"aten::mm"});
    const auto run = [&](const at::Tensor& t, bool throws) {
      const KeptResults::Record record(kept);
      const auto product = at::mm(t, t);
      TORCH_CHECK(!throws, "the function ends here");
      return at::mm(product, t);
    };
    EXPECT_EQ(error_of([&] { run(x, true); }), "the function ends here");
    for (const auto& t : {x, y}) {
      const auto expected = run(t, false);
      for (int i = 0; i < 2; ++i) {
        const KeptResults::Replay replay(kept);
        EXPECT_TRUE(at::equal(at::mm(at::mm(t, t), t), expected));
        EXPECT_NE(error_of([&] { at::mm(t, t); }).find("fewer"), std::string::npos);
      }
    }
  });
}

}  // namespace
}  // namespace dtensor::test
