// KVCache: its contents are valid in every mode, scope and rank, and copies are independent.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "dtensor/dry_run.h"
#include "dtensor/nn/decoder.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;
using nn::KVCache;

// The prompt is appended in inference mode and the next token outside it, and vice versa.
TEST(KvCache, StoresTokensOfEveryMode) {
  for (const bool inference_first : {true, false}) {
    KVCache cache(1, 4);
    const at::Tensor keys = at::randn({1, 2, 4, 3}), values = at::randn({1, 2, 4, 5});
    for (const bool first : {true, false}) {
      const c10::InferenceMode mode(first == inference_first);
      const at::NoGradGuard no_grad;
      const std::int64_t begin = first ? 0 : 3, count = first ? 3 : 1;
      cache.append(0, keys.narrow(2, begin, count), values.narrow(2, begin, count));
      cache.advance(count);
    }
    EXPECT_TRUE(at::equal(cache.keys(0), keys));
    EXPECT_TRUE(at::equal(cache.values(0), values));
  }
}

// Two layers, two heads. With `latent`, latent attention as in DeepSeek.
nn::DecoderConfig config(bool latent = false) {
  nn::DecoderConfig c;
  c.vocabulary = 11, c.hidden = 8, c.layers = 2, c.ffn = 12, c.heads = 2;
  c.ropes = {{.size = latent ? 2 : 4}};
  if (latent) c.latent = nn::LatentAttention{.kv_rank = 4, .rope_size = 2, .nope_size = 2, .value_size = 3};
  return c;
}

struct Model {
  nn::Decoder decoder;

  explicit Model(bool latent = false) : decoder(config(latent)) {
    test::Draw draw(5);
    const at::NoGradGuard no_grad;
    for (const auto& [name, t] : decoder.named_parameters()) t->copy_(draw.normal(t->sizes().vec(), at::kFloat));
  }
  // Heads are split over the mesh dimension "tp", if there is one.
  explicit Model(const DeviceMesh& mesh, bool latent = false) : Model(latent) {
    if (mesh.names()[0] == "tp") parallelize(decoder, mesh, nn::tensor_parallel_plan(config(latent)));
    for (const auto& [name, t] : decoder.named_parameters()) {
      if (!is_dtensor(*t)) *t = distribute_tensor(*t, mesh, Placements(static_cast<std::size_t>(mesh.ndim())));
    }
  }
  at::Tensor operator()(const std::vector<std::int64_t>& tokens, KVCache& cache) const {
    const at::NoGradGuard no_grad;
    return decoder.forward(at::tensor(tokens, at::kLong).unsqueeze(0), &cache);
  }
  at::Tensor operator()(const DTensor& ids, KVCache& cache) const {
    const at::NoGradGuard no_grad;
    return decoder.forward(ids, &cache);
  }
};

at::Tensor prompt(std::int64_t rows = 1) { return at::arange(3 * rows).view({rows, 3}); }

bool near(const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 1e-4, 1e-4); }

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

// One prompt with two continuations.
TEST(KvCache, CopiesAreIndependent) {
  const Model model;
  KVCache full(2, 8), one(2, 8), other(2, 8);
  const at::Tensor wanted = model({1, 2, 3, 4, 5}, full);
  model({1, 2, 3}, one);
  KVCache two = one;
  other = one;
  model({4}, one), model({7}, two), model({9}, other);
  EXPECT_TRUE(near(model({5}, one).select(1, 0), wanted.select(1, 4)));
  EXPECT_EQ(two.bytes(), one.bytes());
  const KVCache moved = std::move(two);
  EXPECT_EQ(moved.length(), 4);
}

// Padding the values of latent attention for a flash kernel would copy the cache at each token.
TEST(KvCache, ATokenDoesNotCopyTheValues) {
  for (const std::int64_t tokens : {1, 2}) {
    const auto report = dry_run({}, [&](const Communicator&) {
      const Model model(/*latent=*/true);
      KVCache cache(2, 8);
      model({1, 2, 3}, cache);
      StepRecorder::begin_step();
      model(std::vector<std::int64_t>(static_cast<std::size_t>(tokens), 4), cache);
    });
    EXPECT_EQ(report.operators.count("aten::fill_"), tokens == 1 ? 0 : 1) << tokens;  // of the padding
  }
}

TEST(KvCache, RefusesOtherSizesUnlessEmpty) {
  const at::NoGradGuard no_grad;
  const auto made = [](std::int64_t batch, std::int64_t heads, std::int64_t tokens, std::int64_t size) {
    return at::ones({batch, heads, tokens, size});
  };
  KVCache cache(2, 8);
  EXPECT_THROW(cache.append(0, made(2, 2, 3, 4), made(2, 2, 1, 4)), c10::Error);
  EXPECT_THROW(cache.append(0, made(2, 2, 3, 4), made(1, 2, 3, 4)), c10::Error);
  cache.append(0, made(2, 2, 3, 4), made(2, 2, 3, 5));
  cache.advance(3);
  EXPECT_THROW(cache.append(0, made(2, 2, 1, 1), made(2, 2, 1, 5)), c10::Error);
  EXPECT_THROW(cache.append(0, made(2, 2, 1, 4), made(2, 2, 1, 1)), c10::Error);
  EXPECT_THROW(cache.append(1, made(2, 2, 1, 4), made(2, 2, 1, 5)), c10::Error);  // layer 1 lacks the previous tokens
  EXPECT_NE(error_of([&] { cache.append(0, made(1, 2, 1, 4), made(1, 2, 1, 5)); }).find("for a cache of sizes"),
            std::string::npos);
  cache.truncate(0);
  cache.append(0, made(3, 1, 2, 6), made(3, 1, 2, 7));
  cache.advance(2);
  EXPECT_TRUE(at::equal(cache.values(0), made(3, 1, 2, 7)));
}

// Otherwise the rank with all rows would find keys of unchanged sizes and wait for the other rank.
TEST(KvCache, ChangedBatchPlacementIsOneErrorOnAllRanks) {
  for (const char* axis : {"", "dp"}) {
    run_local(2, [&](Communicator world) {
      const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 1}, {"dp", "one"});
      const Model model(mesh, true);
      const auto ids = [&](const Placement& p, const Placement& of_one = Replicate()) {
        return distribute_tensor(prompt(), mesh, {p, of_one});
      };
      KVCache cache(2, 8, axis);
      model(ids(Replicate(), Shard(0)), cache);
      cache.truncate(2);
      EXPECT_EQ(error_of([&] { model(ids(Replicate()), cache); }), "");  // one rank has the full batch in both cases
      cache.truncate(3);
      const auto error = error_of([&] { model(ids(Shard(0)), cache); });
      EXPECT_NE(error.find("it has 3 tokens of 1 sequences and 2 heads"), std::string::npos) << error;
      cache.truncate(0);
      const bool shared = *axis != 0;
      EXPECT_EQ(error_of([&] { model(ids(Shard(0)), cache); }).find("expected a sequence axis that replicates keys") !=
                    std::string::npos,
                shared);
    });
  }
}

// Regular tokens belong to one rank, which would wait for the ranks that share the tokens of the mesh.
TEST(KvCache, AcceptsRegularTokensAfterMeshTokensOnceEmpty) {
  run_local(2, [&](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"sp"});
    const Model model(mesh), regular;
    KVCache cache(2, 8, "sp"), full(2, 8);
    model(distribute_tensor(prompt(), mesh, {Replicate()}), cache);
    const auto error = error_of([&] { regular({4}, cache); });
    EXPECT_NE(error.find("it has 3 tokens"), std::string::npos) << error;
    EXPECT_NE(error.find("further tokens are regular tensors"), std::string::npos) << error;
    cache.truncate(0);
    if (world.rank() == 1) return;
    for (const auto& tokens : std::vector<std::vector<std::int64_t>>{{1, 2, 3}, {4}}) {
      EXPECT_TRUE(near(regular(tokens, cache), regular(tokens, full)));
    }
    EXPECT_TRUE(at::equal(cache.keys(1), full.keys(1)));
  });
}

TEST(KvCache, RanksOutsideTheMeshStoreNothing) {
  for (const bool latent : {false, true}) {
    run_local(3, [&](Communicator world) {
      const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"tp"});
      const Model regular(latent), model(mesh, latent);
      KVCache full(2, 8), cache(2, 8);
      const at::Tensor wanted = regular({0, 1, 2}, full);
      const at::Tensor found = model(distribute_tensor(prompt(), mesh, {Replicate()}), cache);
      EXPECT_EQ(found.sizes(), wanted.sizes());
      EXPECT_EQ(cache.keys(1).sizes(), full.keys(1).sizes());
      EXPECT_EQ(cache.length(), 3);
      if (mesh.is_member()) {
        EXPECT_TRUE(near(DTensor(found).full_tensor(), wanted));
      }
    });
  }
}

// Inside a MeshScope, local tensors stay regular, and angles cached there are valid afterwards.
TEST(KvCache, MeshScopeDoesNotChangeResults) {
  run_local(2, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"tp"});
    const Model regular, model(mesh);
    KVCache full(2, 8), within(2, 8), afterwards(2, 8);
    const at::Tensor wanted = regular({0, 1, 2}, full), ids = prompt();
    const DTensor tokens = distribute_tensor(ids, mesh, {Replicate()});
    {
      const MeshScope scope(mesh);
      EXPECT_TRUE(near(DTensor(model(tokens, within)).full_tensor(), wanted));
      const KVCache copy = within;
      EXPECT_TRUE(near(DTensor(copy.keys(0)).full_tensor(), full.keys(0)));
      EXPECT_FALSE(is_dtensor(nn::Rope({.size = 4}).angles(0, 3, at::TensorOptions(at::kFloat)).cos));
    }
    EXPECT_TRUE(near(DTensor(model(tokens, afterwards)).full_tensor(), wanted));
  });
}

}  // namespace
