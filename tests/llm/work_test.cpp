// Work of a decoder on a mesh: collectives, cached decisions, memory of keys and values, bytes read.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "dtensor/debug.h"
#include "dtensor/inspect.h"
#include "llm/commands/generate.h"
#include "recorded.h"
#include "support/bytes_read.h"
#include "support/folder.h"

namespace {

using dtensor::Communicator;
using dtensor::DTensor;
using dtensor::run_local;
using dtensor::test::bytes_read;

constexpr const char* kDense[] = {"llama2", "llama3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2"};

// Runs a prompt and further tokens with one cache.
struct Steps {
  const llm::Model& model;
  dtensor::nn::KVCache cache{model.decoder->config().layers, 32};

  at::Tensor operator()(const std::vector<std::int64_t>& tokens) {
    const at::NoGradGuard no_grad;
    return model.decoder->forward(model.place(at::tensor(tokens, at::kLong).unsqueeze(0)), &cache);
  }
};

// The embedding, and attention and MLP of each layer, each sum batch x sequence x hidden over tp; the head's logits are
// gathered. Uneven heads add no communication, since no head is divided.
TEST(Work, TensorParallelismUsesTwoAllReducesPerLayer) {
  for (const std::string family : kDense) {
    for (const std::int64_t ranks : {2, 3}) {
      const auto tokens = recorded::expected(family).tokens;
      run_local(static_cast<int>(ranks), [&](Communicator world) {
        const auto model = recorded::model(family, {.tp = ranks}, world);
        const auto& config = model.decoder->config();
        Steps steps{model};
        steps(tokens);
        steps({1});
        for (const bool prompt : {true, false}) {
          if (prompt) steps.cache.truncate(0);
          const dtensor::CommDebugMode comm;
          steps(prompt ? tokens : std::vector<std::int64_t>{1});
          const auto reduced = comm.total("all_reduce", "tp");
          EXPECT_EQ(reduced.calls, 2 * config.layers + 1) << family << " on " << ranks << "\n" << comm.table();
          EXPECT_EQ(comm.total("all_gather", "tp").calls, 1) << family << " on " << ranks << "\n" << comm.table();
          EXPECT_EQ(comm.total().calls, 2 * config.layers + 2) << family << " on " << ranks << "\n" << comm.table();
        }
      });
    }
  }
}

TEST(Work, NoCacheMissesAfterTheFirstToken) {
  for (const auto& family : recorded::families()) {
    for (const llm::MeshSizes& mesh : std::vector<llm::MeshSizes>{{.tp = 2}, {.tp = 3}, {.shard = 2}}) {
      run_local(static_cast<int>(mesh.ranks()), [&](Communicator world) {
        const auto model = recorded::model(family, mesh, world);
        Steps steps{model};
        steps(recorded::expected(family).tokens);
        steps({1});
        const auto before = dtensor::cache_stats().misses;
        for (std::int64_t token = 2; token < 12; ++token) steps({token});
        EXPECT_EQ(dtensor::cache_stats().misses, before) << family << " on " << mesh.str();
      });
    }
  }
}

// Three key heads over two ranks: two and one. Memory for the capacity is allocated once.
TEST(Work, KeysAndValuesStaySplitByHeads) {
  run_local(2, [](Communicator world) {
    const auto model = recorded::model("llama3", {.tp = 2}, world);
    const auto& config = model.decoder->config();
    Steps steps{model};
    steps({1, 2, 3});
    const auto bytes = steps.cache.bytes();
    const std::int64_t heads = world.rank() == 0 ? 2 : 1;
    EXPECT_EQ(bytes, config.layers * 2 * heads * steps.cache.capacity() * config.head_size * 4);
    steps({4});
    EXPECT_EQ(steps.cache.bytes(), bytes);
    EXPECT_EQ(steps.cache.length(), 4);
    const DTensor keys(steps.cache.keys(0));
    EXPECT_EQ(keys.sizes(), (std::vector<std::int64_t>{1, 3, 4, config.head_size}));
    EXPECT_TRUE(keys.placements()[model.mesh.dim("tp")].is_shard(1));
    EXPECT_EQ(keys.to_local().size(1), heads);
  });
}

// Each layer adds one all_gather per token: of each head's value, its weight and the largest score. Each rank stores
// its own tokens of the capacity, 11 or 10 of 32.
TEST(Work, CacheMayBeSplitOverTokens) {
  run_local(3, [](Communicator world) {
    const auto model = recorded::model("llama3", {.dp = 3}, world);
    const auto& config = model.decoder->config();
    Steps steps{model, dtensor::nn::KVCache(config.layers, 32, "dp")}, full{model};
    const auto decode = [&](Steps& by) { by({1, 2, 3, 4}), by({5}); };
    decode(steps), decode(full);
    const std::int64_t own = world.rank() < 2 ? 11 : 10;
    EXPECT_EQ(steps.cache.bytes(), config.layers * 2 * config.kv_heads * own * config.head_size * 4);
    EXPECT_EQ(full.cache.bytes(), config.layers * 2 * config.kv_heads * 32 * config.head_size * 4);
    EXPECT_LE((DTensor(steps.cache.keys(0)).full_tensor() - DTensor(full.cache.keys(0)).full_tensor())
                  .abs()
                  .max()
                  .item<double>(),
              1e-6);
    const auto misses = dtensor::cache_stats().misses;
    const dtensor::CommDebugMode comm;
    steps({6});
    EXPECT_EQ(dtensor::cache_stats().misses, misses);
    EXPECT_EQ(comm.total().calls, config.layers) << comm.table();
    const auto gathered = comm.total("all_gather", "dp");
    EXPECT_EQ(gathered.calls, config.layers) << comm.table();
    EXPECT_EQ(gathered.bytes, config.layers * 2 * config.heads * (config.head_size + 2) * 4) << comm.table();
  });
}

TEST(Work, CacheRefusesTokensBeyondItsCapacityAndGradients) {
  run_local(1, [](Communicator world) {
    const auto model = recorded::model("llama2", {}, world);
    dtensor::nn::KVCache cache(2, 3);
    {
      const at::NoGradGuard no_grad;
      const auto ids = at::tensor(std::vector<std::int64_t>{1, 2, 3, 4}, at::kLong).unsqueeze(0);
      try {
        model.decoder->forward(ids, &cache);
        ADD_FAILURE() << "no error";
      } catch (const c10::Error& error) {
        EXPECT_NE(std::string(error.what()).find("expected at most 3 tokens, its capacity, got 0 tokens and 4 more"),
                  std::string::npos);
      }
    }
    EXPECT_THROW(model.decoder->forward(at::ones({1, 2}, at::kLong), &cache), c10::Error);
  });
}

// A checkpoint of one linear layer's 4 MiB weight, loaded by name and transposed.
TEST(Work, EachRankReadsOnlyItsPart) {
  const dtensor::test::Folder folder;
  const std::string path = folder / "saved";
  const auto weight = at::arange(1 << 20, at::kFloat).view({1024, 1024});
  run_local(1, [&](Communicator world) { save_state(path, world, {{"there.weight", weight}}); });
  run_local(4, [&](Communicator world) {
    const auto mesh = dtensor::init_device_mesh(world, at::kCPU, {4}, {"tp"});
    for (const bool transposed : {false, true}) {
      for (const std::int64_t dim : {0, 1}) {
        const at::Tensor target = dtensor::zeros({1024, 1024}, mesh, {dtensor::Shard(dim)});
        dtensor::LoadOptions options;
        options.names = {{.tensor = "weight", .stored = "there.weight", .transposed = transposed}};
        const auto before = bytes_read();
        load_state(path, world, {{"weight", target}}, options);
        const auto read = bytes_read() - before;
        // For splits within rows, ranks read rows for each other.
        EXPECT_LE(read, (4 << 20) / 4 + (64 << 10)) << "rank " << world.rank();
        EXPECT_GE(read, (4 << 20) / 4);
        EXPECT_TRUE(at::equal(DTensor(target).full_tensor(), transposed ? weight.t() : weight));
      }
    }
  });
}

}  // namespace
