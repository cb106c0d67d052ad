// Ranks of one host read each byte of a file once together, for any placement. Buffers do not grow with the tensors,
// and errors reach all ranks.
#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "checkpoint/load/shared_reads.h"
#include "dtensor/debug.h"
#include "folder.h"
#include "support/bytes_read.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

struct How {
  const char* name;
  Placements placements;
  bool by_names, transposed;
  at::ScalarType dtype = at::kFloat;
  std::int64_t row = 2048;  // elements
};
void PrintTo(const How& how, std::ostream* out) { *out << how.name; }

class SharedReads : public testing::TestWithParam<How> {
 protected:
  // Loads a float32 matrix on 2 x 2 ranks and returns the bytes that each rank read.
  std::vector<std::int64_t> load(const Folder& folder, const at::Tensor& value) {
    const How& how = GetParam();
    run_local(1, [&](Communicator world) { save_state(folder / "there", world, {{"their.w", value}}); });
    const at::Tensor expected = (how.transposed ? value.t() : value).to(how.dtype);
    std::vector<std::int64_t> read(4);
    run_local(4, [&](Communicator world) {
      const auto mesh = init_device_mesh(world, at::kCPU, {2, 2});
      const at::Tensor w = zeros(expected.sizes(), mesh, how.placements, how.dtype);
      LoadOptions options;
      options.allow_cast = true;
      if (how.by_names) options.names = {{.tensor = "w", .stored = "their.w", .transposed = how.transposed}};
      const auto before = bytes_read();
      load_state(folder / "there", world, {{how.by_names ? "w" : "their.w", w}}, options);
      read[static_cast<std::size_t>(world.rank())] = bytes_read() - before;
      expect_close(w, expected, how.name, 0);
    });
    return read;
  }
};

TEST_P(SharedReads, EachByteIsReadOnce) {
  const Folder folder;
  const auto value = at::arange(2 << 20, at::kFloat).view({-1, GetParam().row});
  const auto bytes = static_cast<std::int64_t>(value.nbytes());
  const auto read = load(folder, value);
  std::int64_t sum = 0;
  for (const std::int64_t own : read) {
    sum += own;
    EXPECT_LE(own, bytes / 4 + (2 << 20) + (64 << 10)) << "one rank read more than its share";
  }
  EXPECT_GE(sum, bytes);
  EXPECT_LE(sum, bytes + (64 << 10));  // headers
}

INSTANTIATE_TEST_SUITE_P(
    All, SharedReads,
    testing::Values(How{"replicated", {Replicate(), Replicate()}, false, false},
                    How{"replicated, by names", {Replicate(), Replicate()}, true, false},
                    How{"rows on one axis", {Shard(0), Replicate()}, true, false},
                    How{"rows", {Shard(0), Shard(0)}, true, false},
                    How{"columns", {Replicate(), Shard(1)}, true, false},
                    How{"columns on both axes", {Shard(1), Shard(1)}, true, false},
                    How{"columns, own format", {Replicate(), Shard(1)}, false, false},
                    How{"short rows", {Replicate(), Shard(1)}, true, false, at::kFloat, 256},
                    How{"short rows on both axes", {Shard(1), Shard(1)}, true, false, at::kFloat, 64},
                    How{"rows and columns", {Shard(0), Shard(1)}, true, false},
                    How{"transposed", {Replicate(), Shard(0)}, true, true},
                    How{"transposed columns", {Shard(1), Replicate()}, true, true},
                    How{"converted", {Replicate(), Replicate()}, true, false, at::kBFloat16},
                    How{"converted columns", {Shard(0), Shard(1)}, true, false, at::kDouble},
                    How{"converted, own format", {Shard(0), Replicate()}, false, false, at::kHalf}));

// Besides the loaded tensor, memory use is 4 MiB of buffers and what a rank copies out of one of them.
TEST(SharedReads, BuffersDoNotGrowWithTheTensor) {
  const Folder folder;
  run_local(1, [&](Communicator world) {
    save_state(folder / "there", world, {{"w", at::zeros({1536, 2048})}}, {}, {.sync = false});
  });
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2});
    for (const Placement& placement : {Placement(Replicate()), Placement(Shard(1))}) {
      const at::Tensor w = zeros({1536, 2048}, mesh, {placement}, at::kBFloat16);
      LoadOptions options;
      options.allow_cast = true;
      options.names = {{"w", "w"}};
      const MemoryTimeline memory;
      load_state(folder / "there", world, {{"w", w}}, options);
      EXPECT_LE(memory.peak().bytes, 6 << 20);  // 12 MiB are read
    }
  });
}

// Columns of 1 KiB or more are read directly into the target, without a buffer and without exchange between ranks.
TEST(SharedReads, LongColumnsNeedNoBuffer) {
  const Folder folder;
  run_local(1, [&](Communicator world) {
    save_state(folder / "there", world, {{"w", at::zeros({1536, 2048})}}, {}, {.sync = false});
  });
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2});
    const at::Tensor w = zeros({1536, 2048}, mesh, {Shard(1)});
    LoadOptions options;
    options.names = {{"w", "w"}};
    const MemoryTimeline memory;
    load_state(folder / "there", world, {{"w", w}}, options);
    EXPECT_LE(memory.peak().bytes, 64 << 10);
  });
}

// Every load with checksums detects one changed byte. Without checksums, or with verify = false, data is not verified.
TEST(SharedReads, LoadsWithNameMappingDetectDamage) {
  const Folder folder;
  const auto w = at::randn({40, 6}), qk = at::randn({30, 8});
  run_local(1, [&](Communicator world) { save_state(folder / "there", world, {{"w", w}, {"qk", qk}}); });
  const auto index = read_checkpoint_index(folder / "there");
  for (const CheckpointEntry& entry : index.entries) {
    const auto change = [&] {
      std::fstream file(entry.file, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(entry.offset + entry.bytes - 3);
      const auto byte = static_cast<char>(file.get() ^ 4);
      file.seekp(entry.offset + entry.bytes - 3);
      file.put(byte);
    };
    change();
    for (const Placements& placements :
         std::vector<Placements>{{Replicate(), Replicate()}, {Shard(0), Shard(1)}, {Shard(1), Replicate()}}) {
      run_local(4, [&](Communicator world) {
        const auto mesh = init_device_mesh(world, at::kCPU, {2, 2});
        const auto load = [&](bool verify) {
          LoadOptions options;
          options.verify = verify;
          options.names = {{"our.w", "w"}, {"q", "qk", false, {0, 0, 10}}, {"k", "qk", false, {0, 10, 20}}};
          const StateTensors targets = {{"our.w", zeros({40, 6}, mesh, placements)},
                                        {"q", zeros({10, 8}, mesh, placements)},
                                        {"k", zeros({20, 8}, mesh, placements)}};
          return error_of([&] { load_state(folder / "there", world, targets, options); });
        };
        EXPECT_EQ(load(false), "no error");
        EXPECT_NE(load(true).find("the checksum of '" + entry.name + "' does not match the data"), std::string::npos)
            << load(true);
      });
    }
    change();
  }
}

// A read error of one rank is stored, to be reported to all ranks later. No rank waits.
TEST(SharedReads, ReadErrorIsStoredOnItsRank) {
  run_local(3, [](Communicator world) {
    files::SharedReads reads(world, {"same", "", "same"});
    const at::Tensor to = at::zeros({6 << 20});
    for (const std::size_t tensor : {0, 2}) {
      reads.fill(
          tensor, to, at::kFloat,
          [&](std::int64_t, char*, std::int64_t) { TORCH_CHECK(world.rank() != 1, "the disk of rank 1"); },
          [](std::int64_t, char*, std::int64_t) {});
    }
    EXPECT_EQ(reads.error(), world.rank() == 1 ? "the disk of rank 1" : "");
  });
}

// Each piece is read by one rank, and the first reader rotates from tensor to tensor.
TEST(SharedReads, RanksTakeTurns) {
  std::array<std::atomic<int>, 3> asked{};
  run_local(3, [&](Communicator world) {
    files::SharedReads reads(world, std::vector<std::string>(9, "same"));
    for (std::size_t i = 0; i < 9; ++i) {
      const at::Tensor to = at::zeros({5});
      reads.fill(
          i, to, at::kInt,
          [&](std::int64_t, char* data, std::int64_t count) {
            ++asked.at(static_cast<std::size_t>(world.rank()));
            for (std::int64_t k = 0; k < count; ++k) reinterpret_cast<std::int32_t*>(data)[k] = static_cast<int>(k);
          },
          [](std::int64_t, char*, std::int64_t) {});
      EXPECT_TRUE(at::equal(to, at::arange(5, at::kFloat)));
    }
  });
  for (const auto& times : asked) EXPECT_EQ(times, 3);
}

}  // namespace
}  // namespace dtensor::test
