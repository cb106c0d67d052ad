// Files that the examples read must be regular: a device or a pipe may never end.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <functional>

#include "dtensor/estimate.h"
#include "llm/hf/hf_config.h"
#include "llm/text/text.h"
#include "support/folder.h"
#include "train/data/data.h"
#include "train/layouts/search.h"
#include "train/model/stages.h"

namespace dtensor::test {
namespace {

namespace fs = std::filesystem;

void make_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(descriptor);
}

struct Reader {
  const char* name;
  std::function<void(const std::string& path)> read;
  bool reads_folders = false;
  const char* file_name = "file";  // that it requires
};

const std::vector<Reader>& readers() {
  static const llm::Family family = [] {
    llm::Family f;
    f.config.vocabulary = 256;
    return f;
  }();
  static const std::vector<Reader> all{
      {"train --data", [](const auto& path) { train::Corpus::read({path}, 1); }, true},
      {"train --tokenizer", [](const auto& path) { train::read_tokenizer(path); }, true},
      {"train --tokenizer merges", [](const auto& path) { train::read_tokenizer(path); }, true, "merges.txt"},
      {"train --plan",
       [](const auto& path) {
         train::Options options;
         options.plan = path;
         train::with_plan(options);
       }},
      {"train --schedule",
       [](const auto& path) {
         train::Options options;
         options.schedule = path;
         train::schedule_of(options, 2);
       }},
      {"plan --hardware", [](const auto& path) { HardwareModel::read(path); }},
      {"llm --data", [](const auto& path) { llm::read_tokens({path}, "text", family, "", "--data"); }, true},
      {"llm --model", [](const auto& path) { llm::read_family(fs::path(path).parent_path().string()); }, false,
       "config.json"}};
  return all;
}

std::string error_of(const Reader& reader, const std::string& path) {
  try {
    reader.read(path);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// /dev/null is first: a reader without a check ends there, but not on a pipe.
TEST(InputFiles, OnlyRegularFilesAreRead) {
  const std::vector<std::pair<const char*, std::function<void(const std::string&)>>> kinds{
      {"device", [](const std::string& path) { fs::create_symlink("/dev/null", path); }},
      {"socket", make_socket},
      {"directory", [](const std::string& path) { fs::create_directory(path); }},
      {"pipe", [](const std::string& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); }}};
  for (const Reader& reader : readers()) {
    for (const auto& [kind, make] : kinds) {
      if (reader.reads_folders && kind == std::string("directory")) continue;
      const Folder folder;
      const std::string path = folder / reader.file_name;
      make(path);
      const std::string error = error_of(reader, path);
      ASSERT_NE(error.find("expected a regular file"), std::string::npos)
          << reader.name << ", " << kind << ": " << error;
      ASSERT_NE(error.find(path), std::string::npos) << reader.name << ", " << kind << ": " << error;
    }
  }
}

}  // namespace
}  // namespace dtensor::test
