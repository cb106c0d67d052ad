// Printed and written costs equal the formula within 5 %: --memory, the bytes received, and the trace.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "costs/cases.h"
#include "costs/formula.h"
#include "support/folder.h"
#include "train/program.h"

namespace costs {
namespace {

using Words = std::vector<std::string>;
constexpr std::int64_t kSteps = 3;

Words words_of(const train::Options& o, const std::string& trace) {
  const auto& m = *o.mesh;
  Words words = {o.experts ? "moe" : "train", "--memory", "--steps", std::to_string(kSteps), "--trace", trace};
  const auto add = [&](const char* flag, std::int64_t value) {
    words.insert(words.end(), {flag, std::to_string(value)});
  };
  words.insert(words.end(), {"--mesh", c10::str("replicate=", m.replicate, ",shard=", m.shard, ",tp=", m.tp)});
  add("--batch", o.batch);
  add("--seq", o.seq);
  add("--hidden", o.hidden);
  add("--layers", o.layers);
  if (o.sequence_parallel) words.emplace_back("--sequence-parallel");
  if (o.bf16) words.insert(words.end(), {"--mixed-precision", "bf16"});
  if (!o.experts) return words;
  add("--ep", o.experts->ep);
  add("--etp", o.experts->etp);
  words.insert(words.end(), {"--balance", o.experts->balance, "--dispatcher", o.experts->dispatcher});
  return words;
}

std::string printed(Words words, train::Kind kind) {
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int status = train::run_program(kind, static_cast<int>(words.size()), argv.data());
  const auto errors = testing::internal::GetCapturedStderr();
  EXPECT_EQ(status, 0) << errors;
  return testing::internal::GetCapturedStdout();
}

// Parses "35.4 KB" at `text` after `key` and spaces; returns bytes, or -1 without the key.
double bytes_at(const std::string& text, const std::string& key) {
  const auto found = text.find(key);
  if (found == std::string::npos) return -1;
  std::istringstream in(text.substr(found + key.size()));
  double value = 0;
  std::string unit;
  in >> value >> unit;
  const std::map<char, double> factors = {{'B', 1}, {'K', 1e3}, {'M', 1e6}, {'G', 1e9}};
  return value * factors.at(unit.at(0));
}

void expect_row(const std::string& out, const std::string& key, Int expected, const std::string& name) {
  const auto begin = out.find("\n  " + key);
  ASSERT_NE(begin, std::string::npos) << name << " " << key << out;
  const auto line = out.substr(begin + 1, out.find('\n', begin + 1) - begin - 1);
  const auto near = 0.05 * static_cast<double>(expected);
  EXPECT_NEAR(bytes_at(line, "predicted"), static_cast<double>(expected), near) << name << ": " << line;
  EXPECT_NEAR(bytes_at(line, "measured"), static_cast<double>(expected), near) << name << ": " << line;
}

// Bytes that rank 0 received, by keys as "all_gather shard".
std::map<std::string, double> traced(const std::string& path) {
  const auto trace = nlohmann::json::parse(std::ifstream(path));
  std::map<std::string, double> bytes;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("pid") != 0 || event.value("cat", "") != "collective" || !event.contains("args")) continue;
    const auto& args = event.at("args");
    bytes[event.at("name").get<std::string>() + " " + args.value("mesh axis", "")] += args.value("bytes received", 0.0);
  }
  return bytes;
}

void expect_formula(const std::string& name, const train::Options& options) {
  const dtensor::test::Folder folder;
  const auto trace = folder / "trace.json";
  const auto out = printed(words_of(options, trace), options.experts ? train::Kind::experts : train::Kind::dense);
  const Formula formula(options);
  expect_row(out, "memory: parameters", formula.parameter_bytes(), name);
  expect_row(out, "gradients ", formula.parameter_bytes(), name);
  expect_row(out, "optimizer", 2 * formula.parameter_bytes(), name);
  expect_row(out, "gathered, at most", formula.gathered_bytes(), name);

  const auto moved = traced(trace);
  const auto counts = formula.counts();
  std::map<std::string, double> by_axis;
  double all = 0, unknown = 0;
  for (const auto& [key, count] : counts) {
    const auto bytes = static_cast<double>(count.bytes);
    if (key == "scalars") continue;
    EXPECT_NEAR(moved.contains(key) ? moved.at(key) / kSteps : 0, bytes, 0.05 * bytes + 16 * kSteps)
        << name << ": " << key;
    by_axis[key.substr(key.find(' ') + 1)] += bytes;
    all += bytes;
  }
  for (const auto& [key, bytes] : moved) unknown += counts.contains(key) ? 0 : bytes / kSteps;
  EXPECT_LE(unknown, 0.05 * all) << name << ": in the trace only";
  const auto line = out.substr(std::min(out.find("received a step"), out.size()));
  for (const auto& [axis, bytes] : by_axis) {
    EXPECT_NEAR(bytes_at(line, " " + axis + " "), bytes, 0.05 * bytes + 100) << name << ": " << axis << " of " << line;
  }
}

TEST(Costs, PrintedAndTracedBytesEqualTheFormula) {
  for (const auto& [name, base] : layouts()) {
    for (const bool bf16 : {false, true}) {
      auto options = base;
      options.bf16 = bf16;
      expect_formula(name + (bf16 ? ", bf16" : ""), options);
    }
  }
}

}  // namespace
}  // namespace costs
