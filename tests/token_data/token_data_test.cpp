// Token files and their batches: the same global batches on any layout, each rank reads its part only, and every
// sequence occurs once in an epoch.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <numeric>
#include <set>

#include "dtensor/data.h"
#include "internal/shard_segments.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

std::string path_of(const std::string& name) {
  return ::testing::TempDir() + "tokens_" + std::to_string(::getpid()) + "_" + name;
}

// 0, 1, 2, ... in files of these lengths.
std::vector<std::string> counting(const std::vector<std::int64_t>& lengths, TokenFiles::Dtype dtype) {
  std::vector<std::string> paths;
  std::int64_t next = 0;
  for (const std::int64_t length : lengths) {
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(length));
    std::iota(tokens.begin(), tokens.end(), next);
    next += length;
    paths.push_back(path_of(std::to_string(paths.size())));
    write_token_file(paths.back(), tokens, dtype);
  }
  return paths;
}

RC_GTEST_PROP(TokenFiles, AreConcatenated, ()) {
  const auto lengths = *rc::gen::container<std::vector<std::int64_t>>(3, rc::gen::inRange<std::int64_t>(0, 40));
  const auto dtype = *rc::gen::element(TokenFiles::Dtype::uint16, TokenFiles::Dtype::uint32);
  const TokenFiles files(counting(lengths, dtype), dtype);
  const auto size = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  RC_ASSERT(files.size() == size);
  const auto first = *rc::gen::inRange<std::int64_t>(0, size + 1),
             count = *rc::gen::inRange<std::int64_t>(0, size - first + 1);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(count)), expected(tokens.size());
  files.read(first, count, tokens.data());
  std::iota(expected.begin(), expected.end(), first);
  RC_ASSERT(tokens == expected);
  RC_ASSERT(files.tokens_read() == count);
}

RC_GTEST_PROP(TokenBatches, AreTheSameOnEveryLayoutAndReadLocally, ()) {
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 1000000);
  Draw choice(seed);
  const TokenBatches::Options options{choice.integer(1, 9), choice.integer(1, 12), seed, choice.coin()};
  const auto paths = counting({choice.integer(13, 200), choice.integer(0, 50)}, TokenFiles::Dtype::uint16);
  const auto step = choice.integer(0, 100);
  const std::vector<std::vector<std::int64_t>> meshes = {{1}, {2}, {3}, {2, 2}, {2, 3}};
  const auto shape = meshes[static_cast<std::size_t>(choice.integer(0, 4))];
  const auto full = TokenBatches(TokenFiles(paths), options).at(step);
  EXPECT_TRUE(at::equal(full.targets, full.ids + 1));  // The files count.
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    const auto placements = draw.placements_of(mesh, {options.batch, options.sequence}, false);
    const TokenFiles files(paths);
    const auto batch = TokenBatches(files, options).at(step, mesh, placements);
    EXPECT_EQ(DTensor(batch.ids).placements(), placements);
    EXPECT_TRUE(at::equal(DTensor(batch.ids).full_tensor(), full.ids));
    EXPECT_TRUE(at::equal(DTensor(batch.targets).full_tensor(), full.targets));
    // One target more for each run of a row.
    const auto own = DTensor(batch.ids).to_local();
    const auto runs = shard_segments(options.sequence, 1, placements, mesh.shape(), *mesh.coordinate()).size();
    EXPECT_LE(files.tokens_read(), own.numel() + own.size(0) * static_cast<std::int64_t>(runs));
  });
  RC_ASSERT(!::testing::Test::HasFailure());
}

RC_GTEST_PROP(TokenBatches, HaveEverySequenceOncePerEpoch, ()) {
  const auto sequences = *rc::gen::inRange<std::int64_t>(1, 70), batch = *rc::gen::inRange<std::int64_t>(1, 8);
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
  const TokenBatches batches(
      TokenFiles(counting({sequences * 3 + 1 + *rc::gen::inRange<std::int64_t>(0, 3)}, TokenFiles::Dtype::uint16)),
      {batch, 3, seed});
  RC_ASSERT(batches.sequences() == sequences);
  std::vector<std::int64_t> starts;
  for (std::int64_t step = 0; static_cast<std::int64_t>(starts.size()) < 2 * sequences; ++step) {
    const auto first = batches.at(step).ids.select(1, 0).contiguous();
    starts.insert(starts.end(), first.const_data_ptr<std::int64_t>(), first.const_data_ptr<std::int64_t>() + batch);
  }
  for (const auto epoch : {0, 1}) {
    const auto begin = starts.begin() + epoch * sequences;
    RC_ASSERT(std::set<std::int64_t>(begin, begin + sequences).size() == static_cast<std::size_t>(sequences));
  }
}

TEST(TokenBatches, EpochsAndSeedsDifferInOrder) {
  const TokenFiles files(counting({1001}, TokenFiles::Dtype::uint16));
  const auto first = TokenBatches(files, {100, 10, 1}), other = TokenBatches(files, {100, 10, 2});
  EXPECT_FALSE(at::equal(first.at(0).ids, first.at(1).ids));
  EXPECT_FALSE(at::equal(first.at(0).ids, other.at(0).ids));
  const auto ordered = TokenBatches(files, {100, 10, 1, false});
  EXPECT_TRUE(at::equal(ordered.at(0).ids.view(-1), at::arange(1000)));
}

// A write that fails leaves the file unchanged.
TEST(TokenFiles, InvalidTokenLeavesTheFileUnchanged) {
  const auto path = path_of("kept");
  write_token_file(path, {1, 2, 3, 4});
  EXPECT_THROW(write_token_file(path, {9, 8, 70000}), c10::Error);
  EXPECT_EQ(TokenFiles({path}).size(), 4);
  write_token_file(path, {9, 8});
  EXPECT_EQ(TokenFiles({path}).size(), 2);
}

// Token ids cannot be Partial. Dimensions may be negative.
TEST(TokenBatches, AcceptSplitsInAnyPlacements) {
  const auto paths = counting({10}, TokenFiles::Dtype::uint16);
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const TokenBatches batches(TokenFiles(paths), {2, 3, 0, false});
    EXPECT_THROW(batches.at(0, mesh, {Partial()}), c10::Error);
    for (const std::int64_t dim : {-1, -2}) {
      EXPECT_TRUE(at::equal(DTensor(batches.at(0, mesh, {Shard(dim)}).ids).full_tensor(), batches.at(0).ids)) << dim;
    }
  });
}

// Full batches are regular tensors and distributed batches have the requested placements, in a mesh scope as outside.
TEST(TokenBatches, MeshScopeDoesNotAffectBatches) {
  const auto paths = counting({20}, TokenFiles::Dtype::uint16);
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const TokenBatches batches(TokenFiles(paths), {2, 3, 0, true});
    const auto expected = batches.at(1);
    const MeshScope scope(mesh, {Shard(1)});
    const auto full = batches.at(1), placed = batches.at(1, mesh, {Shard(0)});
    ASSERT_FALSE(is_dtensor(full.ids) || is_dtensor(full.targets));
    EXPECT_TRUE(at::equal(full.ids, expected.ids));
    EXPECT_EQ(DTensor(placed.targets).placements(), Placements{Shard(0)});
    EXPECT_TRUE(at::equal(DTensor(placed.targets).full_tensor(), expected.targets));
  });
}

// Sequences are counted from the first epoch on; steps whose sequence number would overflow are refused.
RC_GTEST_PROP(TokenBatches, StepsThatWouldOverflowAreRefused, ()) {
  const auto batch = *rc::gen::inRange<std::int64_t>(1, 9);
  const auto back = *rc::gen::inRange<std::int64_t>(1, 1000);
  const std::int64_t most = std::numeric_limits<std::int64_t>::max(), end = most / batch;
  const auto paths = counting({61}, TokenFiles::Dtype::uint16);
  run_local(1, [&](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {1});
    const TokenBatches batches(TokenFiles(paths), {batch, 3});
    for (const std::int64_t step : {end, most, -back}) {
      for (const auto& error : {error_of([&] { (void)batches.at(step); }),
                                error_of([&] { (void)batches.at(step, mesh, {Replicate()}); })}) {
        const auto expected =
            c10::str("expected a step in [0, ", end, ") for ", batch, " sequences per step, got ", step);
        EXPECT_NE(error.find(expected), std::string::npos) << error;
      }
    }
    const auto last = batches.at(end - back);
    EXPECT_TRUE(at::equal(last.targets, last.ids + 1));
  });
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(TokenBatches, MovedFromObjectsAreErrors) {
  TokenFiles files(counting({9}, TokenFiles::Dtype::uint16));
  TokenBatches batches(files, {1, 3});
  const TokenFiles taken(std::move(files));
  const TokenBatches others(std::move(batches));
  std::int64_t token = 0;
  for (const auto& error : {error_of([&] { (void)files.size(); }), error_of([&] { (void)files.tokens_read(); }),
                            error_of([&] { files.read(0, 1, &token); }), error_of([&] {
                              (void)TokenBatches(files, {1, 3});
                            }),
                            error_of([&] { (void)batches.at(0); })}) {
    EXPECT_NE(error.find("moved from"), std::string::npos) << error;
  }
  EXPECT_EQ(taken.size(), 9);
  EXPECT_EQ(others.at(0).ids.sizes(), at::IntArrayRef({1, 3}));
}

TEST(TokenFiles, InvalidFilesAreErrors) {
  EXPECT_THROW(TokenFiles({path_of("none")}), c10::Error);
  EXPECT_THROW(TokenFiles({::testing::TempDir()}), c10::Error);
  EXPECT_THROW(write_token_file(path_of("big"), {70000}), c10::Error);
  EXPECT_FALSE(std::filesystem::exists(path_of("big")));
  const auto paths = counting({9}, TokenFiles::Dtype::uint16);
  EXPECT_THROW(TokenFiles(paths, TokenFiles::Dtype::uint32), c10::Error);  // 18 bytes
  EXPECT_THROW(TokenBatches(TokenFiles(paths), {1, 9}), c10::Error);
  const TokenFiles files(paths);
  std::int64_t token = 0;
  EXPECT_THROW(files.read(9, 1, &token), c10::Error);
  std::filesystem::resize_file(paths[0], 4);
  EXPECT_THROW(files.read(5, 1, &token), c10::Error);  // An error instead of a signal.
}

// Each rank writes the file; the result is the complete file of one rank.
TEST(TokenFiles, ConcurrentWritesAreAtomic) {
  const auto path = path_of("many");
  run_local(4, [&](Communicator world) {
    const std::vector<std::int64_t> tokens(200000, world.rank());
    for (int round = 0; round < 5; ++round) {
      world.barrier();
      EXPECT_NO_THROW(write_token_file(path, tokens));
    }
  });
  const TokenFiles files({path});
  ASSERT_EQ(files.size(), 200000);
  std::vector<std::int64_t> all(200000);
  files.read(0, files.size(), all.data());
  EXPECT_EQ(std::set<std::int64_t>(all.begin(), all.end()).size(), 1U);
}

// Opening a pipe would block until it has a writer.
TEST(TokenFiles, PipeIsRefused) {
  const auto path = path_of("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THROW(TokenFiles({path}), c10::Error);
  std::filesystem::remove(path);
}

TEST(TokenBatches, RefusePlacementsOfAnotherMesh) {
  const auto paths = counting({100}, TokenFiles::Dtype::uint16);
  on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
    const TokenBatches batches(TokenFiles(paths), {4, 3});
    EXPECT_THROW(batches.at(0, mesh, {Shard(0)}), c10::Error);
    EXPECT_THROW(batches.at(0, mesh, {Replicate(), Replicate(), Shard(0)}), c10::Error);
    EXPECT_THROW(batches.at(0, mesh, {RaggedShard(0, {4}), Replicate()}), c10::Error);
  });
}

}  // namespace
}  // namespace dtensor::test
