// Validation of a checkpoint folder before a load, checks before a save, and files of other programs in the folder.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "checkpoint/folder.h"
#include "dtensor/checkpoint.h"

namespace dtensor::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const CheckpointValues kValues = {{"lr", 0.25}, {"note", std::string("as it was")}, {"step", std::int64_t{7}}};

StateTensors state_of(double value) {
  const at::Tensor tied = at::full({3}, value);
  return {{"w", at::full({4, 6}, value)}, {"b", at::full({5}, value, at::kHalf)}, {"tied", tied}, {"other", tied}};
}

void save_to(const std::string& folder, double value, SaveOptions options = kQuick) {
  run_local(1, [&](Communicator world) { save_state(folder, world, state_of(value), kValues, options); });
}

double value_in(const std::string& folder) {
  double value = 0;
  run_local(1, [&](Communicator world) {
    const StateTensors targets = state_of(0);
    EXPECT_EQ(load_state(folder, world, targets), kValues);
    value = targets[0].second[0][0].item<double>();
    for (const auto& [name, t] : targets) EXPECT_TRUE(at::equal(t, at::full_like(t, value))) << name;
  });
  return value;
}

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string load_error(const std::string& path) {
  return errors_on(1, [&](const Communicator& world) { load_state(path, world, state_of(0)); })[0];
}
std::string save_error(const std::string& folder, SaveOptions options = kQuick) {
  return errors_on(1, [&](const Communicator& world) { save_state(folder, world, state_of(2), {}, options); })[0];
}
testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << part << "' is not in: " << text;
}

// Rewrites the header of a file after `change`, with its length.
void change_header(const std::string& path, const std::function<void(Json&)>& change) {
  const std::string all = read(path);
  std::uint64_t length = 0;
  std::memcpy(&length, all.data(), 8);
  Json header = Json::parse(all.substr(8, length));
  change(header);
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  length = text.size();
  std::uint64_t before = 0;
  std::memcpy(&before, all.data(), 8);
  write(path, std::string(reinterpret_cast<const char*>(&length), 8) + text + all.substr(8 + before));
}

// A corrupted learning rate, note, version or alias is detected.
TEST(FolderValidation, ValuesAndNamesHaveAChecksum) {
  const Folder folder;
  save_to(folder / "c", 1);
  const std::string path = folder / "c/checkpoint.json", good = read(path);
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"0.25", "0.75"},
                                                        {"as it was", "as it wos"},
                                                        {"\"step\": 7", "\"step\": 3"},
                                                        {"\"other\": \"tied\"", "\"other\": \"w\""},
                                                        {"\"lr\"", "\"lx\""},
                                                        {"\"version\": 2", "\"version\": 1"},
                                                        {"\"version\": 2", "\"version\": 3"},
                                                        {"\"checksum\"", "\"checksun\""}}) {
    write(path, replaced(good, from, to));
    EXPECT_TRUE(says(load_error(folder / "c"), "checkpoint.json")) << to;
    EXPECT_EQ(verify_checkpoint(folder / "c").size(), 1U) << to;
  }
  write(path, Json::parse(good).dump());  // other whitespace
  EXPECT_EQ(value_in(folder / "c"), 1);
  EXPECT_TRUE(verify_checkpoint(folder / "c").empty());
}

TEST(FolderValidation, MissingCheckpointJsonIsRefusedUnlessForeign) {
  const Folder folder;
  save_to(folder / "c", 1);
  fs::remove(folder / "c/checkpoint.json");
  EXPECT_TRUE(says(load_error(folder / "c"), "is a checkpoint without checkpoint.json"));
  EXPECT_EQ(verify_checkpoint(folder / "c").size(), 1U);
  EXPECT_EQ(read_checkpoint_index(folder / "c/model.safetensors").entries.size(), 3U);
  change_header(folder / "c/model.safetensors", [](Json& header) { header.erase("__metadata__"); });
  EXPECT_EQ(read_checkpoint_index(folder / "c").entries.size(), 3U);  // now a file of another program
}

TEST(FolderValidation, ChangedDtypeOrShapeInHeaderIsDetected) {
  const Folder folder;
  save_to(folder / "c", 1);
  const std::string path = folder / "c/model.safetensors", good = read(path);
  change_header(path, [](Json& header) { header["b"]["dtype"] = "I16"; });
  EXPECT_TRUE(says(load_error(folder / "c"), "'b' is I16 [5] there, but F16 [5] in "));
  write(path, good);
  change_header(path, [](Json& header) { header["w"]["shape"] = {6, 4}; });
  EXPECT_TRUE(says(load_error(folder / "c"), "'w' is F32 [6, 4] there, but F32 [4, 6] in "));
  write(path, good);
  change_header(path, [](Json& header) { header["__metadata__"].erase("dtensor_checkpoint"); });
  EXPECT_TRUE(says(load_error(folder / "c"), "were not saved with it"));
}

// A single file of a checkpoint is verified against the checkpoint.json beside it.
TEST(FolderValidation, SingleFileOfACheckpointIsVerified) {
  const Folder folder;
  save_to(folder / "c", 1);
  const std::string path = folder / "c/model.safetensors";
  std::string bytes = read(path);
  bytes.back() ^= 1;
  write(path, bytes);
  EXPECT_EQ(verify_checkpoint(path).size(), 1U);
}

TEST(FolderValidation, CheckpointsOfVersion1StillLoad) {
  const Folder folder;
  save_to(folder / "c", 1);
  change_header(folder / "c/model.safetensors", [](Json& header) { header["__metadata__"] = {{"format", "pt"}}; });
  Json json = Json::parse(read(folder / "c/checkpoint.json"));
  json["version"] = 1;
  json.erase("checksum");
  for (auto& [name, about] : json["tensors"].items()) about = {{"checksum", about["checksum"]}};
  write(folder / "c/checkpoint.json", json.dump(1));
  EXPECT_EQ(value_in(folder / "c"), 1);
}

TEST(FolderValidation, SaveThroughSymlinkKeepsTheLink) {
  const Folder folder;
  save_to(folder / "real/c", 1);
  fs::create_directory_symlink(folder / "real/c", folder / "link");
  save_to(folder / "link", 2);
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_FALSE(fs::is_symlink(folder / "real/c"));
  EXPECT_EQ(value_in(folder / "real/c"), 2);
  EXPECT_EQ(value_in(folder / "link"), 2);
}

TEST(FolderValidation, UnwritablePathsAreRefusedBeforeSaving) {
  const Folder folder;
  fs::create_directory_symlink(folder / "nowhere", folder / "dangling");
  for (const std::string& path : {folder / "dangling", std::string("/proc/x"), std::string("/proc/self/x/y")}) {
    EXPECT_THROW(check_can_save(path), c10::Error) << path;
    EXPECT_FALSE(save_error(path).empty()) << path;
  }
  EXPECT_TRUE(says(save_error(folder / "dangling"), "is a link to " + (folder / "nowhere") + ", which does not exist"));
  EXPECT_TRUE(says(save_error("/proc/x"), "cannot create"));
}

// A file size limit is an error before any rank writes, and the previous checkpoint remains.
TEST(FolderValidation, FileBeyondSizeLimitIsAnErrorNotASignal) {
  const Folder folder;
  save_to(folder / "c", 1);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{10'000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const auto errors = errors_on(1, [&](const Communicator& world) {
    save_state(folder / "c", world, {{"w", at::zeros({10'000})}}, {}, kQuick);
  });
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(says(errors[0], "files are limited to 10000 (ulimit -f)"));
  EXPECT_EQ(value_in(folder / "c"), 1);
}

TEST(FolderValidation, ForeignFilesAreRefusedOrKept) {
  const Folder folder;
  save_to(folder / "c", 1);
  write(folder / "c/model-extra.safetensors", "mine");
  write(folder / "c/config.json", "{}");
  fs::create_directories(folder / "c/notes/deep");
  write(folder / "c/notes/deep/todo", "keep");
  EXPECT_TRUE(says(save_error(folder / "c"), "which is not part of a checkpoint and would be lost"));
  EXPECT_THROW(check_can_save(folder / "c"), c10::Error);
  SaveOptions options = kQuick;
  options.keep_foreign = true;
  check_can_save(folder / "c", options);
  save_to(folder / "c", 2, options);
  EXPECT_EQ(read(folder / "c/model-extra.safetensors"), "mine");
  EXPECT_EQ(read(folder / "c/config.json"), "{}");
  EXPECT_EQ(read(folder / "c/notes/deep/todo"), "keep");
  EXPECT_EQ(value_in(folder / "c"), 2);
}

// A leftover index of the previous save would make the new checkpoint invalid.
TEST(FolderValidation, FilesOfThePreviousCheckpointAreRemoved) {
  const Folder folder;
  SaveOptions options = kQuick;
  options.keep_foreign = true;
  options.max_file_bytes = 64;
  save_to(folder / "c", 1, options);
  EXPECT_TRUE(fs::exists(folder / "c/model.safetensors.index.json"));
  options.max_file_bytes = 1 << 20;
  save_to(folder / "c", 2, options);
  EXPECT_FALSE(fs::exists(folder / "c/model.safetensors.index.json"));
  EXPECT_EQ(value_in(folder / "c"), 2);
}

TEST(FolderValidation, SpecialFilesAreRefused) {
  const Folder folder;
  fs::create_directories(folder / "c");
  ASSERT_EQ(::mkfifo((folder / "c/model.safetensors.index.json").c_str(), 0600), 0);
  EXPECT_TRUE(says(load_error(folder / "c"), "is not a regular file"));
  fs::remove(folder / "c/model.safetensors.index.json");
  fs::create_symlink("/dev/zero", folder / "c/model.safetensors");
  EXPECT_TRUE(says(load_error(folder / "c"), "is not a regular file"));
  fs::remove(folder / "c/model.safetensors");
  fs::create_directories(folder / "c/model.safetensors");
  EXPECT_TRUE(says(load_error(folder / "c"), "is not a regular file"));
}

TEST(FolderValidation, WeightMapCannotLeaveTheFolder) {
  const Folder folder;
  save_to(folder / "c", 1);
  fs::create_directories(folder / "d");
  for (const std::string file : {"../c/model.safetensors", "/etc/passwd", "..", "", "x/y.safetensors"}) {
    write(folder / "d/model.safetensors.index.json", Json{{"weight_map", {{"w", file}}}}.dump());
    EXPECT_TRUE(says(load_error(folder / "d"), "expected a file name in the same folder")) << file;
  }
}

}  // namespace
}  // namespace dtensor::test
