// A failed save or load raises one error, equal on every rank, and the previous checkpoint remains.
#include <gtest/gtest.h>
// Include after GoogleTest.
#include <rapidcheck.h>

#include "checkpoint/folder.h"
#include "checkpoint/format/checksum.h"

namespace dtensor::test {
namespace {

namespace fs = std::filesystem;

StateTensors model(const DeviceMesh& mesh, double value, at::ScalarType dtype = at::kFloat) {
  return {{"layer.weight", distribute_tensor(at::full({6, 4}, value, dtype), mesh, {Shard(0)})},
          {"layer.bias", distribute_tensor(at::full({4}, value, dtype), mesh, {Shard(0)})},
          {"regular", at::full({2}, value, dtype)}};
}

void save_model(const std::string& folder, int ranks, double value) {
  run_local(ranks, [&](Communicator world) {
    save_state(folder, world, model(init_device_mesh(world, at::kCPU, {ranks}), value), {}, kQuick);
  });
}

std::uint64_t parse_length(const std::string& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  return length;
}

std::vector<std::string> load_errors(const std::string& folder, int ranks = 3) {
  return errors_on(ranks, [&](const Communicator& world) {
    load_state(folder, world, model(init_device_mesh(world, at::kCPU, {ranks}), 0));
  });
}

void expect_checkpoint_value(const std::string& folder, double value) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto targets = model(mesh, 0);
    load_state(folder, mesh.world(), targets);
    EXPECT_TRUE(at::equal(DTensor(targets[0].second).full_tensor(), at::full({6, 4}, value)));
  });
  EXPECT_FALSE(fs::exists(folder + ".saving"));
}

// Reference implementation of the checksum, element by element.
files::Checksum by_definition(const std::string& bytes, std::int64_t item, std::int64_t first) {
  files::Checksum sum;
  const auto size = static_cast<std::size_t>(item);
  for (std::size_t at = 0; at < bytes.size(); at += size, ++sum.count) {
    std::uint64_t z = 0;
    std::memcpy(&z, bytes.data() + at, size);
    z += static_cast<std::uint64_t>(first + sum.count) * 0x9E3779B97F4A7C15u;
    for (int round = 0; round < 2; ++round) z = (z ^ (z >> 32)) * 0xD6E8FEB86659FD93u;
    sum.sum += z ^ (z >> 32);
  }
  return sum;
}

TEST(CheckpointFailures, ChecksumsOfPartsAddUpAndDetectFlipsAndSwaps) {
  EXPECT_TRUE(rc::check("sums", [] {
    const auto item = *rc::gen::element<std::int64_t>(1, 2, 4, 8);
    const auto n = *rc::gen::inRange<std::int64_t>(2, 300);
    auto bytes = *rc::gen::container<std::string>(static_cast<std::size_t>(n * item), rc::gen::arbitrary<char>());
    const auto first = *rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 40);
    const auto unsharded = files::checksum(bytes.data(), item, n, first);
    RC_ASSERT(unsharded == by_definition(bytes, item, first));
    const auto cut = *rc::gen::inRange<std::int64_t>(0, n + 1);
    auto sum = files::checksum(bytes.data(), item, cut, first);
    sum += files::checksum(bytes.data() + cut * item, item, n - cut, first + cut);
    RC_ASSERT(sum == unsharded);
    auto swapped = bytes;
    std::swap_ranges(swapped.begin(), swapped.begin() + item, swapped.end() - item);
    RC_ASSERT((swapped == bytes) == (files::checksum(swapped.data(), item, n, first) == unsharded));
    bytes[*rc::gen::inRange<std::size_t>(0, bytes.size())] ^= static_cast<char>(1 << *rc::gen::inRange(0, 8));
    RC_ASSERT(files::checksum(bytes.data(), item, n, first) != unsharded);
  }));
}

TEST(CheckpointFailures, FlippedBitIsAnErrorThatNamesTheTensor) {
  const Folder folder;
  save_model(folder / "c", 2, 1);
  const auto index = read_checkpoint_index(folder / "c");
  for (const CheckpointEntry& entry : index.entries) {
    std::fstream file(entry.file, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(entry.offset + entry.bytes - 1);
    const char byte = static_cast<char>(file.get());
    file.seekp(entry.offset + entry.bytes - 1);
    file.put(static_cast<char>(byte ^ 0x10)).flush();
    expect_error(load_errors(folder / "c"), {"checksum of '" + entry.name + "' ", "damaged"});
    run_local(2, [&](Communicator world) {
      load_state(folder / "c", world, model(init_device_mesh(world, at::kCPU, {2}), 0), {.verify = false});
    });
    file.seekp(entry.offset + entry.bytes - 1);
    file.put(byte).flush();
  }
  expect_checkpoint_value(folder / "c", 1);
}

TEST(CheckpointFailures, TruncatedFileIsAnError) {
  const Folder folder;
  save_model(folder / "c", 2, 1);
  const auto size = fs::file_size(folder / "c/model.safetensors");
  for (const std::uintmax_t left : {size - 1, std::uintmax_t{20}, std::uintmax_t{3}, std::uintmax_t{0}}) {
    fs::resize_file(folder / "c/model.safetensors", left);
    expect_error(load_errors(folder / "c"), {"model.safetensors", "truncated"});
  }
  std::ofstream(folder / "c/model.safetensors", std::ios::binary) << "PK\3\4 this is no such file at all";
  expect_error(load_errors(folder / "c"), {"model.safetensors"});
  fs::remove(folder / "c/model.safetensors");
  expect_error(load_errors(folder / "c"), {"model.safetensors", "No such file"});
  expect_error(load_errors(folder / "nowhere"), {"there is no checkpoint"});
}

// A damaged header is either read or refused, without a crash.
TEST(CheckpointFailures, DamagedHeadersDoNotCrash) {
  const Folder folder;
  save_model(folder / "c", 2, 1);
  std::ifstream in(folder / "c/model.safetensors", std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  const auto header = static_cast<std::size_t>(parse_length(good)) + 8;
  EXPECT_TRUE(rc::check("no crash", [&] {
    std::string bad = good;
    for (auto n = *rc::gen::inRange(1, 4); n > 0; --n) {
      const auto at = *rc::gen::inRange<std::size_t>(0, header);
      bad[at] = *rc::gen::oneOf(rc::gen::arbitrary<char>(), rc::gen::element('0', '9', '-', ',', ']'));
    }
    std::ofstream(folder / "bad.safetensors", std::ios::binary) << bad;
    const auto errors = load_errors(folder / "bad.safetensors", 1);
    RC_CLASSIFY(!errors[0].empty(), "refused");
  }));
}

// The product of the sizes has the right number of bytes only modulo 2^64.
TEST(CheckpointFailures, OverflowingSizesAreAnError) {
  const Folder folder;
  const std::string header = R"({"w":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}} )";
  const std::uint64_t length = header.size();
  std::ofstream out(folder / "any.safetensors", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), 8);
  out << header;
  out.close();
  EXPECT_THROW(read_checkpoint_index(folder / "any.safetensors"), c10::Error);
}

TEST(CheckpointFailures, OneErrorListsAllMismatchesAndNearestNames) {
  const Folder folder;
  save_model(folder / "c", 2, 1);
  const auto targets = [](const Communicator& world, at::ScalarType dtype) -> StateTensors {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {3});
    return {{"layer.weights", distribute_tensor(at::zeros({6, 4}), mesh, {Shard(1)})},
            {"layer.bias", distribute_tensor(at::zeros({5}), mesh, {Shard(0)})},
            {"regular", at::zeros({2}, dtype)}};
  };
  const auto load = [&](LoadOptions options, at::ScalarType dtype = at::kDouble) {
    return errors_on(3, [&](const Communicator& world) {
      Checkpoint state;
      std::int64_t step = 0;
      StateTensors list = targets(world, dtype);
      for (auto& [name, tensor] : list) state.add(name, tensor);
      state.add("step", step);
      state.load(folder / "c", world, options);
    });
  };
  expect_error(load({}), {"missing in the checkpoint: ", "'step'", "'layer.weights' (nearest: 'layer.weight')",
                          "not requested: 'layer.weight' (nearest: 'layer.weights')",
                          "'layer.bias' has sizes [4] in the checkpoint, [5] in the target",
                          "'regular' is Float in the checkpoint, Double in the target"});
  const auto lenient = load({.allow_missing = true, .allow_unexpected = true, .allow_cast = true});
  expect_error(lenient, {"mismatched: 'layer.bias' has sizes"});
  EXPECT_EQ(lenient[0].find("missing"), std::string::npos);
  EXPECT_EQ(lenient[0].find("unexpected"), std::string::npos);
}

TEST(CheckpointFailures, FailureOnOneRankRaisesOnAllAndKeepsThePreviousCheckpoint) {
  const Folder folder;
  save_model(folder / "c", 2, 1);
  const auto fails = [&](const std::function<void(StateTensors&, CheckpointValues&, int)>& spoil) {
    const auto errors = errors_on(3, [&](const Communicator& world) {
      StateTensors tensors = model(init_device_mesh(world, at::kCPU, {3}), 2);
      CheckpointValues values = {{"step", std::int64_t{4}}};
      spoil(tensors, values, world.rank());
      save_state(folder / "c", world, tensors, values, kQuick);
    });
    expect_checkpoint_value(folder / "c", 1);
    return errors;
  };
  expect_error(fails([](StateTensors& t, CheckpointValues&, int rank) {
                 if (rank == 1) t[2].second = at::zeros({2}, at::kComplexDouble);
               }),
               {"rank 1: tensor 'regular' has dtype ComplexDouble", "view_as_real"});
  expect_error(fails([](StateTensors& t, CheckpointValues&, int rank) {
                 if (rank == 2) t[2].second = at::full({2}, 3.0);
               }),
               {"'regular' is on 3 ranks", "with different values"});
  expect_error(fails([](StateTensors& t, CheckpointValues&, int rank) {
                 if (rank == 2) t[2].second = at::full({3}, 2.0);
               }),
               {"'regular' is Float[2], regular on rank 0 and Float[3], regular on rank 2"});
  expect_error(fails([](StateTensors&, CheckpointValues& values, int rank) { values["step"] = std::int64_t{rank}; }),
               {"values differ", "'step' is 0 on rank 0 and 1 on rank 1", "use a different name"});
  expect_error(fails([](StateTensors& t, CheckpointValues&, int) { t[1].first = "regular"; }),
               {"duplicate tensor name 'regular'"});
}

TEST(CheckpointFailures, UnwritableFolderIsAnErrorOnEveryRank) {
  const Folder folder;
  std::ofstream(folder / "file") << "a file, no folder";
  const auto save = [&](const std::string& name) {
    return errors_on(3, [&](const Communicator& world) {
      save_state(folder / name, world, model(init_device_mesh(world, at::kCPU, {3}), 2), {}, kQuick);
    });
  };
  expect_error(save("file/c"), {"rank 0: ", "file/c"});
  expect_error(save("file"), {"exists and is not a folder"});
  fs::create_directories(folder / "notes");
  std::ofstream(folder / "notes/todo.txt") << "keep me";
  expect_error(save("notes"), {"todo.txt", "would be lost"});
  for (const char* name : {"notes", "file", "file/c"}) EXPECT_THROW(check_can_save(folder / name), c10::Error) << name;
  check_can_save(folder / "new/parents/c");
  EXPECT_FALSE(fs::exists(folder / "new/parents/c"));
  EXPECT_TRUE(fs::exists(folder / "notes/todo.txt"));
  expect_error(errors_on(2, [](const Communicator& world) { save_state("", world, {}, {}, kQuick); }),
               {"expected the name of a checkpoint folder"});
  save_model(folder / "c", 2, 1);
  fs::create_directories(folder / "c.saving");  // left by an interrupted save
  std::ofstream(folder / "c.saving/model.safetensors") << "half";
  save_model(folder / "c/", 3, 2);
  expect_checkpoint_value(folder / "c", 2);
}

TEST(CheckpointFailures, UnsupportedTensorsAreRefused) {
  const Folder folder;
  run_local(1, [&](Communicator world) {
    const auto refused = [&](const std::string& name, const at::Tensor& t) {
      EXPECT_THROW(save_state(folder / "c", world, {{name, t}}, {}, kQuick), c10::Error) << name;
    };
    refused("complex", at::zeros({2}, at::kComplexDouble));
    refused("sparse", at::eye(3).to_sparse());
    refused("meta", at::empty({2}, at::kMeta));
    refused("undefined", at::Tensor());
    refused("", at::zeros({2}));
    refused("__metadata__", at::zeros({2}));
    refused("\xff\xfe", at::zeros({2}));  // invalid UTF-8
    for (const auto dtype : {at::ScalarType::UInt16, at::ScalarType::UInt32, at::ScalarType::UInt64,
                             at::ScalarType::Float8_e4m3fn, at::ScalarType::Float8_e5m2}) {  // these are valid
      Draw draw(3);
      const at::Tensor bits = any_bits(draw, {5}, dtype), back = at::empty({5}, dtype);
      save_state(folder / "c", world, {{"x", bits}}, {}, kQuick);
      load_state(folder / "c", world, {{"x", back}});
      EXPECT_EQ(bits_of(back), bits_of(bits)) << dtype;
    }
    const at::Tensor conj = at::view_as_complex(at::randn({3, 2})).conj();
    save_state(folder / "c", world, {{"conj", conj}}, {}, kQuick);
    EXPECT_EQ(parse_safetensors(folder / "c/model.safetensors").at("conj").bytes, bits_of(conj.resolve_conj()));
  });
}

}  // namespace
}  // namespace dtensor::test
