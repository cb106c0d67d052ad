// The log: one JSON object in each line, one line for each step, written during training.
#include "train/output/log.h"

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "train/output/output.h"

namespace train {

namespace {

// Whether the line is a log line of an earlier step.
bool is_before(const std::string& line, std::int64_t step) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto said = json.is_object() ? json.find("step") : json.end();
  return json.is_object() && said != json.end() && said->is_number_integer() && said->get<std::int64_t>() < step;
}

// Bytes of the complete lines at the begin of the file that a run from this step on keeps. Lines of later steps will be
// written again.
std::uintmax_t bytes_before(const std::string& path, std::int64_t first_step) {
  if (first_step == 0 || !std::filesystem::is_regular_file(path)) return 0;
  std::ifstream in(path, std::ios::binary);
  std::uintmax_t bytes = 0;
  for (std::string line; std::getline(in, line) && !in.eof() && is_before(line, first_step);) bytes += line.size() + 1;
  return bytes;
}

}  // namespace

StepLog::StepLog(const std::string& path) : path_(path) { check_writable("--log", path); }

void StepLog::open(std::int64_t first_step) {
  const auto kept = bytes_before(path_, first_step);
  if (kept > 0) std::filesystem::resize_file(path_, kept);
  out_.open(path_, kept > 0 ? std::ios::app : std::ios::trunc);
}

void StepLog::add(const StepRecord& record) {
  if (path_.empty()) return;
  if (!out_.is_open()) open(record.step);
  nlohmann::ordered_json line = {{"step", record.step}, {"loss", record.loss},     {"grad_norm", record.grad_norm},
                                 {"lr", record.lr},     {"tokens", record.tokens}, {"seconds", record.seconds}};
  line["bytes_received"] = record.moved;
  out_ << line.dump() << std::endl;  // Flushed, so that users can follow it.
  if (out_) return;
  if (!write_failed_) std::fprintf(stderr, "--log: cannot write %s (disk full?); training continues\n", path_.c_str());
  write_failed_ = true;
  out_.clear();  // The disk may have space again.
}

void StepLog::close() {
  if (!out_.is_open() && !write_failed_) return;
  if (write_failed_) out_.setstate(std::ios::failbit);
  close_written(out_, path_);
}

}  // namespace train
