// SelectiveCheckpointCache: results that one run of a function recorded are returned in its recomputation.
#include "internal/selective_checkpoint_cache.h"

#include "dtensor/checkpoint_activations.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

// Returns the results of the last recorded run; a run that threw records none.
TEST(SelectiveCheckpointCache, ReturnsResultsOfTheLastRun) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto full = at::arange(16, at::kDouble).view({4, 4});
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)}), y = x + 1;
    const SelectiveCheckpointCache kept({"aten::mm"});
    const auto run = [&](const at::Tensor& t, bool throws) {
      const SelectiveCheckpointCache::Record record(kept);
      const auto product = at::mm(t, t);
      TORCH_CHECK(!throws, "the function ends here");
      return at::mm(product, t);
    };
    EXPECT_EQ(error_of([&] { run(x, true); }), "the function ends here");
    for (const auto& t : {x, y}) {
      const auto expected = run(t, false);
      for (int i = 0; i < 2; ++i) {
        const SelectiveCheckpointCache::Replay replay(kept);
        EXPECT_TRUE(at::equal(at::mm(at::mm(t, t), t), expected));
        EXPECT_NE(error_of([&] { at::mm(t, t); }).find("fewer"), std::string::npos);
      }
    }
  });
}

// Scopes own what they record into and replay, so their handle may be destroyed before.
TEST(SelectiveCheckpointCache, ScopesOutliveTheirHandle) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor x = distribute_tensor(at::arange(16, at::kDouble).view({4, 4}), mesh, {Shard(0)});
    const auto product = at::mm(x, x);
    SelectiveCheckpointCache kept({"aten::mm"});
    {
      const SelectiveCheckpointCache::Record record(kept);
      kept = SelectiveCheckpointCache({"aten::mm"});
      EXPECT_TRUE(at::equal(at::mm(x, x), product));
    }
    {
      const SelectiveCheckpointCache::Record record(kept);
      at::mm(x, x);
    }
    const SelectiveCheckpointCache::Replay replay(kept);
    kept = SelectiveCheckpointCache();
    EXPECT_TRUE(at::equal(at::mm(x, x), product));
    EXPECT_NE(error_of([&] { at::mm(x, x); }).find("fewer"), std::string::npos) << "one was recorded";
  });
}

// A function that skips its first product would get the result of the other one, which has the same sizes.
TEST(SelectiveCheckpointCache, SkippedCallIsAnError) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor x = distribute_tensor(at::ones({4, 4}), mesh, {Shard(0)}).requires_grad_();
    const auto once = [made = at::Tensor()](const at::Tensor& in) mutable {
      if (!made.defined()) made = at::mm(in.detach(), in.detach());
      return at::mm(in, made * 2).exp();
    };
    const auto y = checkpoint(once, x, {.keep = {"aten::mm"}});
    const auto text = error_of([&] { y.sum().backward(); });
    EXPECT_NE(text.find("the first run made 2 calls with kept results, the recomputation 1"), std::string::npos)
        << text;
  });
}

}  // namespace
}  // namespace dtensor::test
