// A trial changes JSON tokens: removes, repeats, swaps or wraps them in brackets, or replaces them by unusual ones.
#include "faults/headers.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cctype>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <vector>

#include "dtensor/checkpoint.h"
#include "faults/state.h"

namespace dtensor::faults {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<std::string>;
using Files = std::map<std::string, std::string>;  // Content by name.

Tokens tokens_of(const std::string& json) {
  Tokens tokens;
  for (std::size_t at = 0; at < json.size();) {
    std::size_t end = at + 1;
    if (json[at] == '"') {
      while (end < json.size() && json[end] != '"') end += json[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, json.size());
    } else if (std::isalnum(static_cast<unsigned char>(json[at])) != 0) {
      while (end < json.size() && std::strchr("{}[],:\" \n", json[end]) == nullptr) ++end;
    }
    tokens.push_back(json.substr(at, end - at));
    at = end;
  }
  return tokens;
}

std::string joined(const Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

const Tokens& malformed_tokens() {
  static const Tokens tokens = {"0",
                                "-1",
                                "1.5",
                                "1e999",
                                "18446744073709551615",
                                "9223372036854775807",
                                "4294967296",
                                "null",
                                "true",
                                "{}",
                                "[]",
                                "\"\"",
                                "\"F6_E2M3\"",
                                "\"F4\"",
                                "\"I64\"",
                                "\"../x\"",
                                "\"/dev/zero\"",
                                "\"\\ud800\"",
                                "\"__metadata__\"",
                                "\"version\"",
                                "\"dtensor_checkpoint\"",
                                "{\"double\":\"inf\"}",
                                "{\"double\":3}",
                                std::string(1, '\0'),
                                "\xff",
                                "\xEF\xBB\xBF",
                                std::string(300, '['),
                                std::string(4096, '9'),
                                ",",
                                "]",
                                "}"};
  return tokens;
}

void change(Tokens& tokens, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  if (tokens.empty()) return;
  const std::size_t at = below(tokens.size()), other = below(tokens.size());
  const auto place = tokens.begin() + static_cast<std::ptrdiff_t>(at);
  switch (below(6)) {
    case 0:
      tokens.erase(place);
      break;
    case 1:
      tokens.insert(place, tokens[other]);
      break;
    case 2:
      std::swap(tokens[at], tokens[other]);
      break;
    case 3:
      tokens[at] = tokens[other];
      break;
    case 4:
      tokens[at] = "[" + tokens[at] + "]";
      break;
    default:
      tokens[at] = malformed_tokens()[below(malformed_tokens().size())];
  }
}

std::string read_all(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Changes the JSON of a file, or of its header.
std::string changed(const std::string& name, const std::string& content, std::mt19937_64& random) {
  const bool tensors = name.ends_with(".safetensors");
  std::uint64_t length = content.size();
  if (tensors) std::memcpy(&length, content.data(), sizeof length);
  Tokens tokens = tokens_of(tensors ? content.substr(sizeof length, length) : content);
  for (auto changes = 1 + random() % 3; changes > 0; --changes) change(tokens, random);
  const std::string text = joined(tokens);
  if (!tensors) return text;
  const std::uint64_t now = text.size();
  return std::string(reinterpret_cast<const char*>(&now), sizeof now) + text + content.substr(sizeof length + length);
}

// The files without checkpoint.json and the entry that requires it.
Files with_foreign_metadata(Files files) {
  const std::string mark = "\"dtensor_checkpoint\"";
  files.erase("checkpoint.json");
  for (auto& [name, content] : files) {
    if (const auto at = content.find(mark); at != std::string::npos) content[at + 1] = 'x';
  }
  return files;
}

// Reads everything in every way. A problem is any exception other than a c10::Error that names a file of the folder.
std::string look(const std::string& folder, bool& read) {
  try {
    for (const CheckpointEntry& e : read_checkpoint_index(folder).entries) {
      const auto bytes = static_cast<std::int64_t>(fs::file_size(e.file));
      if (e.offset < 8 || e.bytes < 0 || e.offset + e.bytes > bytes) return "'" + e.name + "' exceeds its file";
    }
    verify_checkpoint(folder);
    run_local(1, [&](Communicator world) {
      KnownState state(init_device_mesh(world, at::kCPU, {1}), 8);
      state.checkpoint().load(folder, world, {.allow_missing = true, .allow_unexpected = true, .allow_cast = true});
    });
    read = true;
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find(folder) == std::string::npos) return "no path in: " + text;
  } catch (const std::exception& error) {  // run_local throws its own type for errors of ranks.
    if (std::string(error.what()).find(folder) == std::string::npos) return std::string("no path in: ") + error.what();
  }
  return "";
}

}  // namespace

HeaderReport run_headers(const HeaderOptions& options) {
  const std::string good = options.folder + "/good", bad = options.folder + "/bad";
  fs::remove_all(options.folder);
  run_local(1, [&](Communicator world) {
    KnownState state(init_device_mesh(world, at::kCPU, {1}), 8);
    state.checkpoint().save(good, world, {.sync = false, .max_file_bytes = 1024});
  });
  Files files;
  for (const auto& entry : fs::directory_iterator(good)) files[entry.path().filename()] = read_all(entry.path());
  std::mt19937_64 random(options.seed);
  HeaderReport report;
  for (; report.trials < options.trials && report.first_problem.empty(); ++report.trials) {
    auto damaged = random() % 2 == 0 ? files : with_foreign_metadata(files);
    const auto target = std::next(damaged.begin(), static_cast<std::ptrdiff_t>(random() % damaged.size()));
    target->second = changed(target->first, target->second, random);
    fs::remove_all(bad);
    fs::create_directories(bad);
    for (const auto& [name, content] : damaged) std::ofstream(bad + "/" + name, std::ios::binary) << content;
    bool read = false;
    report.first_problem = look(bad, read);
    ++(read ? report.read : report.refused);
  }
  return report;
}

}  // namespace dtensor::faults
