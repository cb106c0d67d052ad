// Hashes of what a step computes: recorded, and compared with a repetition.
#include "train/bits/hashes.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dtensor/bit_identical.h"
#include "dtensor/checkpoint.h"
#include "train/output/output.h"

namespace train {
namespace {

constexpr std::size_t kDigits = 64;

at::Tensor bytes_of(std::string& text) { return at::from_blob(text.data(), {std::ssize(text)}, at::kByte); }

// The hash of each result over ranks. Ranks whose copy of it differs are added with their hashes.
Hashes over_ranks(const dtensor::Communicator& world, const Hashes& own) {
  std::string all;
  for (const auto& [name, hash] : own) all += hash.empty() ? std::string(kDigits, ' ') : hash;
  const auto ranks = gather_texts(world, all);
  Hashes merged;
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::string first, others;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const std::string hash = ranks[rank].substr(i * kDigits, kDigits);
      if (hash[0] == ' ') continue;
      if (first.empty()) first = hash;
      if (hash != first) others += fmt::format(" (rank {}: {})", rank, hash);
    }
    merged.emplace_back(own[i].first, first + others);
  }
  return merged;
}

std::map<std::string, std::vector<std::string>> by_name(const Hashes& hashes) {
  std::map<std::string, std::vector<std::string>> all;
  for (const auto& [name, hash] : hashes) all[name].push_back(hash);
  return all;
}

bool has_operators(const std::map<std::int64_t, Hashes>& steps) {
  return std::any_of(steps.begin(), steps.end(), [](const auto& step) {
    return std::any_of(step.second.begin(), step.second.end(),
                       [](const auto& result) { return result.first.find(" aten::") != std::string::npos; });
  });
}

}  // namespace

HashDifference compare_hashes(const Hashes& recorded, const Hashes& repeated) {
  const auto before = by_name(recorded), after = by_name(repeated);
  HashDifference result;
  std::map<std::string, std::size_t> calls;
  for (const auto& [name, hash] : recorded) {
    const std::size_t call = calls[name]++, count = before.at(name).size();
    const auto found = after.find(name);
    if (found == after.end() || found->second.size() != count) continue;
    ++result.compared;
    if (found->second[call] == hash) continue;
    if (++result.different > 1) continue;
    const auto number = count == 1 ? "" : fmt::format(" (call {} of {})", call + 1, count);
    result.first = fmt::format("{}{}: recorded {}, repeated {}", name, number, hash, found->second[call]);
  }
  return result;
}

std::map<std::int64_t, Hashes> read_hashes(const std::string& path) {
  std::map<std::int64_t, Hashes> steps;
  std::ifstream in(path);
  if (!in) throw UsageError("--hashes: cannot read " + path);
  for (std::string line; std::getline(in, line);) {
    try {
      const auto json = nlohmann::json::parse(line);
      steps[json.at("step").get<std::int64_t>()] = json.at("hashes").get<Hashes>();  // A resumed run has the last word.
    } catch (const nlohmann::json::exception&) {
      throw UsageError(
          fmt::format("--hashes: line {} of {} is no step of a run with --hashes", steps.size() + 1, path));
    }
  }
  return steps;
}

std::string checkpoint_before(const std::string& load, std::int64_t step) {
  const auto steps = dtensor::checkpoint_steps(load);
  if (load.empty() || steps.empty()) return load;
  const auto newest = std::find_if(steps.begin(), steps.end(), [&](const auto saved) { return saved < step; });
  if (newest != steps.end()) return dtensor::checkpoint_of_step(load, *newest);
  throw UsageError(
      fmt::format("--load: {} has no checkpoint before step {}, the oldest is of step {}; without --load "
                  "the run is repeated from its start",
                  load, step, steps.back()));
}

std::string place_of(const dtensor::Event& event) {
  return (event.module.empty() ? "outside any module" : "in " + event.module) +
         (event.phase == dtensor::Phase::forward ? ", forward" : ", backward");
}

std::vector<std::string> gather_texts(const dtensor::Communicator& world, const std::string& text) {
  if (!world) return {text};
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<at::Tensor> sizes, contents;
  for (std::size_t rank = 0; rank < ranks; ++rank) sizes.push_back(at::empty({1}, at::kLong));
  world.all_gather(sizes, at::full({1}, std::ssize(text), at::kLong)).wait();
  std::vector<std::string> texts;
  for (const at::Tensor& size : sizes) texts.emplace_back(static_cast<std::size_t>(size.item<std::int64_t>()), ' ');
  for (std::string& t : texts) contents.push_back(bytes_of(t));
  std::string own = text;
  world.all_gather(contents, bytes_of(own)).wait();
  return texts;
}

HashRecorder::HashRecorder(const Options& options, dtensor::Communicator world)
    : path_(options.hashes), world_(std::move(world)), replay_(options.replay > 0) {
  if (replay_) recorded_ = read_hashes(path_);
  const bool stages = options.mesh && options.mesh->pp > 1;  // Their ranks run different operators.
  if (stages || !(replay_ ? has_operators(recorded_) : options.operator_hashes)) return;
  operators_.emplace([this](const dtensor::Event& event) { add(event); },
                     dtensor::EventListener::Kinds{dtensor::Event::Kind::op});
}

void HashRecorder::add(const dtensor::Event& event) {
  if (adding_ || !dtensor::BitIdentical::current()) return;  // Outside of a step.
  adding_ = true;
  for (std::size_t i = 0; i < event.tensors.size(); ++i) {
    if (!event.tensors[i].defined()) continue;
    const auto result = event.tensors.size() == 1 ? "" : fmt::format(", result {}", i);
    add(fmt::format("{}, by {}{}", place_of(event), event.name, result),
        dtensor::BitIdentical::content_hash(event.tensors[i]));
  }
  adding_ = false;
}

HashDifference HashRecorder::finish(std::int64_t step) {
  const Hashes hashes = over_ranks(world_, std::exchange(own_, {}));
  if (replay_) return compare_hashes(recorded_[step], hashes);
  if (!world_ || world_.rank() == 0) write(step, hashes);
  return {};
}

void HashRecorder::write(std::int64_t step, const Hashes& hashes) {
  if (!out_.is_open()) out_.open(path_, step == 1 ? std::ios::trunc : std::ios::app);
  const nlohmann::ordered_json line = {{"step", step}, {"hashes", hashes}};
  out_ << line.dump() << std::endl;  // Flushed, so that a run that fails leaves its steps.
  if (!out_) throw std::runtime_error("--hashes: cannot write " + path_ + " (disk full?)");
}

}  // namespace train
