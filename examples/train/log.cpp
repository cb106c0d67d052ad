// The log: one JSON object a line, one line a step, written as training goes.
#include "log.h"

#include <nlohmann/json.hpp>

#include "dtensor/checkpoint.h"

namespace train {

void check_writable(const std::string& flag, const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app)) return;
  throw UsageError(flag + ": cannot write " + path);
}

void check_can_save(const std::string& flag, const std::string& path) {
  if (path.empty()) return;
  try {
    dtensor::check_can_save(path);
  } catch (const c10::Error& error) {
    throw UsageError(flag + ": " + error.what_without_backtrace());
  }
}

StepLog::StepLog(const std::string& path) {
  check_writable("--log", path);
  if (!path.empty()) out_.open(path, std::ios::trunc);
}

void StepLog::add(const StepRecord& record) {
  if (!out_.is_open()) return;
  nlohmann::ordered_json line = {{"step", record.step}, {"loss", record.loss},     {"grad_norm", record.grad_norm},
                                 {"lr", record.lr},     {"tokens", record.tokens}, {"seconds", record.seconds}};
  line["bytes_received"] = record.moved;
  out_ << line.dump() << std::endl;  // flushed, so that it can be followed
}

}  // namespace train
