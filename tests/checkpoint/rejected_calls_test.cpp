// Calls of save, load and broadcast that are rejected, instead of wrong values, lost folders or diverged ranks.
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/folder.h"
#include "dtensor/checkpoint.h"
#include "dtensor/optim.h"

namespace dtensor::test {
namespace {

namespace fs = std::filesystem;

thread_local bool no_memory = false;
thread_local std::size_t most_bytes = 100'000;

// Allocation of larger blocks fails on ranks that set no_memory.
struct Failing final : c10::Allocator {
  c10::Allocator* real = c10::GetCPUAllocator();
  at::DataPtr allocate(std::size_t bytes) override {
    if (no_memory && bytes > most_bytes) TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory for ", bytes);
    return real->allocate(bytes);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

// Allocation fails on rank 1 of two within fn(mesh), and both ranks get the error.
void expect_out_of_memory(const std::function<void(const DeviceMesh&)>& fn) {
  static Failing failing;
  c10::SetCPUAllocator(&failing, 255);
  const auto errors = errors_on(2, [&](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2});
    const struct RestoreLimit {
      ~RestoreLimit() { no_memory = false, most_bytes = 100'000; }  // other tests reuse the thread
    } afterwards;
    fn(mesh);
  });
  c10::SetCPUAllocator(failing.real, 255);
  expect_error(errors, {"rank 1: no memory for"});
}

TEST(Broadcast, PartialTargetsAreRefused) {
  expect_error(errors_on(2,
                         [](const Communicator& world) {
                           const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2});
                           const at::Tensor t = DTensor::from_local(at::zeros({4}), mesh, {Partial()});
                           broadcast_state({{"w", at::ones({4})}}, world, {{"w", t}});
                         }),
               {"'w' is ", "without Partial"});
}

TEST(Broadcast, MetaSourceAndDuplicateNamesAreErrors) {
  const auto errors = [](const at::Tensor& full, const std::string& second) {
    return errors_on(2, [&](const Communicator& world) {
      broadcast_state({{"w", full}, {second, full}}, world, {{"w", at::zeros({2})}, {second, at::zeros({2})}});
    });
  };
  expect_error(errors(at::empty({2}, at::kMeta), "v"), {"'w' is on the meta device"});
  expect_error(errors(at::ones({2}), "w"), {"duplicate tensor name at the source: 'w'"});
  expect_error(
      errors_on(2,
                [](const Communicator& world) {
                  broadcast_state({{"w", at::ones({2})}}, world, {{"w", at::zeros({2})}, {"w", at::ones({2})}});
                }),
      {"duplicate target name: 'w'"});
}

// Allocation fails for the pieces to send, or for the gathered pieces of a target that is not row-major.
TEST(Broadcast, OutOfMemoryOnOneRankIsOneError) {
  for (const bool for_pieces : {true, false}) {
    expect_out_of_memory([&](const DeviceMesh& mesh) {
      const at::Tensor target = for_pieces ? at::zeros({500, 400}) : at::zeros({1000, 1500}).t();
      const at::Tensor full = at::ones(target.sizes());
      most_bytes = for_pieces ? 100'000 : 5'000'000;  // a buffer for pieces has 4 MiB at most
      no_memory = mesh.world().rank() == 1;
      broadcast_state({{"w", full}}, mesh.world(), {{"w", target}});
    });
  }
}

TEST(Broadcast, ConjugateViewReceivesValues) {
  run_local(1, [](Communicator world) {
    const at::Tensor full = at::complex(at::ones({2}), at::ones({2})), target = at::zeros_like(full).conj();
    broadcast_state({{"w", full}}, world, {{"w", target}});
    EXPECT_TRUE(at::equal(target.resolve_conj(), full));
  });
}

TEST(Registry, OptimizerMissingInCheckpointIsAnErrorUnlessAllowed) {
  const Folder folder;
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    at::Tensor p = distribute_tensor(at::ones({4}), mesh, {Shard(0)}).requires_grad_();
    AdamW optimizer({p});
    p.mutable_grad() = at::ones_like(p);
    optimizer.step();
    Checkpoint model, all;
    model.add("model", NamedTensors{{"w", &p}});
    all.add("model", NamedTensors{{"w", &p}}).add("optimizer", optimizer);
    model.save(folder / "c", mesh.world(), kQuick);
    EXPECT_THROW(all.load(folder / "c", mesh.world()), c10::ValueError);
    all.load(folder / "c", mesh.world(), {.allow_missing = true});
    EXPECT_EQ(optimizer.state_dict().tensors.size(), 2U);
  });
}

TEST(Registry, DuplicateNamesAreRefusedAndNamesPrecedeOptimizerPrefixes) {
  const Folder folder;
  run_local(1, [&](Communicator world) {
    std::int64_t a = 1, b = 2;
    Checkpoint twice, state;
    EXPECT_THROW(twice.add("n", a).add("n", b).save(folder / "t", world, kQuick), c10::Error);
    at::Tensor p = at::ones({2}).requires_grad_();
    SGD optimizer({p});
    state.add("", optimizer).add("step", b).add("0.epoch", a);
    state.save(folder / "c", world, kQuick);
    a = b = 0;
    state.load(folder / "c", world);
    EXPECT_EQ(a, 1);
    EXPECT_EQ(b, 2);
  });
}

TEST(StateDictKeyMapping, RowsThatDoNotCoverATensorAreRefused) {
  const Folder folder;
  run_local(1, [&](Communicator world) {
    save_state(folder / "c", world, {{"a", at::arange(8, at::kFloat)}}, {}, kQuick);
    const auto load = [&](const StateDictKeyMapping& rows) {
      load_state(folder / "c", world, {{"t", at::zeros({8})}}, {.allow_unexpected = true, .names = rows});
    };
    EXPECT_THROW(load({{"t", "a", false, {0, 0, 4}, {0, 0, 4}}, {"t", "a", false, {0, 4, 4}, {0, 0, 4}}}), c10::Error);
    EXPECT_THROW(load({{"t", "a", false, {0, -1, 8}}}), c10::Error);
    EXPECT_THROW(load({{"t", "a", false, {3, 0, 8}}}), c10::Error);
  });
  EXPECT_THROW(map_state_dict_keys({{"v", at::zeros({6})}}, {{"v", "a", false, {0, 2}}}), c10::Error);
}

// Files that are temporarily unreadable and newer versions are not damage: the folder stays.
TEST(Series, UnreadableCheckpointsAreNotRemoved) {
  const Folder folder;
  run_local(2, [&](Communicator world) {
    std::int64_t n = 1;
    Checkpoint state;
    state.add("n", n);
    CheckpointSeries series(folder / "run", world, 5);
    series.save(state, 10, kQuick);
    series.save(state, 20, kQuick);
    const std::string newest = checkpoint_of_step(folder / "run", 20), file = newest + "/checkpoint.json";
    world.barrier();
    if (world.rank() == 0) {
      fs::rename(newest + "/model.safetensors", folder / "elsewhere");
    }
    world.barrier();
    EXPECT_EQ(series.load_newest(state).skipped_checkpoints.size(), 1U);
    if (world.rank() == 0) fs::rename(folder / "elsewhere", newest + "/model.safetensors");
    series.save(state, 11, kQuick);
    EXPECT_TRUE(fs::exists(newest));
    world.barrier();
    if (world.rank() == 0) {
      std::ifstream in(file);
      std::string text((std::istreambuf_iterator<char>(in)), {});
      text.replace(text.find("\"version\": 2"), 12, "\"version\": 3");
      std::ofstream(file) << text;
    }
    world.barrier();
    EXPECT_THROW(series.load_newest(state), c10::ValueError);
    series.save(state, 12, kQuick);
    EXPECT_TRUE(fs::exists(newest));
  });
}

TEST(Save, FolderPathsAreNormalizedOrRefused) {
  const Folder folder;
  run_local(1, [&](Communicator world) {
    const auto save = [&](const std::string& path) { save_state(path, world, {{"w", at::ones({2})}}, {}, kQuick); };
    for (const std::string& path : {std::string("."), std::string("./"), folder / "a/..", folder / "a/../"}) {
      EXPECT_THROW(save(path), c10::Error) << path;
      EXPECT_THROW(check_can_save(path), c10::Error) << path;
    }
    for (const char* name : {"run/.", "run/././", "\xff\xfe"}) {
      save(folder / name);
      const at::Tensor back = at::zeros({2});
      load_state(folder / name, world, {{"w", back}});
      EXPECT_TRUE(at::equal(back, at::ones({2})));
    }
    EXPECT_TRUE(fs::exists(folder / "run/model.safetensors"));
  });
}

TEST(Save, MeshesOnPartsOfTheWorld) {
  const Folder folder;
  run_local(4, [&](Communicator world) {
    const int half = world.rank() / 2;
    const Communicator part = world.split(half, world.rank());
    const DeviceMesh mesh = init_device_mesh(part, at::kCPU, {2});
    const at::Tensor t = distribute_tensor(at::arange(6, at::kFloat) + half, mesh, {Shard(0)}), u = at::zeros_like(t);
    const std::string own = folder / ("c" + std::to_string(half));
    save_state(own, part, {{"a", t}}, {}, kQuick);
    load_state(own, part, {{"a", u}});
    EXPECT_TRUE(at::equal(DTensor(u).full_tensor(), DTensor(t).full_tensor()));
    // In a checkpoint of the world they are two tensors, although both meshes have ranks 0 and 1.
    const std::string name = "a" + std::to_string(half);
    u.zero_();
    save_state(folder / "all", world, {{name, t}}, {}, kQuick);
    load_state(folder / "all", world, {{name, u}});
    EXPECT_TRUE(at::equal(DTensor(u).full_tensor(), DTensor(t).full_tensor()));
  });
}

TEST(Load, UnwritableTargetOnOneRankIsOneError) {
  const Folder folder;
  expect_error(errors_on(2,
                         [&](const Communicator& world) {
                           save_state(folder / "c", world, {{"a", at::ones({4})}}, {}, kQuick);
                           const at::Tensor t = world.rank() == 0 ? at::zeros({4}) : at::zeros({1}).expand({4});
                           load_state(folder / "c", world, {{"a", t}});
                         }),
               {"rank 1: ", "single memory location"});
}

TEST(Load, F4PairsAreNotCastWithNameMapping) {
  const Folder folder;
  expect_error(errors_on(2,
                         [&](const Communicator& world) {
                           const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2});
                           const auto pairs = at::zeros({1, 4}, at::kByte).view(at::ScalarType::Float4_e2m1fn_x2);
                           save_state(folder / "c", world, {{"a", pairs}}, {}, kQuick);
                           const at::Tensor t = distribute_tensor(at::zeros({1, 4}), mesh, {Shard(0)});
                           load_state(folder / "c", world, {{"a", t}}, {.allow_cast = true, .names = {{"a", "a"}}});
                         }),
               {"'a' is F4 in the checkpoint, Float in the target"});
}

TEST(Load, OutOfMemoryOnOneRankIsOneError) {
  const Folder folder;
  expect_out_of_memory([&](const DeviceMesh& mesh) {
    save_state(folder / "c", mesh.world(), {{"w", at::ones({200'000})}}, {}, kQuick);
    const at::Tensor t = at::zeros({200'000}, at::kDouble);
    no_memory = mesh.world().rank() == 1;
    load_state(folder / "c", mesh.world(), {{"w", t}}, {.allow_cast = true});
  });
}

TEST(Async, OutOfMemoryIsOneErrorAtTheFirstWait) {
  const Folder folder;
  expect_out_of_memory([&](const DeviceMesh& mesh) {
    const at::Tensor t = DTensor::from_local(at::ones({100'000}), mesh, {Shard(0)}, {200'000});
    no_memory = mesh.world().rank() == 1;
    PendingSave save = save_state_async(folder / "c", mesh.world(), {{"w", t}}, {}, kQuick);
    no_memory = false;
    EXPECT_THROW(save.wait(), c10::Error);
    EXPECT_TRUE(save.done());
    save.wait();
  });
  EXPECT_TRUE(fs::is_empty(fs::path(folder / "c").parent_path()));
}

}  // namespace
}  // namespace dtensor::test
