// Each trial damages a copy in one way and loads it. Spaces, padding and data for other programs may change without
// effect; any other damage must be detected.
#include "faults/corruptions.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <vector>

#include "dtensor/checkpoint.h"
#include "faults/state.h"

namespace dtensor::faults {
namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;  // Content by name.

constexpr std::int64_t kStep = 41, kOtherStep = 42, kRows = 24;

std::string read_all(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Files files_of(const std::string& folder) {
  Files files;
  for (const auto& entry : fs::directory_iterator(folder)) files[entry.path().filename()] = read_all(entry.path());
  return files;
}

void write_all(const std::string& folder, const Files& files) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const auto& [name, content] : files) std::ofstream(folder + "/" + name, std::ios::binary) << content;
}

Files saved(const std::string& folder, std::int64_t step) {
  run_local(2, [&](Communicator world) {
    KnownState state(init_device_mesh(world, at::kCPU, {2}), kRows);
    state.go_to(step);
    state.checkpoint().save(folder, world, {.sync = false, .max_file_bytes = 4096});
  });
  return files_of(folder);
}

std::size_t data_begin(const std::string& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  return sizeof length + length;
}

// Draws damages of each class.
class Corruptor {
 public:
  Corruptor(Files own, Files other, std::uint64_t seed)
      : own_(std::move(own)), other_(std::move(other)), random_(seed) {
    for (const auto& [name, content] : own_) {
      if (name.ends_with(".safetensors")) tensors_.push_back(name);
    }
  }

  // The class, and the damaged files.
  std::pair<std::string, Files> draw() {
    using Draw = std::function<void(Files&)>;
    const std::vector<std::pair<const char*, Draw>> classes = {
        {"header's length", [&](Files& f) { bytes(f.at(any_tensors()), 0, 8); }},
        {"header", [&](Files& f) { in_header(f.at(any_tensors())); }},
        {"data", [&](Files& f) { in_data(f.at(any_tensors())); }},
        {"checkpoint.json", [&](Files& f) { text(f.at("checkpoint.json")); }},
        {"index", [&](Files& f) { text(f.at("model.safetensors.index.json")); }},
        {"cut or grown", [&](Files& f) { resize(f.at(any(f))); }},
        {"file gone", [&](Files& f) { f.erase(any(f)); }},
        {"blocks of zeros or of elsewhere", [&](Files& f) { block(f.at(any(f))); }},
        {"files in each other's place", [&](Files& f) { std::swap(f.at(tensors_[0]), f.at(tensors_[1])); }},
        {"file of another checkpoint", [&](Files& f) { of_another(f); }},
        {"names", [&](Files& f) { name(f); }}};
    const auto& [what, damage] = classes[below(classes.size())];
    Files files = own_;
    while (files == own_) damage(files);
    return {what, files};
  }

 private:
  std::size_t below(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_); }
  const std::string& any_tensors() { return tensors_[below(tensors_.size())]; }
  std::string any(const Files& files) {
    return std::next(files.begin(), static_cast<long>(below(files.size())))->first;
  }

  // Changes a bit, a byte or a few bytes, or swaps two adjacent bytes, in [begin, end).
  void bytes(std::string& content, std::size_t begin, std::size_t end) {
    const std::size_t at = begin + below(end - begin);
    switch (below(4)) {
      case 0:
        content[at] = static_cast<char>(content[at] ^ (1 << below(8)));
        break;
      case 1:
        content[at] = static_cast<char>(below(256));
        break;
      case 2:
        for (std::size_t i = at; i < std::min(end, at + 8); ++i) content[i] = static_cast<char>(below(256));
        break;
      default:
        if (at + 1 < end) std::swap(content[at], content[at + 1]);
    }
  }
  // Replaces a digit or letter by another, which keeps the JSON valid, or replaces any bytes.
  void text(std::string& content) { letters(content, 0, content.size()); }
  void in_header(std::string& content) { letters(content, 8, data_begin(content)); }
  void in_data(std::string& content) { bytes(content, data_begin(content), content.size()); }
  void letters(std::string& content, std::size_t begin, std::size_t end) {
    if (below(3) == 0) return bytes(content, begin, end);
    for (;;) {
      char& c = content[begin + below(end - begin)];
      if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
        c = static_cast<char>('0' + below(10));
      } else if (std::islower(static_cast<unsigned char>(c)) != 0) {
        c = static_cast<char>('a' + below(26));
      } else {
        continue;
      }
      return;
    }
  }
  void resize(std::string& content) {
    if (below(2) == 0) return content.resize(below(content.size()));
    content.append(1 + below(64), static_cast<char>(below(256)));
  }
  // As if a disk lost or misplaced a sector.
  void block(std::string& content) {
    const std::size_t size = std::min<std::size_t>(512, content.size()), at = below(content.size() - size + 1);
    const std::size_t from = below(content.size() - size + 1);
    content.replace(at, size, below(2) == 0 ? std::string(size, '\0') : content.substr(from, size));
  }
  void of_another(Files& files) {
    const std::string file = any(files);
    std::string &mine = files.at(file), theirs = other_.at(file);
    if (below(2) == 0 || !file.ends_with(".safetensors")) {
      mine = theirs;
    } else {  // Their data with this header.
      mine = mine.substr(0, data_begin(mine)) + theirs.substr(data_begin(theirs));
    }
  }
  // Changes the name of one tensor where it occurs.
  void name(Files& files) {
    static const std::vector<std::string> names = {"weight", "half", "counts", "regular",
                                                   "tied",   "step", "rate",   "note"};
    const std::string from = '"' + names[below(names.size())] + '"', to = '"' + names[below(names.size())] + '"';
    std::string& content = files.at(any(files));
    const std::size_t at = content.find(from);
    if (at == std::string::npos) return;
    const std::size_t length = content.size();
    content.replace(at, from.size(), to);
    const bool header = content[0] != '{' && content.size() != length;
    if (header) content = files.at(any(files));  // A different length would be detected at once.
  }

  Files own_, other_;
  std::vector<std::string> tensors_;
  std::mt19937_64 random_;
};

enum class Verdict : std::uint8_t { found, harmless, silent };

Verdict verdict_of(const std::string& folder, std::string& problem) {
  Verdict verdict = Verdict::found;
  run_local(1, [&](Communicator world) {
    KnownState state(init_device_mesh(world, at::kCPU, {1}), kRows);
    try {
      state.checkpoint().load(folder, world);
    } catch (const c10::Error&) {
      return;
    }
    problem = state.step() == kStep ? state.problem() : "step is " + std::to_string(state.step());
    verdict = problem.empty() ? Verdict::harmless : Verdict::silent;
  });
  return verdict;
}

}  // namespace

CorruptionReport run_corruptions(const CorruptionOptions& options) {
  const std::string good = options.folder + "/good", bad = options.folder + "/bad";
  fs::remove_all(options.folder);
  Corruptor vandal(saved(good, kStep), saved(options.folder + "/other", kOtherStep), options.seed);
  CorruptionReport report;
  for (int trial = 0; trial < options.trials; ++trial) {
    const auto [what, files] = vandal.draw();
    write_all(bad, files);
    std::string problem;
    const Verdict verdict = verdict_of(bad, problem);
    CorruptionCount& count = report.by_class[what];
    ++(verdict == Verdict::found ? count.found : verdict == Verdict::harmless ? count.harmless : count.silent);
    if (verdict == Verdict::silent && report.first_problem.empty()) {
      report.first_problem = "trial " + std::to_string(trial) + " (" + what + "): " + problem;
      write_all(options.folder + "/silent", files);
    }
  }
  fs::remove_all(bad);
  return report;
}

}  // namespace dtensor::faults
