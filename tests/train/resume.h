// A run that stops and resumes elsewhere, compared with an uninterrupted run.
#pragma once

#include <filesystem>

#include "support/data.h"
#include "train/run.h"

namespace resume {

inline train::Options options(std::string optimizer = "adamw") {
  train::Options o;
  o.optimizer = std::move(optimizer);
  o.dtype = train::Dtype::float64;
  o.dropout = 0.1;
  o.batch = 6;
  o.seq = 8;
  o.steps = 10;
  o.warmup = 6;
  o.data = {dtensor::test::data_path("oracles/transformer.json")};
  return o;
}

inline const train::Corpus& corpus() {
  static const train::Corpus text = train::Corpus::read(options().data, options().seq);
  return text;
}

inline std::string folder(const std::string& name) {
  return (std::filesystem::temp_directory_path() / ("dtensor_resume_" + name)).string();
}

inline double largest_difference(const std::vector<train::StepRecord>& rest,
                                 const std::vector<train::StepRecord>& full) {
  double largest = 0;
  for (const train::StepRecord& r : rest) {
    const train::StepRecord& expected = full.at(static_cast<std::size_t>(r.step));
    largest = std::max(largest, std::abs(r.loss - expected.loss) / std::abs(expected.loss));
    largest = std::max(largest, std::abs(r.grad_norm - expected.grad_norm) / std::abs(expected.grad_norm));
    largest = std::max(largest, std::abs(r.lr - expected.lr));
  }
  return largest;
}

}  // namespace resume
