// A checkpoint of one layout loads bit for bit on any other layout and in other safetensors readers.
#include <gtest/gtest.h>
// Include after GoogleTest.
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "checkpoint/folder.h"

namespace dtensor::test {
namespace {

struct Full {
  std::string name;
  at::Tensor value;
};

std::vector<Full> any_tensors(Draw& draw) {
  std::vector<Full> all;
  for (auto n = draw.integer(0, 6); n > 0; --n) {
    const auto dtype = all_dtypes()[static_cast<std::size_t>(draw.integer(0, 10))];
    const Shape sizes = draw.sizes(draw.integer(0, 4));
    all.push_back({"t." + std::to_string(n), any_bits(draw, sizes, dtype)});
  }
  return all;
}

// Distributes a tensor over all ranks, some ranks, or two ranks out of order; sometimes with permuted memory.
at::Tensor place(Draw& draw, const at::Tensor& unsharded, const Communicator& world, const Shape& shape) {
  const auto kind = draw.integer(0, 3);
  if (kind == 0) return unsharded.clone();
  DeviceMesh mesh = init_device_mesh(world, at::kCPU, shape);
  if (kind == 1 && world.size() > 1) mesh = device_mesh(world, at::kCPU, {world.size() - 1, 0}, {2});
  if (kind == 2) mesh = device_mesh(world, at::kCPU, {world.size() - 1}, {1});
  const Placements placements = any_layout(draw, mesh, unsharded.sizes().vec());
  const bool permuted = unsharded.dim() > 1 && draw.coin();
  const at::Tensor given = permuted ? unsharded.transpose(0, 1).contiguous().transpose(0, 1) : unsharded;
  return distribute_tensor(given, mesh, placements);
}

StateTensors place_all(std::uint64_t seed, const std::vector<Full>& full_tensors, const Communicator& world,
                       const Shape& shape, bool blank) {
  Draw draw(seed);
  StateTensors result;
  for (const Full& w : full_tensors) {
    const at::Tensor value = blank ? at::zeros_like(w.value) : w.value;
    result.emplace_back(w.name, place(draw, value, world, shape));
  }
  return result;
}

void expect_full(const StateTensors& got, const std::vector<Full>& full_tensors) {
  for (std::size_t i = 0; i < full_tensors.size(); ++i) {
    at::Tensor t = got[i].second;
    const std::string what = got[i].first + (is_dtensor(t) ? " " + DTensor(t).spec_str() : "");
    if (is_dtensor(t)) {
      if (!DTensor(t).mesh().is_member()) continue;
      t = DTensor(t).full_tensor();
    }
    EXPECT_EQ(t.sizes(), full_tensors[i].value.sizes()) << what;
    EXPECT_TRUE(bits_of(t) == bits_of(full_tensors[i].value)) << what;
  }
}

TEST(CheckpointLayouts, SaveOnAnyLayoutLoadsOnAnyOther) {
  EXPECT_TRUE(rc::check("bits are equal", [] {
    const Folder folder;
    Draw draw(*rc::gen::arbitrary<std::uint64_t>());
    const Shape from = *rc::gen::elementOf(mesh_shapes()), to = *rc::gen::elementOf(mesh_shapes());
    const auto full_tensors = any_tensors(draw);
    const auto seed = static_cast<std::uint64_t>(draw.integer(0, 1 << 30));
    const std::int64_t max_file_bytes = draw.coin() ? 100 : 1'000'000;
    run_local(count(from), [&](Communicator world) {
      save_state(folder / "c", world, place_all(seed, full_tensors, world, from, false), {{"step", std::int64_t{7}}},
                 {.sync = false, .max_file_bytes = max_file_bytes});
    });
    run_local(count(to), [&](Communicator world) {
      const auto targets = place_all(seed + 1, full_tensors, world, to, true);
      const auto values = load_state(folder / "c", world, targets);
      EXPECT_EQ(std::get<std::int64_t>(values.at("step")), 7);
      expect_full(targets, full_tensors);
    });
    RC_ASSERT(!testing::Test::HasFailure());
  }));
}

// The tensors are larger than a share and a buffer, so that replicas divide the work and use several pieces.
TEST(CheckpointLayouts, LargeTensorsAreDividedAmongReplicas) {
  const Folder folder;
  const std::vector<Full> full_tensors = {
      {"w", at::randn({1031, 1500})}, {"v", at::randn({700, 37}).to(at::kBFloat16)}, {"narrow", at::randn({50000, 3})}};
  const auto placed = [&](const DeviceMesh& mesh, const Placements& p, bool blank) {
    StateTensors tensors;
    for (const Full& w : full_tensors) {
      const at::Tensor value = blank ? at::zeros_like(w.value) : w.value;
      tensors.emplace_back(w.name, distribute_tensor(value.t().contiguous().t(), mesh, p));
    }
    return tensors;
  };
  const std::vector<Placements> layouts = {{Replicate(), Replicate()},
                                           {Replicate(), Shard(1)},
                                           {Shard(0), Shard(0)},
                                           {StridedShard(0, 2), Shard(0)},
                                           {Shard(1), Replicate()}};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
      save_state(folder / "c", mesh.world(), placed(mesh, layouts[i], false), {}, kQuick);
      const auto targets = placed(mesh, layouts[(i + 1) % layouts.size()], true);
      load_state(folder / "c", mesh.world(), targets);
      expect_full(targets, full_tensors);
    });
    for (const auto& [name, raw] : parse_safetensors(folder / "c/model.safetensors")) {
      const auto unsharded =
          std::find_if(full_tensors.begin(), full_tensors.end(), [&](const Full& w) { return w.name == name; });
      EXPECT_TRUE(raw.bytes == bits_of(unsharded->value)) << name << " from " << to_string(layouts[i]);
    }
  }
}

// 3 tensors of 8 MiB: saving allocates one buffer if memory is not row-major, and almost nothing otherwise.
TEST(CheckpointLayouts, SavingAndLoadingAllocateAtMostABuffer) {
  const Folder folder;
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    for (const bool permuted : {false, true}) {
      StateTensors tensors;
      for (const Placement& p : {Shard(0), Shard(1), Replicate()}) {
        const at::Tensor unsharded = at::ones({2048, 1024});
        tensors.emplace_back(p.str(), distribute_tensor(permuted ? unsharded.t() : unsharded, mesh, {p}));
      }
      const MemoryTimeline memory;
      save_state(folder / "c", mesh.world(), tensors, {}, kQuick);
      load_state(folder / "c", mesh.world(), tensors);
      EXPECT_LE(memory.peak().bytes, (permuted ? 4 << 20 : 0) + (64 << 10)) << permuted;
      EXPECT_EQ(memory.live(), 0);
    }
  });
}

TEST(CheckpointLayouts, PartialTensorsAreReducedAndRefusedAsTargets) {
  const Folder folder;
  on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
    const double mine = static_cast<double>(mesh.world().rank() + 1);
    const at::Tensor p = DTensor::from_local(at::full({3}, mine, at::kDouble), mesh, {Partial(), Partial()}, {3});
    save_state(folder / "c", mesh.world(), {{"p", p}}, {}, kQuick);
    const at::Tensor back = at::zeros({3}, at::kDouble);
    load_state(folder / "c", mesh.world(), {{"p", back}});
    EXPECT_EQ(back[0].item<double>(), 10);
    EXPECT_THROW(load_state(folder / "c", mesh.world(), {{"p", p}}), c10::Error);
  });
}

// A tensor on slices of a mesh along one axis: each slice stores the full tensor, and slices that differ are an error.
TEST(CheckpointLayouts, OneNameOnSeveralSlicesOfAMesh) {
  const Folder folder;
  const at::Tensor unsharded = at::arange(10, at::kFloat);
  on_mesh({2, 2}, [&](const DeviceMesh& square) {
    const DeviceMesh mesh = init_device_mesh(square.world(), at::kCPU, {2, 2}, {"dp", "tp"});
    const DeviceMesh line = mesh["tp"];
    save_state(folder / "c", mesh.world(), {{"x", distribute_tensor(unsharded, line, {Shard(0)})}}, {}, kQuick);
    const at::Tensor back = distribute_tensor(at::zeros({10}), mesh["dp"], {Shard(0)});
    load_state(folder / "c", mesh.world(), {{"x", back}});
    EXPECT_TRUE(at::equal(DTensor(back).full_tensor(), unsharded));
  });
  expect_error(
      errors_on(
          4,
          [&](const Communicator& world) {
            const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"dp", "tp"});
            const at::Tensor other = unsharded + (world.rank() >= 2 ? 1 : 0);
            save_state(folder / "d", world, {{"x", distribute_tensor(other, mesh["tp"], {Shard(0)})}}, {}, kQuick);
          }),
      {"'x'", "with different values"});
  EXPECT_FALSE(std::filesystem::exists(folder / "d"));
  EXPECT_FALSE(std::filesystem::exists(folder / "d.saving"));
}

// The last ranks have no data of any tensor, or do not list it.
TEST(CheckpointLayouts, RanksWithoutDataTakePart) {
  const Folder folder;
  const at::Tensor one = at::full({1, 3}, 4.0), scalar = at::full({}, 2.0), nothing = at::empty({0, 5});
  run_local(4, [&](Communicator world) {
    const DeviceMesh all = init_device_mesh(world, at::kCPU, {4}), pair = device_mesh(world, at::kCPU, {2, 1}, {2});
    const auto tensors = [&](double factor) {
      StateTensors list = {{"one", distribute_tensor(one * factor, all, {Shard(0)})},
                           {"nothing", distribute_tensor(nothing, all, {Shard(1)})},
                           {"far", distribute_tensor(one * factor, pair, {Shard(1)})}};
      if (pair.is_member())
        list.insert(list.begin(), {"hidden", distribute_tensor(scalar * factor, pair, {Replicate()})});
      if (world.rank() == 3) list.emplace_back("mine", scalar * factor);
      return list;
    };
    save_state(folder / "c", world, tensors(1), {}, kQuick);
    const auto back = tensors(0);
    load_state(folder / "c", world, back);
    for (const auto& [name, t] : back) {
      if (name == "nothing" || (is_dtensor(t) && !DTensor(t).mesh().is_member())) continue;
      const at::Tensor unsharded = is_dtensor(t) ? DTensor(t).full_tensor() : t;
      EXPECT_TRUE(at::equal(unsharded, name == "one" || name == "far" ? one : scalar)) << name;
    }
  });
  run_local(3, [&](Communicator world) {  // no tensors on any rank
    save_state(folder / "empty", world, {}, {{"note", std::string("hello")}}, kQuick);
    EXPECT_EQ(std::get<std::string>(load_state(folder / "empty", world, {}).at("note")), "hello");
  });
}

TEST(CheckpointLayouts, RankThatDoesNotListItsPartIsNamed) {
  const Folder folder;
  const auto errors = errors_on(3, [&](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {3});
    StateTensors list = {{"x", distribute_tensor(at::ones({6}), mesh, {Shard(0)})}};
    if (world.rank() == 1) list.clear();
    save_state(folder / "c", world, list, {}, kQuick);
  });
  expect_error(errors, {"'x'", "rank 1 does not list it"});
}

const char* format_of(at::ScalarType dtype) {
  static const std::map<at::ScalarType, const char*> names = {
      {at::kDouble, "F64"}, {at::kFloat, "F32"}, {at::kHalf, "F16"},        {at::kBFloat16, "BF16"},
      {at::kLong, "I64"},   {at::kInt, "I32"},   {at::kShort, "I16"},       {at::kChar, "I8"},
      {at::kByte, "U8"},    {at::kBool, "BOOL"}, {at::kComplexFloat, "C64"}};
  return names.at(dtype);
}

TEST(CheckpointLayouts, AnyReaderFindsFullTensors) {
  EXPECT_TRUE(rc::check("the file holds the full tensors", [] {
    const Folder folder;
    Draw draw(*rc::gen::arbitrary<std::uint64_t>());
    const Shape from = *rc::gen::elementOf(mesh_shapes());
    const auto full_tensors = any_tensors(draw);
    const auto seed = static_cast<std::uint64_t>(draw.integer(0, 1 << 30));
    run_local(count(from), [&](Communicator world) {
      save_state(folder / "c", world, place_all(seed, full_tensors, world, from, false), {}, kQuick);
    });
    const auto raw = parse_safetensors(folder / "c/model.safetensors");
    RC_ASSERT(raw.size() == full_tensors.size());
    for (const Full& w : full_tensors) {
      const Raw& r = raw.at(w.name);
      RC_ASSERT(r.dtype == format_of(w.value.scalar_type()));
      RC_ASSERT(r.sizes == w.value.sizes().vec());
      RC_ASSERT(r.bytes == bits_of(w.value));
    }
  }));
}

TEST(CheckpointLayouts, SeveralFilesHaveAHuggingFaceIndex) {
  const Folder folder;
  const at::Tensor a = at::randn({10, 4}), b = at::randn({6}), c = at::randn({5, 5});
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const StateTensors tensors = {{"a", distribute_tensor(a, mesh, {StridedShard(0, 3)})},
                                  {"b", distribute_tensor(b, mesh, {Shard(0)})},
                                  {"c", c}};
    save_state(folder / "c", mesh.world(), tensors, {}, {.sync = false, .max_file_bytes = 184});
  });
  std::ifstream in(folder / "c/model.safetensors.index.json");
  const auto index = nlohmann::json::parse(in);
  EXPECT_EQ(index.at("metadata").at("total_size"), 284);
  const std::map<std::string, at::Tensor> full_tensors = {{"a", a}, {"b", b}, {"c", c}};
  for (const auto& [name, unsharded] : full_tensors) {
    const auto raw = parse_safetensors(folder / ("c/" + index.at("weight_map").at(name).get<std::string>()));
    EXPECT_TRUE(raw.at(name).bytes == bits_of(unsharded)) << name;
  }
  EXPECT_EQ(index.at("weight_map").at("a"), "model-00001-of-00002.safetensors");
  EXPECT_EQ(index.at("weight_map").at("c"), "model-00002-of-00002.safetensors");
}

// A file of another program: no checkpoint.json, unaligned data, dtypes to convert.
TEST(CheckpointLayouts, FilesOfOtherProgramsLoad) {
  const Folder folder;
  const at::Tensor w = at::randn({4, 3}), flag = at::ones({1}, at::kBool);
  const std::string header = R"({"flag":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]},)"
                             R"("w":{"dtype":"F32","shape":[4,3],"data_offsets":[1,49]}})";
  std::ofstream out(folder / "any.safetensors", std::ios::binary);
  const std::uint64_t length = header.size();
  out.write(reinterpret_cast<const char*>(&length), 8);
  out << header << bits_of(flag) << bits_of(w);
  out.close();
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const at::Tensor half = distribute_tensor(at::zeros({4, 3}, at::kBFloat16), mesh, {Shard(1)});
    const at::Tensor bit = at::zeros({1}, at::kBool);
    EXPECT_THROW(load_state(folder / "any.safetensors", mesh.world(), {{"w", half}, {"flag", bit}}), c10::Error);
    load_state(folder / "any.safetensors", mesh.world(), {{"w", half}, {"flag", bit}}, {.allow_cast = true});
    EXPECT_TRUE(bit.item<bool>());
    EXPECT_TRUE(at::equal(DTensor(half).full_tensor(), w.to(at::kBFloat16)));
  });
}

}  // namespace
}  // namespace dtensor::test
