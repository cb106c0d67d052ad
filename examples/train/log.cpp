// The log: one JSON object a line, one line a step, written as training goes.
#include "log.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "output.h"

namespace train {

StepLog::StepLog(const std::string& path) : path_(path) {
  check_writable("--log", path);
  if (!path.empty()) out_.open(path, std::ios::trunc);
}

void StepLog::add(const StepRecord& record) {
  if (!out_.is_open()) return;
  nlohmann::ordered_json line = {{"step", record.step}, {"loss", record.loss},     {"grad_norm", record.grad_norm},
                                 {"lr", record.lr},     {"tokens", record.tokens}, {"seconds", record.seconds}};
  line["bytes_received"] = record.moved;
  out_ << line.dump() << std::endl;  // flushed, so that it can be followed
  if (out_) return;
  if (!lacks_) std::fprintf(stderr, "--log: %s cannot be written (a full disk?); training goes on\n", path_.c_str());
  lacks_ = true;
  out_.clear();  // there may be room again
}

void StepLog::close() {
  if (!out_.is_open()) return;
  if (lacks_) out_.setstate(std::ios::failbit);
  close_written(out_, path_);
}

}  // namespace train
