// Limits and state of the process: open files, header length, current folder.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <thread>

#include "checkpoint/folder.h"
#include "checkpoint/format/safetensors.h"

namespace dtensor::test {
namespace {

namespace fs = std::filesystem;

struct OpenFiles {
  explicit OpenFiles(rlim_t most) {
    ::getrlimit(RLIMIT_NOFILE, &before);
    const rlimit fewer{most, before.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &fewer);
  }
  ~OpenFiles() { ::setrlimit(RLIMIT_NOFILE, &before); }
  rlimit before{};
};

// A folder of 160 files is read by ranks that may have only 120 files open.
TEST(ProcessEnvironment, FolderMayHaveMoreFilesThanTheOpenFileLimit) {
  const Folder folder;
  StateTensors saved;
  for (int i = 0; i < 160; ++i) saved.emplace_back("t" + std::to_string(i), at::full({2}, static_cast<double>(i)));
  run_local(
      1, [&](Communicator world) { save_state(folder / "c", world, saved, {}, {.sync = false, .max_file_bytes = 1}); });
  for (const bool by_names : {false, true}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      StateTensors targets;
      for (const auto& [name, t] : saved)
        targets.emplace_back(name, distribute_tensor(at::zeros({2}), mesh, {Shard(0)}));
      mesh.world().barrier();
      {
        const OpenFiles few(120);
        LoadOptions options;
        if (by_names) options.names = {{.tensor = "**", .stored = "**"}};
        load_state(folder / "c", mesh.world(), targets, options);
        mesh.world().barrier();
      }
      for (std::size_t i = 0; i < saved.size(); ++i) {
        EXPECT_TRUE(at::equal(DTensor(targets[i].second).full_tensor(), saved[i].second)) << by_names << " " << i;
      }
    });
  }
}

// Readers reject longer headers, so a save must not write them.
TEST(ProcessEnvironment, HeadersStayBelowTheReaderLimit) {
  std::vector<CheckpointEntry> tensors;
  for (int i = 0; i < 11; ++i) {
    tensors.push_back({.name = std::string(9'500'000, 'n') + std::to_string(i), .dtype = at::kFloat, .sizes = {2, 3}});
  }
  const auto layout = files::make_file_layout(tensors, 5'000'000'000);
  ASSERT_EQ(layout.headers.size(), 2U);
  for (const auto& header : layout.headers) EXPECT_LE(header.text.size(), 100'000'008U);
  EXPECT_NE(layout.entries[0].file, layout.entries[10].file);
  tensors = {{.name = std::string(100'000'000, 'n'), .dtype = at::kFloat, .sizes = {2}}};
  EXPECT_THROW(files::make_file_layout(tensors, 5'000'000'000), c10::Error);
}

// A save with a relative path ends in the folder that was current when it began.
TEST(ProcessEnvironment, CurrentFolderMayChangeDuringASave) {
  const Folder folder;
  const struct RestoreDirectory {
    fs::path path = fs::current_path();
    ~RestoreDirectory() { fs::current_path(path); }
  } back;
  fs::create_directories(folder / "a");
  fs::create_directories(folder / "b");
  fs::current_path(folder / "a");
  run_local(1, [&](Communicator world) {
    PendingSave save = save_state_async("c", world, {{"w", at::ones({3})}}, {}, kQuick);
    while (!save.done()) std::this_thread::yield();
    fs::current_path(folder / "b");
    save.wait();
  });
  EXPECT_TRUE(verify_checkpoint(folder / "a/c").empty());
  EXPECT_FALSE(fs::exists(folder / "a/c.lock"));
  EXPECT_TRUE(fs::is_empty(folder / "b"));
}

}  // namespace
}  // namespace dtensor::test
